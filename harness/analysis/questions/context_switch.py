"""What does context switching cost? GPU time per request that goes when processes take turns."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from harness.analysis.campaign import Cell
from harness.analysis.comparison_model import Answer, ComparisonQuery
from harness.analysis.contrasts.comparison import CellKey, Comparison
from harness.analysis.format import DASH, quantity, replicas_in_words
from harness.analysis.pages.curves import bars
from harness.analysis.pages.table import Entry, Table, figure_entry
from harness.analysis.statistics import SIGNIFICANCE, Estimate
from harness.sharing.modes import mode_of

BUSY_PERCENT = 90.0
"""A GPU that is idle for longer has time to give away, which hides what switching takes."""


@dataclass(frozen=True, slots=True)
class Switching:
    """What taking turns costs against one reference at equal work. ``p`` is the corrected one of their throughputs."""

    workload: str
    replicas: int
    reference: str
    extra_s: Estimate
    share: float
    p: float | None


def switching(comparison: Comparison) -> tuple[list[Switching], list[str]]:
    """Every cost that the measurements give, and why they do not give others."""
    found: list[Switching] = []
    missing: list[str] = []
    for arm in comparison.arms:
        if not mode_of(arm.sharing).takes_turns:
            continue
        neighbours = [
            other for other in comparison.arms if mode_of(other.sharing).concurrent and comparison.alike(arm, other)
        ]
        for workload in comparison.workloads():
            alone = comparison.gpu_alone(arm, workload)
            busy = alone[0].estimates.get("gpu_utilization") if alone else None
            if alone and busy and busy.mean < BUSY_PERCENT:
                missing.append(
                    f"{workload}: one replica alone keeps the GPU {busy.mean:.0f} % busy, so that sharing fills idle time, and "
                    "what switching takes cannot be told from it. A larger batch_size or execution: cuda-graph would keep it busy."
                )
            for count in arm.counts(workload):
                if count == 1:
                    continue
                cell = arm.cells[CellKey(workload, count)]
                if alone and busy and busy.mean >= BUSY_PERCENT:
                    found += _against(comparison, cell, alone[0], "alone")
                for other in neighbours:
                    side_by_side = other.cells.get(CellKey(workload, count))
                    found += _against(comparison, cell, side_by_side, side_by_side.mode) if side_by_side else []
    return found, missing


def answer(comparison: Comparison, _query: ComparisonQuery) -> Answer:
    """Extra GPU time per request of time-slicing, against one process alone and against MPS."""
    costs, missing = switching(comparison)
    rows: list[list[str | Entry]] = [
        [
            one.workload,
            str(one.replicas),
            _reference(one.reference),
            figure_entry(one.extra_s, "s", least=-math.inf),
            Entry(f"{100 * one.share:+.1f} %"),
            _p(one.p),
        ]
        for one in costs
    ]
    taking_turns = [arm for arm in comparison.arms if mode_of(arm.sharing).takes_turns]
    if not any(place.replicas > 1 for arm in taking_turns for place in arm.cells):
        missing.insert(0, "Several replicas under time-slicing would tell: only there do processes take turns.")
    plot = bars(
        "switching",
        "GPU time that taking turns adds to each request, with 95 % intervals",
        "% of the time that a request takes otherwise",
        [
            (
                f"{one.workload}, {one.replicas} replicas, against {_reference(one.reference)}",
                one.extra_s.scaled(100 * one.share / one.extra_s.mean),
            )
            for one in costs
            if one.extra_s.mean
        ],
    )
    return Answer(
        "switching",
        "What does context switching cost?",
        "At equal work on a busy GPU, a request takes 1 / (throughput of all) of GPU time. Switching costs what that time "
        f"grows by when processes take turns: against one process that keeps the GPU at least {BUSY_PERCENT:.0f} % busy by itself, the switching "
        "proper; against the same processes under MPS, everything that taking turns gives up, running side by side included.",
        [_sentence(one) for one in costs],
        Table.of(["Workload", "Replicas", "Against", "Extra time per request", "Of its time", "p"], rows, words=3)
        if rows
        else None,
        [plot] if plot else [],
        missing + comparison.missing_modes(),
    )


def _against(comparison: Comparison, cell: Cell, reference: Cell, name: str) -> list[Switching]:
    """By the contrast of the throughputs: a request takes as much longer as the throughput is lower."""
    contrast = None if cell.paced else comparison.contrasts.of(cell, reference, "throughput")
    if contrast is None:
        return []
    time_s = float(np.mean([1 / rate for rate in reference.figures("throughput")]))
    ratio = contrast.ratio
    low, high = (None if end is None else time_s * (end - 1) for end in (ratio.low, ratio.high))
    extra = Estimate(time_s * (ratio.mean - 1), low, high, ratio.n, None, ratio.note)
    return [Switching(cell.workload, cell.replicas, name, extra, ratio.mean - 1, contrast.corrected_p)]


def _reference(name: str) -> str:
    return "one process alone" if name == "alone" else f"the same under {name.upper()}"


def _p(p: float | None) -> Entry:
    return Entry(DASH, reason="a single run has no spread") if p is None else Entry(f"{p:.2g}")


def _sentence(one: Switching) -> str:
    head = f"{one.workload}, {replicas_in_words(one.replicas)} taking turns, against {_reference(one.reference)}"
    amount = f"{quantity(one.extra_s.mean, 's')} per request, {100 * one.share:+.1f} %"
    if one.p is None:
        return f"{head}: {amount}; a single run cannot tell whether that is more than chance."
    if one.p >= SIGNIFICANCE:
        return f"{head}: no significant cost ({amount}, p = {one.p:.2g})."
    if one.extra_s.mean < 0:
        return (
            f"{head}: none that can be told. They fill gaps that one process leaves although its GPU counts as busy, and win "
            f"{quantity(-one.extra_s.mean, 's')} per request ({100 * one.share:+.1f} %)."
        )
    return f"{head}: {amount} (95 % interval {_between(one.extra_s)})."


def _between(extra_s: Estimate) -> str:
    if extra_s.low is None or extra_s.high is None:
        return "not known"
    return f"{quantity(extra_s.low, 's')} to {quantity(extra_s.high, 's')}"
