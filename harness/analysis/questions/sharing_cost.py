"""What does sharing cost? Speed against one replica alone and between modes, fairness, GPU time for taking turns, energy and money."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from harness.analysis.campaign import Cell, MeasuredRun, shared
from harness.analysis.contrasts.comparison import Arm, CellKey, Comparison
from harness.analysis.contrasts.contrast import Value
from harness.analysis.format import mode_name, quantity, replicas_in_words
from harness.analysis.metrics.catalogue import ALL, STREAM_HEADLINE
from harness.analysis.pages.curves import Row, dots
from harness.analysis.pages.plot import Picture
from harness.analysis.pages.table import Entry, Table, absent, figure_entry, ratio_entry
from harness.analysis.questions.question import (
    ColumnOf,
    ComparisonQuery,
    OfMode,
    QuestionAnswer,
    by_mode,
    cell_table,
    estimated,
    labels,
)
from harness.analysis.statistics import SIGNIFICANCE, Estimate, t_interval
from harness.errors import counted
from harness.sharing.modes import mode_of

_MILLION, _J_PER_KWH, _S_PER_H = 1e6, 3.6e6, 3600.0
BUSY_PERCENT = 90.0
"""A GPU that is idle for longer has time to give away, which hides what switching takes."""


def cost_answer(comparison: Comparison, _query: ComparisonQuery) -> QuestionAnswer:
    """What does each mode cost? Every mode against one replica that has the GPU to itself, and against the other modes."""
    measured = {name for *_, cell in comparison.cells() for name in cell.estimates}
    columns = {
        "Throughput": estimated("throughput", "req/s"),
        "throughput against alone": _against_alone(comparison, "throughput"),
        "p50": estimated("latency_p50_exact", "s"),
        "p99": estimated("latency_p99_exact", "s"),
        "p99 against alone": _against_alone(comparison, "latency_p99_exact"),
        **{ALL[name].heading: estimated(name, "s") for name in STREAM_HEADLINE if name in measured},
        "GPU busy": estimated("gpu_utilization", "%"),
        **({"SM active": estimated("gpu_sm_active", "%")} if "gpu_sm_active" in measured else {}),
    }
    speeds = _of_most_replicas(comparison, _speed_percent)
    plot = _plot(
        comparison,
        "cost",
        "Speed of each replica at the most replicas, against one alone",
        "% of its solo speed",
        speeds,
        rule=100,
    )
    kept = by_mode(".0f", speeds, "%", "% of its solo speed")
    return QuestionAnswer(
        "cost",
        "What does each mode cost?",
        f"{_most(comparison)}, each runs at {kept}." if speeds else "",
        cell_table(comparison, columns),
        plot,
        missing=comparison.missing_modes(),
    )


def _of_most_replicas(
    comparison: Comparison, value: Callable[[Comparison, Arm, Cell], Estimate | None]
) -> list[OfMode]:
    """A value of every workload and mode, at the most replicas where there are several."""
    return [
        (f"{workload}, {replicas_in_words(count)}", mode_name(arm.label), estimate)
        for workload, arm, count, cell in comparison.cells()
        if count == comparison.counts(workload)[-1] > 1 and (estimate := value(comparison, arm, cell)) is not None
    ]


def _most(comparison: Comparison) -> str:
    counts = {comparison.counts(workload)[-1] for workload in comparison.workloads()}
    return f"With {replicas_in_words(*counts)}" if len(counts) == 1 else "With the most replicas"


def _speed_percent(comparison: Comparison, arm: Arm, cell: Cell) -> Estimate | None:
    gain = None if cell.paced else comparison.against_alone(arm, cell, "throughput")
    return gain.ratio.scaled(100 / cell.replicas) if gain else None


def _p99_growth(comparison: Comparison, arm: Arm, cell: Cell) -> Estimate | None:
    growth = comparison.against_alone(arm, cell, "latency_p99_exact")
    return growth.ratio if growth else None


def _plot(
    comparison: Comparison, name: str, title: str, label: str, values: Sequence[OfMode], rule: float
) -> list[Picture]:
    rows = Row.of((*value, ()) for value in values)
    return [dots(f"comparison-{name}", title, [(label, rows)], order=labels(comparison), rules=[rule])] if rows else []


def _against_alone(comparison: Comparison, metric: str) -> ColumnOf:
    def entry(arm: Arm, cell: Cell) -> Entry:
        alone = comparison.gpu_alone(arm, comparison.name_of(cell))
        if alone is None:
            return ratio_entry(None, "one replica alone was not measured")
        if alone is cell:
            return Entry("1")
        contrast = comparison.contrasts.of(alone, cell, metric)
        return ratio_entry(contrast.ratio if contrast else None, cell.absent.get(metric, "not measured alone"))

    return entry


def fairness_answer(comparison: Comparison, _query: ComparisonQuery) -> QuestionAnswer:
    """How well does it isolate? Fairness, Jain's index, and p99 beside others against p99 alone."""

    def index(name: str) -> ColumnOf:
        return lambda _arm, cell: figure_entry(_capped(cell.estimates.get(name)), "", cell.absent.get(name, ""))

    def growth(arm: Arm, cell: Cell) -> Entry:
        contrast = comparison.against_alone(arm, cell, "latency_p99_exact")
        return ratio_entry(contrast.ratio if contrast else None, "no p99 alone or beside others")

    columns = {
        "Slowest / fastest": index("fairness"),
        "Jain": index("jain"),
        "p99 against alone": growth,
        "p99 of the worst replica": estimated("latency_p99_worst", "s"),
    }
    table = cell_table(comparison, columns, fewest=2)
    growths = _of_most_replicas(comparison, _p99_growth)
    plot = _plot(
        comparison,
        "isolation",
        "p99 latency at the most replicas, against one alone",
        "times its solo p99",
        growths,
        rule=1,
    )
    slowest = [f.mean for *_, cell in comparison.cells() if (f := cell.estimates.get("fairness")) and not cell.paced]
    fair = f" The slowest replica serves at least {100 * min(slowest):.0f}% of the fastest." if slowest else ""
    grown = by_mode(".1f", growths, " times", " times its solo value")
    return QuestionAnswer(
        "isolation",
        "How well does it isolate?",
        f"{_most(comparison)}, p99 is {grown}.{fair}" if growths else fair.strip(),
        table,
        plot,
        missing=[
            *([] if table else ["Add more than one replica to `replicas` to see how they share."]),
            *comparison.missing_modes(),
        ],
    )


