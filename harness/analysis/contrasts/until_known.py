"""Whether more repeats are needed: every question of a campaign judged after each block of one repeat of its cells.

A question is one figure of one cell held against that of its reference, which has the first sharing mode (or the first condition)
with the same workload and replicas: is it another figure, or practically the same? Either the interval of the ratio leaves out 1, or
it lies inside what counts as equal; one of the two comes when it is narrow enough. A cell without a counterpart is asked for a
narrow interval alone.

``question: best-mode`` asks less: which sharing mode is best by each metric, with the most replicas that several modes have. All
questions are judged anew after every block from the second on, as ``Contrasts`` judges them in the end: the best mode against
every other, by the careful p of Welch's test, corrected for the number of questions (Holm).

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
from statistics import fmean

from harness.analysis.format import mode_name, number, percent_more, replicas_in_words, whole_interval
from harness.analysis.metrics.catalogue import ALL
from harness.analysis.statistics import (
    SIGNIFICANCE,
    Estimate,
    Outcome,
    corrected,
    ratio,
    student,
    t_interval,
    unpaired,
    within,
)
from harness.errors import counted
from harness.sharing.modes import mode_of
from harness.spec import CellSpec, UntilKnown

HOPELESS_FROM = 5
"""Repeats before a question may be given up: fewer do not tell the spread."""
FAILED_IN_A_ROW = 2
"""Runs of a cell without the figure, after which no more are tried."""
MIN_RUNS = 2
"""That have the metric; of one there is no spread."""
_CHI_TAIL = 1.96

Figures = Mapping[str, float]
"""Measure to its value in one run; empty where the run is INVALID."""


class State(StrEnum):
    """What became of a question."""

    OPEN = "open"
    DIFFERENT = "different"
    BEST = "best"
    """One mode is significantly better than every other."""
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

    The interval of the estimate has the question's share of the error. ``best``: the question is which mode is best; then ``cell`` is the
    best so far, and ``reference`` the one after it; ``p`` is the largest of the best against any other, before it is corrected for
    the other questions. ``first_look``: repeats of every cell before it. ``several``: the campaign has several modes, which are then named.
    """

    metric: str
    cell: CellSpec
    reference: CellSpec | None
    state: State = State.OPEN
    repeats: int = 0
    estimate: Estimate | None = None
    best: bool = False
    p: float = 1.0
    first_look: int = 0
    several: bool = True

    @property
    def sides(self) -> list[CellSpec]:
        """The cell, and its reference if it has one."""
        return [self.cell, *([self.reference] if self.reference else [])]

    @property
    def sentence(self) -> str:
        """For people."""
        if self.best:
            return self._of_best
        setups = [f"{side.mode if self.several else ''} {side.condition_name}".strip() for side in self.sides]
        cell = f"{self.cell.workload.name} r{self.cell.replicas} {' against '.join(setups)}".rstrip()
        what = f"{cell}: {self.metric} is"
        if not self.repeats:
            return f"{what} open; the first look is after {self.first_look} repeats."
        times, interval = " times" if self.reference else "", whole_interval(self.estimate) if self.estimate else ""
        known = f" ({number(self.estimate.mean)}{times}, {interval})" if self.estimate and interval else ""
        return f"{what} {self.state}{known}, after {self.repeats} repeats."

    @property
    def _of_best(self) -> str:
        where = f"{self.cell.workload.name}, {replicas_in_words(self.cell.replicas)}, {_short(self.metric)}"
        if not self.repeats:
            return f"{where}: open; the first look is after {self.first_look} repeats."
        after = f"after {self.repeats} repeats"
        if self.reference is None or self.estimate is None:
            return f"{where}: {self.state}, {after}."
        mode, more = mode_name(self.cell.mode), f"{percent_more(self.estimate)} vs {mode_name(self.reference.mode)}"
        said = f"{mode} is best, {more}" if self.state is State.BEST else f"{self.state} ({mode} {more})"
        return f"{where}: {said}, {after}."


@dataclass(slots=True)
class RepeatProgress:
    """How far the repeats have come.

    ``following``: cells of the block that comes next; empty: no more is needed. ``rivals``: where the best mode is asked for, the cells
    that it is looked for among, a list for each workload and condition.
    """

    blocks: int
    verdicts: list[RepeatQuestion]
    following: list[CellSpec] = field(default_factory=list)
    rivals: list[list[CellSpec]] = field(default_factory=list)

    def sentences(self) -> list[str]:
        """Where each question stands, and all of them together."""
        return [*(verdict.sentence for verdict in self.verdicts), self.summary]

    @property
    def news(self) -> list[str]:
        """For who watches: where it stands; of the best mode what is known of each metric, once it was looked at."""
        best = [verdict.sentence for verdict in self.verdicts if verdict.best and verdict.state is not State.OPEN]
        still = [_short(verdict.metric) for verdict in self.verdicts if verdict.best and verdict.state is State.OPEN]
        if not best and not still:
            return [self.summary]
        return [
            *best,
            *(
                [f"after {counted(self.blocks, 'block')}, not yet known: {', '.join(still)}"]
                if still and self.blocks
                else []
            ),
        ]

    @property
    def summary(self) -> str:
        """Where it stands, in a sentence."""
        counts = {state: sum(verdict.state is state for verdict in self.verdicts) for state in State}
        states = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
        return f"Whole blocks of repeats: {self.blocks}; questions: {states}."


