"""Overheads and neighbours as the report's tables show them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from harness.analysis.campaign import Key
from harness.analysis.format import DASH, Entry, figure_entry, number
from harness.analysis.metrics.catalogue import METRICS
from harness.analysis.questions.condition_overhead import (
    COMPARED,
    OF_NEIGHBOURS,
    Interference,
    NeighbourCell,
    Outcome,
    Overhead,
)
from harness.analysis.statistics import Estimate


@dataclass(frozen=True, slots=True)
class OverheadEntry(Entry):
    """One cell of the table with its outcome; ``reason`` says why it decides nothing, where it does not."""

    outcome: str = ""

    @property
    def text(self) -> str:
        """In one line, for Markdown."""
        return " ".join([self.mean, *(f"({interval})" for interval in self.small), self.outcome])


@dataclass(frozen=True, slots=True)
class OverheadRow:
    """One cell under one condition, with one entry per measure."""

    key: Key
    pairs: int
    items: list[OverheadEntry]


@dataclass(frozen=True, slots=True)
class NeighbourRow:
    """One workload beside a cell: figures, or a dash and the reason."""

    key: Key
    workload: str
    replicas: int
    items: list[Entry]


def tables(found: Interference | None) -> dict[str, Any]:
    """What the templates of the section take; nothing to show where the campaign names no conditions."""
    return {
        "interference": found,
        "overhead_titles": [METRICS[name].title for name in COMPARED],
        "overhead_rows": [_row(key, by_measure) for key, by_measure in found.overheads.items()] if found else [],
        "neighbour_titles": [METRICS[name].title for name in OF_NEIGHBOURS],
        "neighbour_rows": [_neighbour(one) for one in found.neighbours] if found else [],
    }


def documents(found: Interference | None) -> list[dict[str, Any]]:
    """The overheads for a program: one object per cell, condition and measure."""
    if found is None:
        return []
    return [
        {
            **key._asdict(),
            "baseline": found.baseline,
            "limit_percent": found.limit_percent,
            "measure": name,
            **_plain(one),
        }
        for key, by_measure in found.overheads.items()
        for name, one in by_measure.items()
    ]


def _plain(one: Overhead | str) -> dict[str, Any]:
    if isinstance(one, str):
        return {"outcome": Outcome.NOT_DECIDABLE.value, "why": one}
    return {
        "pairs": one.pairs,
        "ratio": dataclasses.asdict(one.ratio),
        "percent": dataclasses.asdict(one.percent),
        "outcome": one.outcome.value,
        "why": one.why,
    }


def _row(key: Key, by_measure: dict[str, Overhead | str]) -> OverheadRow:
    pairs = max((len(one.pairs) for one in by_measure.values() if isinstance(one, Overhead)), default=0)
    return OverheadRow(key, pairs, [_entry(by_measure[name]) for name in COMPARED])


def _entry(one: Overhead | str) -> OverheadEntry:
    if isinstance(one, str):
        return OverheadEntry(DASH, reason=one, outcome=Outcome.NOT_DECIDABLE.value)
    reason = one.why if one.outcome is Outcome.NOT_DECIDABLE else ""
    mean, percent = f"{number(one.percent.mean)} %", one.percent
    return OverheadEntry(mean, _interval(percent), reason, percent.mean, outcome=one.outcome.value)


def _interval(percent: Estimate) -> tuple[str, ...]:
    return () if percent.low is None or percent.high is None else (f"{number(percent.low)} to {number(percent.high)}",)


def _neighbour(one: NeighbourCell) -> NeighbourRow:
    units = {name: METRICS[name].shown_unit for name in OF_NEIGHBOURS}
    items = [figure_entry(one.estimates.get(name), unit, one.absent.get(name, "")) for name, unit in units.items()]
    return NeighbourRow(one.key, one.workload, one.replicas, items)