def _capped(estimate: Estimate | None) -> Estimate | None:
    """An index that cannot exceed 1 has no interval beyond it."""
    if estimate is None or estimate.half_width is None or estimate.low is None:
        return estimate
    half = min(estimate.half_width, max(estimate.mean - estimate.low, 0.0))
    return Estimate(estimate.mean, estimate.mean - half, min(1.0, estimate.mean + half), estimate.n, estimate.cv)


@dataclass(frozen=True, slots=True)
class Switching:
    """What taking turns costs against one reference at equal work; ``p`` is the corrected one of their throughputs.

    ``label``: of the arm that takes turns, where there are several; else empty.
    """

    label: str
    workload: str
    replicas: int
    reference: str
    extra_s: Estimate
    share: float
    p: float | None

    @property
    def significant(self) -> bool:
        """Whether that is more than chance."""
        return self.p is not None and self.p < SIGNIFICANCE

    @property
    def against(self) -> str:
        """The reference in words."""
        return "one process alone" if self.reference == "alone" else f"the same under {self.reference.upper()}"


def switching(comparison: Comparison) -> tuple[list[Switching], list[str]]:
    """Every cost that the measurements give, and why they do not give others."""
    costs: list[Switching] = []
    missing: list[str] = []
    taking_turns = [arm for arm in comparison.arms if mode_of(arm.sharing).takes_turns]
    for arm in taking_turns:
        label = arm.label if len(taking_turns) > 1 else ""
        neighbours = [
            other for other in comparison.arms if mode_of(other.sharing).takes_limits and comparison.alike(arm, other)
        ]
        for workload in comparison.workloads():
            alone = comparison.gpu_alone(arm, workload)
            busy = alone.estimates.get("gpu_utilization") if alone else None
            if busy and busy.mean < BUSY_PERCENT:
                missing.append(
                    f"{workload}: one replica alone keeps the GPU {busy.mean:.0f}% busy, so that sharing fills idle time, and "
                    "the cost of switching is unknown. A larger batch_size or execution: cuda-graph would keep it busy."
                )
            for key in (CellKey(workload, count) for count in arm.counts(workload) if count > 1):
                cell = arm.cells[key]
                if alone and busy and busy.mean >= BUSY_PERCENT:
                    costs += _against(comparison, label, cell, alone, "alone")
                for other in (other.cells[key] for other in neighbours if key in other.cells):
                    costs += _against(comparison, label, cell, other, other.mode)
    return costs, missing


