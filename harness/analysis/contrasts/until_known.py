"""Whether more repeats are needed: every question of a campaign judged after each block of one repeat of its cells.

A question is one figure of one cell held against that of its reference, which has the first sharing mode (or the first condition)
with the same workload and replicas: is it another figure, or practically the same? Either the interval of the ratio leaves out 1, or
it lies inside what counts as equal; one of the two comes when it is narrow enough. A cell without a counterpart is asked for a
narrow interval alone.

Who looks after each block and stops at the first answer errs more often than one who looks once. So the error that ``decide``
leaves is divided: evenly over the questions, and over the looks in proportion to 1/block; every interval takes its share
(Bonferroni; group sequential with alpha spending, Lan and DeMets 1983). The intervals are Student's and Welch's over whole runs.
Everything follows from the figures of the finished runs, so that a campaign that was killed goes on as it would have.
``tests/benchmarks/until_known.py`` holds the error against simulated campaigns of known truth.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum

from harness.analysis.format import number, whole_interval
from harness.analysis.statistics import SIGNIFICANCE, Estimate, Outcome, ratio, student, t_interval, within
from harness.spec import FIRST_LOOK, CellSpec, UntilKnown

HOPELESS_FROM = 5
"""Repeats before a question may be given up: fewer do not tell the spread."""
FAILED_IN_A_ROW = 2
"""Runs of a cell without the figure, after which no more are tried."""
_CHI_TAIL = 1.96

Figures = Mapping[str, float]
"""Measure to its value in one run; empty where the run is INVALID."""


class State(StrEnum):
    """What became of a question."""

    OPEN = "open"
    DIFFERENT = "different"
    EQUAL = "practically equal"
    KNOWN = "known"
    HOPELESS = "given up"
    """With max repeats like those so far there would be no answer."""
    NOT_MEASURED = "not measured"
    MAX = "not known"
    """Nor will it be: these were max repeats."""


@dataclass(frozen=True, slots=True)
class RepeatQuestion:
    """One figure of one cell, with a reference to hold it against or for itself, and where it stands after so many repeats.

    The interval of the estimate has the question's share of the error.
    """

    metric: str
    cell: CellSpec
    reference: CellSpec | None
    state: State = State.OPEN
    repeats: int = 0
    estimate: Estimate | None = None

    @property
    def sides(self) -> list[CellSpec]:
        """The cell, and its reference if it has one."""
        return [self.cell, *([self.reference] if self.reference else [])]

    @property
    def sentence(self) -> str:
        """For people."""
        setups = [f"{side.mode} {side.condition_name}".rstrip() for side in self.sides]
        what = f"{self.cell.workload.name} r{self.cell.replicas} {' against '.join(setups)}: {self.metric} is"
        if not self.repeats:
            return f"{what} open; the first look is after {FIRST_LOOK} repeats."
        times, interval = " times" if self.reference else "", whole_interval(self.estimate) if self.estimate else ""
        known = f" ({number(self.estimate.mean)}{times}, {interval})" if self.estimate and interval else ""
        return f"{what} {self.state}{known}, after {self.repeats} repeats."


@dataclass(slots=True)
class RepeatProgress:
    """How far the repeats have come. ``following``: cells of the block that comes next; empty: no more is needed."""

    blocks: int
    verdicts: list[RepeatQuestion]
    following: list[CellSpec] = field(default_factory=list)

    def sentences(self) -> list[str]:
        """Where each question stands, and all of them together."""
        return [*(verdict.sentence for verdict in self.verdicts), self.summary]

    @property
    def summary(self) -> str:
        """Where it stands, in a sentence."""
        counts = {state: sum(verdict.state is state for verdict in self.verdicts) for state in State}
        states = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
        return f"Whole blocks of repeats: {self.blocks}; questions: {states}."


def share_of_look(most: int, block: int) -> float:
    """Share of the error that the look after this block may take, where there are looks from the third block to the last."""
    return 1 / max(block, FIRST_LOOK) / sum(1 / look for look in range(FIRST_LOOK, most + 1))


def questions(cells: Sequence[CellSpec], metrics: Sequence[str]) -> list[RepeatQuestion]:
    """What a campaign asks: each cell against the first sharing mode, limits of MPS and condition that its place has."""
    first: dict[tuple[str, ...], CellSpec] = {}
    pairs: list[tuple[CellSpec, CellSpec]] = []
    for cell in cells:
        place, condition, sharing = (cell.workload.name, str(cell.replicas)), cell.condition_name, cell.sharing.value
        references = [
            first.setdefault((*place, "condition", condition), cell),
            first.setdefault((*place, "mode", cell.mode), cell),
            first.setdefault((*place, "limits", sharing, condition), cell),
        ]
        others = {id(reference): reference for reference in references if reference is not cell}
        pairs += [(cell, reference) for reference in others.values()]
    compared = {id(cell) for pair in pairs for cell in pair}
    alone = ((cell, None) for cell in cells if id(cell) not in compared)
    return [RepeatQuestion(metric, cell, reference) for cell, reference in (*pairs, *alone) for metric in metrics]


def judge(wanted: UntilKnown, cells: Sequence[CellSpec], runs: Mapping[str, Figures]) -> RepeatProgress:
    """Go through the blocks as they were run, and look after each; ``runs``: figures of the finished experiments by id."""
    verdicts = questions(cells, [metric.value for metric in wanted.compare])
    taken: dict[str, list[Figures]] = {cell.experiment_id(0): [] for cell in cells}
    for block in range(1, wanted.max + 1):
        needed = _needed(cells, verdicts)
        if not all(cell.experiment_id(block) in runs for cell in needed):
            return RepeatProgress(block - 1, verdicts, needed)
        for cell in needed:
            taken[cell.experiment_id(0)].append(runs[cell.experiment_id(block)])
        if block >= FIRST_LOOK:
            error = (1 - wanted.decide) * share_of_look(wanted.max, block) / len(verdicts)
            share = error / SIGNIFICANCE
            verdicts = [
                _look(wanted, block, share, taken, question) if question.state is State.OPEN else question
                for question in verdicts
            ]
        if not _needed(cells, verdicts):
            return RepeatProgress(block, verdicts)
    return RepeatProgress(wanted.max, verdicts)


def _look(
    wanted: UntilKnown,
    block: int,
    share: float,
    taken: Mapping[str, Sequence[Figures]],
    question: RepeatQuestion,
) -> RepeatQuestion:
    """An open question after this block; ``share``: of the usual 5 %, what its interval may err in; ``taken``: runs by cell."""
    sides, metric = [taken[side.experiment_id(0)] for side in question.sides], question.metric
    if any(all(metric not in run for run in runs[-FAILED_IN_A_ROW:]) for runs in sides):
        return replace(question, state=State.NOT_MEASURED, repeats=block)
    figures = [[run[metric] for run in runs if metric in run] for runs in sides]
    estimate = None
    with suppress(ValueError):
        estimate = t_interval(figures[0], share) if len(figures) == 1 else ratio(figures[0], figures[1], share)
    state = State.OPEN
    if estimate is None or estimate.low is None or estimate.high is None or estimate.mean <= 0:
        state = State.HOPELESS if block >= HOPELESS_FROM else State.OPEN
    elif len(figures) == 1 and estimate.high - estimate.mean <= wanted.within * estimate.mean:
        state = State.KNOWN
    elif len(figures) > 1 and not estimate.low <= 1 <= estimate.high:
        state = State.DIFFERENT
    elif len(figures) > 1 and within(estimate, wanted.within) is Outcome.AGREES:
        state = State.EQUAL
    elif block >= HOPELESS_FROM and _hopeless(wanted, block, share, estimate.mean, figures):
        state = State.HOPELESS
    if state in {State.OPEN, State.HOPELESS} and block == wanted.max:
        state = State.MAX
    return replace(question, state=state, repeats=block, estimate=estimate)


def _hopeless(wanted: UntilKnown, block: int, share: float, mean: float, figures: Sequence[Sequence[float]]) -> bool:
    """Whether max repeats would not do, were the figure to stay and the spread the least that it may be."""
    most = wanted.max
    share *= share_of_look(most, most) / share_of_look(most, block)
    half = student(len(figures) * (most - 1), share) * math.sqrt(_least_variance(figures) / most)
    if len(figures) == 1:
        return half > wanted.within
    effect = abs(math.log(mean))
    return half > max(effect, math.log1p(wanted.within) - effect)


def _needed(cells: Sequence[CellSpec], verdicts: Sequence[RepeatQuestion]) -> list[CellSpec]:
    """Cells about which something is still asked."""
    asked_about = {id(side) for question in verdicts if question.state is State.OPEN for side in question.sides}
    return [cell for cell in cells if id(cell) in asked_about]


def _least_variance(figures: Sequence[Sequence[float]]) -> float:
    """Sum of the sides' squared coefficients of variation, at the low end of its 95 % interval (Wilson and Hilferty 1931)."""
    freedom = sum(len(runs) - 1 for runs in figures)
    chi_square = freedom * (1 - 2 / (9 * freedom) + _CHI_TAIL * math.sqrt(2 / (9 * freedom))) ** 3
    return sum((t_interval(runs).cv or 0.0) ** 2 for runs in figures) * freedom / chi_square