def _short(metric: str) -> str:
    """``p99`` of ``latency_p99_exact``."""
    return metric.removeprefix("latency_").removesuffix("_exact")


def share_of_look(wanted: UntilKnown, block: int) -> float:
    """Share of the error that the look after this block may take, where there are looks from the first to the last block."""
    first = wanted.first_look
    return 1 / max(block, first) / sum(1 / look for look in range(first, wanted.max + 1))


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
    several = len({cell.mode for cell in cells}) > 1
    return [
        RepeatQuestion(metric, cell, reference, several=several)
        for cell, reference in (*pairs, *alone)
        for metric in metrics
    ]


def judge(wanted: UntilKnown, cells: Sequence[CellSpec], runs: Mapping[str, Figures]) -> RepeatProgress:
    """Go through the blocks as they were run, and look after each; ``runs``: figures of the finished experiments by id."""
    if wanted.best_mode:
        return _judge_modes(wanted, cells, runs)
    verdicts = [
        replace(question, first_look=wanted.first_look)
        for question in questions(cells, [metric.value for metric in wanted.compare])
    ]
    taken: dict[str, list[Figures]] = {cell.experiment_id(0): [] for cell in cells}
    for block in range(1, wanted.max + 1):
        needed = _needed(cells, verdicts)
        if not all(cell.experiment_id(block) in runs for cell in needed):
            return RepeatProgress(block - 1, verdicts, needed)
        for cell in needed:
            taken[cell.experiment_id(0)].append(runs[cell.experiment_id(block)])
        if block >= wanted.first_look:
            error = (1 - wanted.decide) * share_of_look(wanted, block) / len(verdicts)
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
    """An open question after this block; ``share``: of the usual 5%, what its interval may err in; ``taken``: runs by cell."""
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
    share *= share_of_look(wanted, most) / share_of_look(wanted, block)
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
    """Sum of the sides' squared coefficients of variation, at the low end of its 95% interval (Wilson and Hilferty 1931)."""
    freedom = sum(len(runs) - 1 for runs in figures)
    chi_square = freedom * (1 - 2 / (9 * freedom) + _CHI_TAIL * math.sqrt(2 / (9 * freedom))) ** 3
    return sum((t_interval(runs).cv or 0.0) ** 2 for runs in figures) * freedom / chi_square


def share_of_error(wanted: UntilKnown, block: int) -> float:
    """Of the usual 5%, what all intervals of the look after this block may err in together."""
    error = 1 - wanted.decide if wanted.best_mode else SIGNIFICANCE
    return share_of_look(wanted, block) * error / SIGNIFICANCE


def _judge_modes(wanted: UntilKnown, cells: Sequence[CellSpec], runs: Mapping[str, Figures]) -> RepeatProgress:
    """Which mode is best: whole blocks until the first look, then blocks of the modes of which something is open."""
    taken: dict[str, list[Figures]] = {cell.experiment_id(0): [] for cell in cells}
    groups, needed = rivals(cells), list(cells)
    verdicts = [_first(wanted, group, metric.value) for group in groups for metric in wanted.compare]
    for block in range(1, wanted.max + 1):
        # Of a later block a budget may have had time for what decides alone.
        decisive = needed if block == 1 else [cell for cell in needed if any(cell in group for group in groups)]
        if not all(cell.experiment_id(block) in runs for cell in decisive):
            return RepeatProgress(block - 1, verdicts, needed, groups)
        for cell in needed:
            if cell.experiment_id(block) in runs:
                taken[cell.experiment_id(0)].append(runs[cell.experiment_id(block)])
        measurable = [cell for cell in cells if any(taken[cell.experiment_id(0)])]
        groups, needed = rivals(measurable or cells), measurable
        by_group = [(group, _first(wanted, group, metric.value)) for group in groups for metric in wanted.compare]
        verdicts = [question for _, question in by_group]
        if block >= wanted.first_look:
            ranked = [(_ranked(taken, group, question), question) for group, question in by_group]
            first = [_look_at_modes(wanted, block, cells_of, question, []) for cells_of, question in ranked]
            verdicts = [
                _look_at_modes(wanted, block, cells_of, question, [it.p for it in first if it is not first[place]])
                for place, (cells_of, question) in enumerate(ranked)
            ]
            open_groups = [group for (group, _), now in zip(by_group, verdicts, strict=True) if now.state is State.OPEN]
            needed = [cell for cell in measurable if any(cell in group for group in open_groups)]
        if not needed:
            return RepeatProgress(block, verdicts, [], groups)
    return RepeatProgress(wanted.max, verdicts, [], groups)