def switching_answer(comparison: Comparison, _query: ComparisonQuery) -> QuestionAnswer:
    """What does context switching cost? Extra GPU time per request of time-slicing, against one process alone and against MPS."""
    costs, missing = switching(comparison)
    taking_turns = [arm for arm in comparison.arms if mode_of(arm.sharing).takes_turns]
    rows: list[dict[str, str | Entry]] = [
        {
            "Workload": cost.workload,
            **({"Run as": cost.label} if cost.label else {}),
            "Replicas": str(cost.replicas),
            "Against": cost.against,
            "Extra time per request": figure_entry(cost.extra_s, "s", least=-math.inf),
            "Of its time": f"{100 * cost.share:+.1f}%",
            "p": absent("a single run has no spread") if cost.p is None else f"{cost.p:.2g}",
        }
        for cost in costs
    ]
    if not any(place.replicas > 1 for arm in taking_turns for place in arm.cells):
        missing.insert(0, "Measure several replicas under time-slicing.")
    added = [
        (
            f"{cost.workload}, {replicas_in_words(cost.replicas)}{f', {cost.label}' if cost.label else ''}",
            f"vs {mode_name(cost.against)}",
            cost.extra_s.scaled(100 * cost.share / cost.extra_s.mean),
        )
        for cost in costs
        if cost.extra_s.mean > 0
    ]
    plot = _plot(comparison, "switching", "GPU time that switching adds to a request", "% more GPU time", added, rule=0)
    return QuestionAnswer(
        "switching",
        "What does context switching cost?",
        _switching_takeaway(costs, by_mode(".0f", added, "%").replace(" under vs ", " vs ")),
        Table.of(rows, words=len(rows[0]) - 3) if rows else None,
        plot,
        missing + comparison.missing_modes(),
    )


def _switching_takeaway(costs: Sequence[Switching], more: str) -> str:
    """The costs in ``more``, and where time was saved instead, each with how many are significant."""
    added = [cost.significant for cost in costs if cost.extra_s.mean > 0]
    saved = [cost.significant for cost in costs if cost.extra_s.mean < 0]
    parts = []
    if added:
        parts.append(f"adds GPU time to each request: {more}; {sum(added)} of {len(added)} costs are significant")
    if saved:
        parts.append(f"saves GPU time in {counted(len(saved), 'comparison')}, {sum(saved)} of them significantly")
    return f"Switching {'. It '.join(parts)}." if parts else ""


def _against(comparison: Comparison, label: str, cell: Cell, reference: Cell, name: str) -> list[Switching]:
    """By the contrast of the throughputs: a request takes as much longer as the throughput is lower."""
    contrast = None if cell.paced else comparison.contrasts.of(cell, reference, "throughput")
    if contrast is None:
        return []
    time_s = float(np.mean([1 / rate for rate in reference.figures("throughput")]))
    ratio = contrast.ratio
    low, high = (None if end is None else time_s * (end - 1) for end in (ratio.low, ratio.high))
    extra = Estimate(time_s * (ratio.mean - 1), low, high, ratio.n, None, ratio.note)
    return [Switching(label, cell.workload, cell.replicas, name, extra, ratio.mean - 1, contrast.corrected_p)]


def per_million(cell: Cell, value: Value | None) -> Estimate | None:
    """What a million inferences take by ``kwh_of``, ``gpu_hours_of`` or ``cost_of``, over the repeats; None where no run has it."""
    known = [figure for run in cell.used if value and (figure := value(run)) is not None]
    return t_interval(known, shared(cell)) if known else None


def kwh_of(run: MeasuredRun) -> float | None:
    """GPU energy of a million inferences."""
    energy_j, inputs = run.figures.get("energy"), run.data.manifest.inputs_per_request
    return energy_j / inputs * _MILLION / _J_PER_KWH if energy_j is not None and inputs else None


