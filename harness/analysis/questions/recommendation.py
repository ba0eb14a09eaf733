"""Which mode for which workload? The best by each goal, how sure that is, and what it costs by the other goals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from harness.analysis.campaign import Cell, shared
from harness.analysis.compare import Comparison, relative
from harness.analysis.comparison_model import Answer, Asked, counts, missing_modes
from harness.analysis.contrasts.comparison import Place, Pool, Setup
from harness.analysis.format import quantity, replicas_in_words
from harness.analysis.pages.table import Entry, Table, figure_entry, ratio_entry
from harness.analysis.questions.price import costs_per_million
from harness.analysis.statistics import NO_DIFFERENCE, SIGNIFICANCE, Estimate, difference, holm, ratio, t_interval

MOST_THROUGHPUT, LOWEST_P99 = "highest throughput", "lowest p99 latency with many replicas"
"""Names of two goals, which a report takes alone."""


@dataclass(frozen=True, slots=True)
class Goal:
    """What somebody may want.

    Attributes:
        name: in words.
        figures: of a cell, one for each repeat that has it.
        unit: for people.
        highest: whether more is better.
        together: whether only cells of the same, highest common replica count are candidates.
        p99_limit_s: only cells whose whole interval of the p99 is within it are candidates; None: all are.
    """

    name: str
    figures: Callable[[Cell], list[float]]
    unit: str
    highest: bool
    together: bool = False
    p99_limit_s: float | None = None

    def allows(self, cell: Cell) -> bool:
        """Whether a cell has the figure, and keeps the limit if there is one."""
        if not self.figures(cell):
            return False
        p99 = cell.estimates.get("latency_p99_exact")
        return self.p99_limit_s is None or (p99 is not None and p99.high is not None and p99.high <= self.p99_limit_s)

    def mean(self, cell: Cell) -> float:
        """Over the repeats."""
        return t_interval(self.figures(cell)).mean


def goals(asked: Asked) -> list[Goal]:
    """Those that can be judged without further input, and those that a limit or a price makes possible."""
    limit_s = asked.latency_limit_s
    tail = _figures("latency_p99_exact")
    limited = (
        []
        if limit_s is None
        else [
            Goal(
                f"highest throughput with p99 within {quantity(limit_s, 's')}",
                _reached("throughput"),
                "req/s",
                highest=True,
                p99_limit_s=limit_s,
            )
        ]
    )
    priced = (
        []
        if asked.price_per_gpu_hour is None and asked.price_per_kwh is None
        else [
            Goal(
                "lowest price per million inferences",
                lambda cell: costs_per_million(cell, asked),
                asked.currency,
                highest=False,
            )
        ]
    )
    return [
        Goal(MOST_THROUGHPUT, _reached("throughput"), "req/s", highest=True),
        *limited,
        Goal("highest throughput with many replicas", _reached("throughput"), "req/s", highest=True, together=True),
        Goal(LOWEST_P99, tail, "s", highest=False, together=True),
        Goal("fairest between many replicas", _reached("fairness"), "", highest=True, together=True),
        Goal("lowest energy per request", _figures("energy"), "J", highest=False),
        *priced,
    ]


def _reached(measure: str) -> Callable[[Cell], list[float]]:
    """What replicas reached, unless it is what was asked of them at a rate."""
    return lambda cell: [] if cell.paced else cell.figures(measure)


def _figures(measure: str) -> Callable[[Cell], list[float]]:
    return lambda cell: cell.figures(measure)


@dataclass(frozen=True, slots=True)
class Choice:
    """The best setup of one workload by one goal.

    Attributes:
        workload: name.
        goal: by which.
        best: label and cell.
        next: label and cell of the runner-up.
        p: of Welch's test between the two, Holm-corrected over all choices; None when a side has one run.
        among: comparisons that it was corrected for.
    """

    workload: str
    goal: Goal
    best: tuple[str, Cell]
    next: tuple[str, Cell]
    p: float | None
    among: int = 1

    @property
    def clear(self) -> bool:
        """Whether the best is significantly better than the runner-up."""
        return self.p is not None and self.p < SIGNIFICANCE

    @property
    def certainty(self) -> str:
        """How sure the choice is, in words."""
        return certainty(self.p, gain(self), self.among)

    @property
    def costs(self) -> list[str]:
        """What the best loses against the runner-up by other measures, where its interval leaves no doubt."""
        return costs(self.best[1], self.next[1])


_ELSEWHERE = (
    ("throughput", "throughput", True),
    ("latency_p99_exact", "p99", False),
    ("energy", "energy per request", False),
)


def certainty(p: float | None, alone: Estimate | None, among: int = 1) -> str:
    """How sure a choice is, in words.

    Args:
        p: of the test, corrected for all that were made; None when there is none.
        alone: the ratio of the best to the runner-up, with the interval of this one.
        among: tests that p is corrected for.
    """
    if p is None:
        return "cannot tell: repeat it"
    if p < SIGNIFICANCE:
        return "significant"
    told = alone is not None and alone.low is not None and alone.high is not None and not alone.low <= 1 <= alone.high
    chance = f" among all {among} comparisons (one interval in twenty leaves 1 out by chance)"
    return NO_DIFFERENCE + (chance if told else "")


def costs(best: Cell, runner_up: Cell) -> list[str]:
    """What the one loses against the other by throughput, p99 and energy, where the interval of the ratio leaves no doubt."""
    found = []
    for measure, title, higher_is_better in _ELSEWHERE:
        ratio = relative(best, runner_up, measure)
        if ratio is None or ratio.low is None or ratio.high is None:
            continue
        if ratio.high < 1 if higher_is_better else ratio.low > 1:
            found.append(f"{title} {_percent(ratio)}")
    return found


def _percent(gain: Estimate) -> str:
    """``+34 %``; a multiple from twice on."""
    return f"\N{MULTIPLICATION SIGN}{gain.mean:.1f}" if gain.mean >= 2 else f"{100 * (gain.mean - 1):+.0f} %"


def choices(pool: Pool, asked: Asked) -> list[Choice]:
    """The best of every workload by every goal for which at least two setups have a figure."""
    found = [
        choice
        for workload in pool.workloads()
        for goal in goals(asked)
        if (choice := _choose(pool, workload, goal)) is not None
    ]
    tested = [index for index, choice in enumerate(found) if choice.p is not None]
    for index, p in zip(tested, holm([found[index].p or 0.0 for index in tested]), strict=True):
        found[index] = replace(found[index], p=p, among=len(tested))
    return found


def answer(pool: Pool, _comparison: Comparison, asked: Asked) -> Answer:
    """One line per workload and goal."""
    found = choices(pool, asked)
    missing = missing_modes(pool)
    if not found:
        missing.insert(0, "One way of running was measured, so that there is nothing to choose from.")
    return Answer(
        "choosing",
        "Which mode for which workload?",
        "Each cell: the best way of running and its mean, then its ratio to the next way, each with the number of replicas at which it does "
        "best by the goal; that of the next way is named where it is another (Welch's test, Holm's correction over this table). An interval is of its "
        "one ratio. It can leave 1 out where the difference is not significant among all comparisons: the correction allows for the one in "
        "twenty that errs by chance. "
        "Where there is no significant difference, either is named with the better mean. What the best costs by other measures, against the same "
        "runner-up, is named where the interval of that one ratio leaves no doubt.",
        _sentences(found),
        Table.of(HEADERS, [_row(choice) for choice in found], words=6) if found else None,
        missing=missing,
        table_first=True,
    )


def _choose(pool: Pool, workload: str, goal: Goal) -> Choice | None:
    common = _common_count(pool, workload)
    best_of = [
        (setup.label, cell) for setup in pool.setups if (cell := _best_cell(setup, workload, goal, common)) is not None
    ]
    if len(best_of) < 2:
        return None
    first, second, *_ = sorted(best_of, key=lambda one: goal.mean(one[1]), reverse=goal.highest)
    p = difference(goal.figures(second[1]), goal.figures(first[1]), shared(second[1], first[1])).welch_p
    return Choice(workload, goal, first, second, p)


def _best_cell(setup: Setup, workload: str, goal: Goal, common: int | None) -> Cell | None:
    wanted = [common] if goal.together else setup.counts(workload)
    cells = [setup.cells[place] for count in wanted if count and (place := Place(workload, count)) in setup.cells]
    return (max if goal.highest else min)(filter(goal.allows, cells), key=goal.mean, default=None)


def _common_count(pool: Pool, workload: str) -> int | None:
    """The most replicas, more than one, that two setups have measured."""
    shared = [
        count
        for count in counts(pool, workload)
        if count > 1 and sum(Place(workload, count) in setup.cells for setup in pool.setups) > 1
    ]
    return max(shared, default=None)


HEADERS = ["Workload", "Goal", "Best", "Runner-up", "How sure", "Costs elsewhere", "Figure", "Best / runner-up"]
"""Of the table; ``_row`` fills it."""


def _row(choice: Choice) -> list[str | Entry]:
    goal, runner_up = choice.goal, _named(choice.next)
    return [
        choice.workload,
        goal.name,
        _named(choice.best) if choice.clear else f"either (here {_named(choice.best)})",
        runner_up,
        choice.certainty,
        f"{', '.join(choice.costs)} against {runner_up}" if choice.clear and choice.costs else "",
        _entry(goal, choice.best[1]),
        ratio_entry(gain(choice)),
    ]


def _named(one: tuple[str, Cell]) -> str:
    return f"{one[0]}, {replicas_in_words(one[1].replicas)}"


def _entry(goal: Goal, cell: Cell) -> Entry:
    return figure_entry(t_interval(goal.figures(cell), shared(cell)), goal.unit)


def gain(choice: Choice) -> Estimate | None:
    """The best's figure over the runner-up's; None where they have no ratio."""
    try:
        best, runner_up = choice.best[1], choice.next[1]
        return ratio(choice.goal.figures(best), choice.goal.figures(runner_up), shared(best, runner_up))
    except ValueError:
        return None


def _sentences(found: Sequence[Choice]) -> list[str]:
    sentences = []
    for workload in dict.fromkeys(choice.workload for choice in found):
        mine = [choice for choice in found if choice.workload == workload]
        parts = [f"{choice.goal.name}: {_named(choice.best)}" for choice in mine if choice.clear]
        even = [choice.goal.name for choice in mine if not choice.clear]
        if even:
            parts.append("no significant difference for " + ", ".join(even))
        sentences.append(f"{workload}: {'; '.join(parts)}.")
    return sentences
