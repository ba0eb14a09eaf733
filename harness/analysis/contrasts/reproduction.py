"""Whether a campaign that ran again gives the published figures: cell by cell agrees, differs, or cannot be decided.

Two stages (Stein 1945): the spread of the repeats that ran first, and never their means, says how many more it takes; then
the ratio is looked at once, and its interval keeps the 95% of one that was planned.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from harness.analysis.campaign import CampaignAnalysis, Cell, ConfigurationKey, pooled_cell, shared
from harness.analysis.comparability import environment
from harness.analysis.contrasts.contrast import Contrasts
from harness.analysis.format import DASH, in_one_unit, number, whole_interval
from harness.analysis.metrics.catalogue import ALL
from harness.analysis.statistics import Estimate, Outcome, runs_needed
from harness.analysis.statistics import within as judged
from harness.errors import UsageError
from harness.spec import MOST_REPEATS

COMPARED = ("throughput", "latency_p50_exact", "energy")
"""What decides unless told: the tail of a short recording varies more than these."""
WITHIN = 0.1


@dataclass(frozen=True, slots=True)
class Line:
    """One measure of one cell."""

    measure: str
    published: Estimate | None
    again: Estimate | None
    ratio: Estimate | None
    outcome: Outcome
    why: str = ""

    @property
    def words(self) -> list[str]:
        """Measure with its unit, published, here, ratio and outcome, for people."""
        means = [side.mean for side in (self.published, self.again) if side is not None]
        numbers, unit = in_one_unit(means, ALL[self.measure].unit) if means else ([], "")
        held = (
            DASH if self.ratio is None else f"{number(self.ratio.mean)} ({whole_interval(self.ratio) or 'no interval'})"
        )
        sides = [*numbers, DASH, DASH][:2]
        return [", ".join(filter(None, (self.measure, unit))), *sides, held, self.outcome.value]

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        intervals = {
            name: estimate and {"mean": estimate.mean, "ci95_low": estimate.low, "ci95_high": estimate.high}
            for name, estimate in (("published", self.published), ("again", self.again), ("ratio", self.ratio))
        }
        unit = ALL[self.measure].unit
        return {"measure": self.measure, "unit": unit, **intervals, "outcome": self.outcome.value, "why": self.why}


@dataclass(frozen=True, slots=True)
class Reproduced:
    """One cell of the published campaign: it differs where a measure does, and agrees where all do."""

    key: ConfigurationKey
    mode: str
    lines: list[Line]

    @property
    def outcome(self) -> Outcome:
        """Of all its measures."""
        return together(line.outcome for line in self.lines)


@dataclass(frozen=True, slots=True)
class Reproduction:
    """A published campaign and what came of it here."""

    environment: list[str]
    within: float
    cells: list[Reproduced]

    @property
    def outcome(self) -> Outcome:
        """Of all cells."""
        return together(cell.outcome for cell in self.cells)

    def counted(self, outcome: Outcome) -> int:
        """Cells with this outcome."""
        return sum(cell.outcome is outcome for cell in self.cells)

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        cells = [
            {**cell.key._asdict(), "outcome": cell.outcome.value, "measures": [line.to_dict() for line in cell.lines]}
            for cell in self.cells
        ]
        head = {"outcome": self.outcome.value, "within": self.within, "environment": self.environment}
        return {**head, "cells": cells}


def together(outcomes: Iterable[Outcome]) -> Outcome:
    """What several say: one that differs decides, and one that cannot be decided stands before those that agree."""
    every = set(outcomes)
    if Outcome.DIFFERS in every:
        return Outcome.DIFFERS
    return Outcome.AGREES if every == {Outcome.AGREES} else Outcome.INCONCLUSIVE


def wanted(published: CampaignAnalysis, measures: Sequence[str] | None = None, *, within: float = WITHIN) -> list[str]:
    """What is to be compared, which is known before anything runs: the measures, or those of COMPARED that were published.

    Raises:
        UsageError: a tolerance or a measure that cannot be, or that no published cell has.
    """
    if not 0 < within < 1:
        raise UsageError(f"a tolerance of {100 * within:g}% cannot be.", advice="Give one above 0 and below 100%.")
    unknown = [name for name in measures or () if name not in ALL]
    if unknown:
        raise UsageError(f"{', '.join(unknown)} is not a metric of a report.", advice=f"Metrics are {', '.join(ALL)}.")
    had = [name for name in ALL if any(name in cell.estimates for cell in published.cells)]
    absent = [name for name in measures or () if name not in had]
    if absent:
        raise UsageError(
            f"the published campaign has no {', '.join(absent)} to compare with.",
            advice=f"It has {', '.join(had)}." if had else "None of its runs can be used.",
        )
    return list(measures or [name for name in COMPARED if name in had] or COMPARED)


def more_repeats(
    published: CampaignAnalysis, again: CampaignAnalysis, measures: Sequence[str], *, within: float, most: int
) -> dict[ConfigurationKey, int]:
    """How many more repeats of which cells it takes here before each is likely to be decided, from their spread alone.

    ``measures``: as ``wanted`` gives them. ``within``: relative difference that counts as none. ``most``: repeats of a cell that there
    may be here; cells that so many cannot decide are left out.
    """
    here = {cell.key: cell for cell in again.cells}
    wanting: dict[ConfigurationKey, int] = {}
    for cell in published.cells:
        if cell.key in here:
            more = [_more(cell, here[cell.key], name, within, most) for name in measures if name in cell.estimates]
            if None not in more and any(more):
                wanting[cell.key] = max(filter(None, more))
    return wanting


def _more(published: Cell, again: Cell, name: str, within: float, most: int) -> int | None:
    figures = again.figures(name)
    try:
        needed = runs_needed(figures, published.figures(name), within, most, shared(again, published))
    except ValueError:  # it is missing on a side, or not positive
        return None
    return None if needed is None else needed - len(figures)


def reproduction(
    published: CampaignAnalysis,
    again: CampaignAnalysis,
    *,
    more: Sequence[CampaignAnalysis] = (),
    within: float = WITHIN,
    measures: Sequence[str] | None = None,
) -> Reproduction:
    """Hold every published cell against the same cell of the campaign that ran again, and of those with its further repeats (``more``).

    ``within``: relative difference that counts as none, e.g. 0.1 for 10%. ``measures``: what is compared, where the published cell
    has it; None: those of COMPARED. Raises UsageError for a tolerance or a measure that cannot be, or campaigns without a cell in
    common.
    """
    measures = wanted(published, measures, within=within)
    here = {cell.key: cell for cell in again.cells}
    if not any(cell.key in here for cell in published.cells):
        raise UsageError(
            f"{again.folder} has no cell of the published campaign: another workload, sharing mode or replica count.",
            advice="Give a run of the same campaign file.",
        )
    contrasts = Contrasts([published, again, *more])
    cells = []
    for cell in published.cells:
        further = [other for analysis in more for other in analysis.cells if other.key == cell.key]
        cells.append(
            Reproduced(cell.key, cell.mode, _lines(contrasts, cell, here.get(cell.key), further, within, measures))
        )
    then, now = (
        environment(run.data.manifest for analysis in side for run in analysis.experiments)
        for side in ([published], [again, *more])
    )
    unlike = [f"{name}: {then[name]} published, {now[name]} here." for name in then if then[name] != now[name]]
    return Reproduction(unlike, within, cells)


def _lines(
    contrasts: Contrasts,
    published: Cell,
    again: Cell | None,
    further: Sequence[Cell],
    within: float,
    measures: Sequence[str],
) -> list[Line]:
    compared = [name for name in measures if name in published.estimates]
    if not compared:
        why = f"not published: {published.absent.get(measures[0], 'no run')}"
        return [Line(measures[0], None, None, None, Outcome.INCONCLUSIVE, why)]
    if again is None or not again.used:
        why = "it did not run here" if again is None or not again.experiments else "no run here can be used"
        return [Line(name, published.estimates[name], None, None, Outcome.INCONCLUSIVE, why) for name in compared]
    every = pooled_cell([again, *further])
    return [_line(contrasts, published, every, name, within, len(again.figures(name))) for name in compared]


def _line(contrasts: Contrasts, published: Cell, again: Cell, name: str, within: float, planned: int) -> Line:
    first, second = published.estimates[name], again.estimates.get(name)
    if second is None:
        return Line(name, first, None, None, Outcome.INCONCLUSIVE, again.absent.get(name, "not measured here"))
    contrast = contrasts.of(published, again, name, first=planned)
    if contrast is None:
        return Line(name, first, second, None, Outcome.INCONCLUSIVE, "a ratio needs positive means")
    outcome = judged(contrast.ratio, within)
    why = ""
    if outcome is Outcome.INCONCLUSIVE:
        why = contrast.ratio.note if contrast.p is None else _undecided(published, again, name, within)
    return Line(name, first, second, contrast.ratio, outcome, why)


def _undecided(published: Cell, again: Cell, name: str, within: float) -> str:
    ran, more = len(again.figures(name)), _more(published, again, name, within, MOST_REPEATS)
    if more is None:
        return (
            f"too noisy: more repeats here cannot settle {name} to {100 * within:g}% ({len(published.figures(name))} published and "
            f"{ran} here)"
        )
    total = f", about {ran + more} in all" if more else ""
    return f"more repeats should settle {name} to {100 * within:g}%{total}"