def gpu_hours_of(run: MeasuredRun) -> float | None:
    """GPU hours of a million inferences."""
    inputs = run.figures.get("inputs")
    return _MILLION / inputs / _S_PER_H * run.data.manifest.gpus_paid if inputs else None


def cost_of(query: ComparisonQuery) -> Value | None:
    """Gives the price of a million inferences of one run, None where it lacks what has a price: half of a cost is no cost."""

    def of_run(run: MeasuredRun) -> float | None:
        priced = ((query.price_per_gpu_hour, gpu_hours_of(run)), (query.price_per_kwh, kwh_of(run)))
        parts = [None if amount is None else price * amount for price, amount in priced if price is not None]
        return None if None in parts else sum(part for part in parts if part is not None)

    return of_run if query.priced else None


def prices(query: ComparisonQuery) -> str:
    """Those that were given, e.g. ``3.5 USD per GPU hour, 0.25 USD per kWh``; empty without any."""
    given = ((query.price_per_gpu_hour, "GPU hour"), (query.price_per_kwh, "kWh"))
    unit = f" {query.currency}" if query.currency else ""
    return ", ".join(f"{price:g}{unit} per {what}" for price, what in given if price is not None)


def price_answer(comparison: Comparison, query: ComparisonQuery) -> QuestionAnswer:
    """At what price? Energy, GPU time and money for a million inferences."""

    def column(value: Value | None, unit: str, name: str) -> ColumnOf:
        return lambda _arm, cell: figure_entry(per_million(cell, value), unit, cell.absent.get(name, "not measured"))

    columns = {"Energy": column(kwh_of, "kWh", "energy"), "GPU time": column(gpu_hours_of, "h", "throughput")}
    missing = []
    if not any(per_million(cell, kwh_of) for *_, cell in comparison.cells()):
        missing.append("Energy needs a GPU that reports its power.")
    if query.priced:
        columns["Cost"] = column(cost_of(query), query.currency, "energy")
    else:
        missing.append("For money, give prices: harness compare ... --price-per-gpu-hour 3.50 --price-per-kwh 0.25")
    return QuestionAnswer(
        "price",
        "At what price?",
        _cheapest(comparison, query),
        cell_table(comparison, columns),
        _price_plot(comparison, query),
        missing=missing,
    )


def _priced(comparison: Comparison, workload: str, query: ComparisonQuery) -> list[tuple[Estimate, str, int]]:
    """Price or energy of a million inferences with its mode and replicas, the lowest first."""
    value = cost_of(query) if query.priced else kwh_of
    known = [
        (estimate, mode_name(arm.label), count)
        for name, arm, count, cell in comparison.cells()
        if name == workload and (estimate := per_million(cell, value))
    ]
    return sorted(known, key=lambda priced: priced[0].mean)


def _cheapest(comparison: Comparison, query: ComparisonQuery) -> str:
    lowest = [
        (workload, priced[0]) for workload in comparison.workloads() if (priced := _priced(comparison, workload, query))
    ]
    unit = query.currency if query.priced else "kWh"
    parts = [
        f"{workload} {quantity(estimate.mean, unit)} ({mode}, {replicas_in_words(count)})"
        for workload, (estimate, mode, count) in lowest
    ]
    return (
        f"The lowest measured {'price' if query.priced else 'energy'} per million inferences: {', '.join(parts)}."
        if parts
        else ""
    )


def _price_plot(comparison: Comparison, query: ComparisonQuery) -> list[Picture]:
    unit = query.currency if query.priced else "kWh"
    panels = []
    for workload in comparison.workloads():
        order = labels(comparison)
        priced = sorted(_priced(comparison, workload, query), key=lambda way: (way[2], order.index(way[1])))
        rows = Row.of((replicas_in_words(count), mode, estimate, ()) for estimate, mode, count in priced)
        if rows:
            panels.append((f"{workload}: {unit}".rstrip(": "), rows))
    title = f"{'Price' if query.priced else 'Energy'} of a million inferences, by replicas"
    return [dots("comparison-price", title, panels, order=labels(comparison), columns=3)] if panels else []
