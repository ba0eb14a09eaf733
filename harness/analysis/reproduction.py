"""Whether a campaign that ran again gives the published figures: cell by cell agrees, differs, or cannot be decided."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from harness.analysis.campaign import CampaignAnalysis, Cell, Key
from harness.analysis.comparability import environment
from harness.analysis.compare import relative
from harness.analysis.format import number, whole_interval, with_interval
from harness.analysis.measures import ALL
from harness.analysis.statistics import Estimate
from harness.errors import UsageError

COMPARED = ("throughput", "latency_p50_exact", "energy")
"""What decides unless told: the tail of a short recording varies more than these."""
WITHIN = 0.1


class Outcome(StrEnum):
    """Of one measure, one cell, or all of them."""

    AGREES = "agrees"
    """The whole 95 % interval of the ratio lies within the tolerance."""
    DIFFERS = "differs"
    """It lies outside altogether."""
    UNDECIDED = "not decidable"
    """Neither, or there is none."""


@dataclass(frozen=True, slots=True)
class Line:
    """One measure of one cell.

    Attributes:
        measure: its name.
        published, again: the two means; None where one is missing.
        ratio: of the second over the first, with its 95 % interval; None where one is missing or not positive.
        outcome: what that says.
        why: it cannot be decided; empty otherwise.
    """

    measure: str
    published: Estimate | None
    again: Estimate | None
    ratio: Estimate | None
    outcome: Outcome
    why: str = ""

    @property
    def words(self) -> list[str]:
        """Measure, published, here, ratio and outcome, for people."""
        unit = ALL[self.measure].unit
        sides = ["-" if side is None else with_interval(side, unit) for side in (self.published, self.again)]
        held = (
            "-" if self.ratio is None else f"{number(self.ratio.mean)} ({whole_interval(self.ratio) or 'no interval'})"
        )
        return [self.measure, *sides, held, self.outcome.value + (f": {self.why}" if self.why else "")]


@dataclass(frozen=True, slots=True)
class Reproduced:
    """One cell of the published campaign: it differs where a measure does, and agrees where all do."""

    key: Key
    lines: list[Line]

    @property
    def outcome(self) -> Outcome:
        """Of all its measures."""
        return together(line.outcome for line in self.lines)


@dataclass(frozen=True, slots=True)
class Reproduction:
    """A published campaign and what came of it here.

    Attributes:
        environment: what is not the same, one sentence each, the machine first.
        within: relative difference that counts as none.
        cells: in the published campaign's order.
    """

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
        return {
            "outcome": self.outcome.value,
            "within": self.within,
            "environment": self.environment,
            "cells": [
                {
                    **cell.key._asdict(),
                    "outcome": cell.outcome.value,
                    "measures": [_plain(line) for line in cell.lines],
                }
                for cell in self.cells
            ],
        }


def together(outcomes: Iterator[Outcome]) -> Outcome:
    """What several say: one that differs decides, and one that cannot be decided stands before those that agree."""
    every = set(outcomes)
    if Outcome.DIFFERS in every:
        return Outcome.DIFFERS
    return Outcome.AGREES if every == {Outcome.AGREES} else Outcome.UNDECIDED


def wanted(published: CampaignAnalysis, measures: Sequence[str] | None = None, *, within: float = WITHIN) -> list[str]:
    """What is to be compared, which is known before anything runs: the measures, or those of COMPARED that were published.

    Raises:
        UsageError: a tolerance or a measure that cannot be, or that no published cell has.
    """
    if not 0 < within < 1:
        raise UsageError(f"a tolerance of {100 * within:g} % cannot be.", advice="Give one above 0 and below 100 %.")
    unknown = [name for name in measures or () if name not in ALL]
    if unknown:
        raise UsageError(f"{', '.join(unknown)} is no figure of a report.", advice=f"Figures are {', '.join(ALL)}.")
    had = [name for name in ALL if any(name in cell.estimates for cell in published.cells)]
    absent = [name for name in measures or () if name not in had]
    if absent:
        raise UsageError(
            f"the published campaign has no {', '.join(absent)} to compare with.",
            advice=f"It has {', '.join(had)}." if had else "None of its runs can be used.",
        )
    return list(measures or [name for name in COMPARED if name in had] or COMPARED)


def reproduction(
    published: CampaignAnalysis,
    again: CampaignAnalysis,
    *,
    within: float = WITHIN,
    measures: Sequence[str] | None = None,
) -> Reproduction:
    """Hold every published cell against the same cell of the campaign that ran again.

    Args:
        published: the campaign as it was published.
        again: the other.
        within: relative difference that counts as none, e.g. 0.1 for 10 %.
        measures: what is compared, where the published cell has it; None: those of COMPARED.

    Raises:
        UsageError: a tolerance or a measure that cannot be, or campaigns without a cell in common.
    """
    measures = wanted(published, measures, within=within)
    here = {cell.key: cell for cell in again.cells}
    if not any(cell.key in here for cell in published.cells):
        raise UsageError(
            f"{again.folder} has no cell of the published campaign: another workload, sharing mode or replica count.",
            advice="Give a run of the same campaign file, or leave --against out.",
        )
    cells = [Reproduced(cell.key, _lines(cell, here.get(cell.key), within, measures)) for cell in published.cells]
    then, now = (environment(run.data.manifest for run in analysis.experiments) for analysis in (published, again))
    unlike = [f"{name}: {then[name]} published, {now[name]} here." for name in then if then[name] != now[name]]
    return Reproduction(unlike, within, cells)


def _lines(published: Cell, again: Cell | None, within: float, measures: Sequence[str]) -> list[Line]:
    compared = [name for name in measures if name in published.estimates]
    if not compared:
        name = measures[0]
        return [
            Line(name, None, None, None, Outcome.UNDECIDED, f"not published: {published.absent.get(name, 'no run')}")
        ]
    if again is None or not again.used:
        why = "it did not run here" if again is None or not again.experiments else "no run here can be used"
        return [Line(name, published.estimates[name], None, None, Outcome.UNDECIDED, why) for name in compared]
    return [_line(published, again, name, within) for name in compared]


def _line(published: Cell, again: Cell, name: str, within: float) -> Line:
    first, second = published.estimates[name], again.estimates.get(name)
    if second is None:
        return Line(name, first, None, None, Outcome.UNDECIDED, again.absent.get(name, "not measured here"))
    held = relative(again, published, name)
    if held is None:
        return Line(name, first, second, None, Outcome.UNDECIDED, "a ratio needs positive means")
    if held.low is None or held.high is None:
        return Line(name, first, second, held, Outcome.UNDECIDED, held.note)
    lowest, highest = 1 / (1 + within), 1 + within
    if lowest <= held.low and held.high <= highest:
        return Line(name, first, second, held, Outcome.AGREES)
    if held.high < lowest or held.low > highest:
        return Line(name, first, second, held, Outcome.DIFFERS)
    return Line(name, first, second, held, Outcome.UNDECIDED, f"more repeats would tell within {100 * within:g} %")


def _plain(line: Line) -> dict[str, Any]:
    def interval(estimate: Estimate | None) -> dict[str, float | None] | None:
        if estimate is None:
            return None
        return {"mean": estimate.mean, "ci95_low": estimate.low, "ci95_high": estimate.high}

    return {
        "measure": line.measure,
        "unit": ALL[line.measure].unit,
        "published": interval(line.published),
        "again": interval(line.again),
        "ratio": interval(line.ratio),
        "outcome": line.outcome.value,
        "why": line.why,
    }