def rivals(cells: Sequence[CellSpec]) -> list[list[CellSpec]]:
    """Cells that differ in the mode alone, for each workload and condition: with the most replicas that several modes share a GPU among.

    Where there is but one such mode, its cell with the most replicas against whatever has a GPU of its own.
    """
    places: dict[tuple[str, str], list[CellSpec]] = {}
    for cell in cells:
        places.setdefault((cell.workload.name, cell.condition_name), []).append(cell)
    groups = []
    for place in places.values():
        shared = [cell for cell in place if not mode_of(cell.sharing).own_gpu]
        by_count = [[cell for cell in shared if cell.replicas == count] for count in {cell.replicas for cell in shared}]
        several = [group for group in by_count if len(group) > 1]
        if several:
            groups.append(max(several, key=lambda group: group[0].replicas))
        else:
            alone = [cell for cell in place if cell not in shared][:1]
            groups.append(alone + sorted(shared, key=lambda cell: cell.replicas)[-1:])
    return groups


def _first(wanted: UntilKnown, group: Sequence[CellSpec], metric: str) -> RepeatQuestion:
    """A question about the modes of a group before anything is known."""
    reference = group[1] if len(group) > 1 else None
    return RepeatQuestion(metric, group[0], reference, best=True, first_look=wanted.first_look)


Ranked = list[tuple[CellSpec, list[float]]]
"""Cells with one metric of each run that has it, the best first."""


def _ranked(taken: Mapping[str, Sequence[Figures]], group: Sequence[CellSpec], question: RepeatQuestion) -> Ranked:
    """The modes of a group by the question's metric; as listed where one of them has too few runs with it."""
    metric = question.metric
    values = [(cell, [run[metric] for run in taken[cell.experiment_id(0)] if metric in run]) for cell in group]
    if any(len(figures) < MIN_RUNS for _, figures in values):
        return values
    return sorted(values, key=lambda pair: fmean(pair[1]), reverse=bool(ALL[metric].higher_is_better))


def _look_at_modes(
    wanted: UntilKnown, block: int, ranked: Ranked, question: RepeatQuestion, others: Sequence[float]
) -> RepeatQuestion:
    """Which mode is best after this block, and whether that is certain; ``others``: p of the other questions."""
    share = share_of_error(wanted, block)
    (best, figures), *rivals_of_it = ranked
    question = replace(question, repeats=min(len(values) for _, values in ranked))
    if question.repeats < MIN_RUNS:
        return replace(question, state=State.NOT_MEASURED)
    if not rivals_of_it:
        alone = t_interval(figures, share / (len(others) + 1))
        known = alone.half_width is not None and alone.half_width <= wanted.within * alone.mean
        return replace(question, state=_unless_last(known, State.KNOWN, block, wanted), estimate=alone)
    compared = [_better(figures, values, share, others, wanted.within) for _, values in rivals_of_it]
    states = {state for state, _, _ in compared}
    state = next(state for state in (State.KNOWN, State.EQUAL, State.BEST, State.OPEN) if state in states)
    return replace(
        question,
        cell=best,
        reference=rivals_of_it[0][0],
        state=_unless_last(State.OPEN not in states, state, block, wanted),
        estimate=compared[0][1],
        p=max(p for _, _, p in compared),
    )


def _better(
    best: Sequence[float], other: Sequence[float], share: float, others: Sequence[float], margin: float
) -> tuple[State, Estimate | None, float]:
    """Whether the best is certainly better than another, as good within ``margin``, or the ratio known to ``margin``; the ratio, and its careful p."""
    try:
        test = unpaired(best, other)
    except ValueError:
        return State.OPEN, None, 1.0
    if test.p is None:
        return State.OPEN, test.estimate(share), 1.0
    careful = min((test.careful.p or 0.0) / share, 1.0)
    estimate, _, after = corrected(test, others, share)
    if after < SIGNIFICANCE:
        return State.BEST, estimate, careful
    if within(estimate, margin) is Outcome.AGREES:
        return State.EQUAL, estimate, careful
    half = estimate.half_width
    return State.KNOWN if half is not None and half <= margin else State.OPEN, estimate, careful


def _unless_last(known: bool, state: State, block: int, wanted: UntilKnown) -> State:
    return state if known else State.MAX if block == wanted.max else State.OPEN
