"""Which mode for which workload? The best by each goal, how sure that is, and what it costs by the other goals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.analysis.campaign import Cell, shared
from harness.analysis.contrasts.comparison import CellKey, Comparison
from harness.analysis.contrasts.contrast import NO_FIGURES, Contrast, Contrasts, Value
from harness.analysis.format import mode_name, percent, quantity, replicas_in_words
from harness.analysis.pages.table import Entry, Table, figure_entry
from harness.analysis.questions.question import ComparisonQuery
from harness.analysis.questions.sharing_cost import cost_of
from harness.analysis.statistics import Outcome, t_interval

MANY = " with many replicas"
MOST_THROUGHPUT, LOWEST_P99 = "highest throughput", f"lowest p99 latency{MANY}"
"""Names of goals by which a mode is recommended."""
NOTHING_TO_CHOOSE = "One mode was measured, so there is nothing to choose from."


@dataclass(frozen=True, slots=True)
class Goal:
    """What somebody may want.

    Attributes:
        metric: by which, a measure or the name of what ``value`` gives of one run.
        together: whether only cells of the same, highest common replica count are candidates.
        reached: whether it says nothing where requests come at a rate that was set.
        p99_limit_s: only cells whose whole interval of the p99 is within it are candidates; None: all are.
    """

    name: str
    metric: str
    unit: str
    highest: bool
    together: bool = False
    reached: bool = False
    p99_limit_s: float | None = None
    value: Value | None = None

    def figures(self, cell: Cell) -> list[float]:
        """One for each repeat that has it."""
        if self.reached and cell.paced:
            return []
        if self.value is None:
            return cell.figures(self.metric)
        return [figure for run in cell.used if (figure := self.value(run)) is not None]

    def allows(self, cell: Cell) -> bool:
        """Whether a cell has the figure, and keeps the limit if there is one."""
        p99 = cell.estimates.get("latency_p99_exact")
        kept = self.p99_limit_s is None or (p99 is not None and p99.high is not None and p99.high <= self.p99_limit_s)
        return kept and bool(self.figures(cell))

    def mean(self, cell: Cell) -> float:
        """Over the repeats."""
        return t_interval(self.figures(cell)).mean


def goals(query: ComparisonQuery) -> list[Goal]:
    """Those that can be judged without further input, and those that a limit or a price makes possible."""
    limit_s, cost = query.latency_limit_s, cost_of(query)
    throughput = Goal(MOST_THROUGHPUT, "throughput", "req/s", highest=True, reached=True)
    wanted = [
        throughput,
        replace(throughput, name=f"{MOST_THROUGHPUT}{MANY}", together=True),
        Goal(LOWEST_P99, "latency_p99_exact", "s", highest=False, together=True),
        Goal("fairest between many replicas", "fairness", "", highest=True, together=True, reached=True),
        Goal("lowest energy per request", "energy", "J", highest=False),
    ]
    if limit_s is not None:
        within = f"highest throughput with p99 within {quantity(limit_s, 's')}"
        wanted.insert(1, replace(throughput, name=within, p99_limit_s=limit_s))
    if cost:
        wanted.append(Goal("lowest price per million inferences", "cost", query.currency, highest=False, value=cost))
    return wanted


@dataclass(frozen=True, slots=True)
class Choice:
    """The best arm of one workload by one goal. ``gain`` is the contrast with the runner-up."""

    workload: str
    goal: Goal
    best: tuple[str, Cell]
    next: tuple[str, Cell]
    gain: Contrast | None
    costs: list[str]

    @property
    def same(self) -> tuple[object, ...]:
        """What two goals have in common that say the same of a workload."""
        return self.workload, self.best[1].key, self.clear, not self.clear and self.next[1].key

    @property
    def in_words(self) -> dict[str, str | Entry]:
        """The best, its value, and the difference from the runner-up in percent."""
        best, rival = _shown(self.best), _shown(self.next)
        value = figure_entry(t_interval(self.goal.figures(self.best[1]), shared(self.best[1])), self.goal.unit)
        change = percent(self.gain.ratio) if self.gain else ("", "")
        against = f"{change[0]} vs {rival}{f' ({change[1]})' if change[1] else ''}" if change[0] else f"vs {rival}"
        if not self.clear:
            other = quantity(self.goal.mean(self.next[1]), self.goal.unit)
            unclear = "inconclusive: repeat it" if self.outcome is Outcome.INCONCLUSIVE else "no clear winner"
            value = Entry(f"{_shown(self.best)} {value.mean}; {rival} {other}", value=value.value)
            return {
                "Best": unclear,
                "Value": value,
                "Difference": f"{change[0]}{f' ({change[1]})' if change[1] else ''}",
            }
        lost = f"; but {', '.join(self.costs)}" if self.costs else ""
        return {"Best": best, "Value": value, "Difference": f"{against}{lost}"}

    @property
    def outcome(self) -> Outcome:
        """Of the best against the runner-up."""
        return self.gain.outcome if self.gain else Outcome.INCONCLUSIVE

    @property
    def clear(self) -> bool:
        """Whether the best is significantly better than the runner-up."""
        return self.outcome is (Outcome.HIGHER if self.goal.highest else Outcome.LOWER)

    def document(self) -> dict[str, object]:
        """For a program."""
        gain = self.gain
        return {
            "workload": self.workload,
            "goal": self.goal.name,
            "metric": self.goal.metric,
            "best": {"arm": self.best[0], **self.best[1].key._asdict()},
            "runner_up": {"arm": self.next[0], **self.next[1].key._asdict()},
            "outcome": self.outcome.value,
            **(gain.figures if gain else NO_FIGURES),
        }


_ELSEWHERE = (
    ("throughput", "throughput", Outcome.LOWER),
    ("latency_p99_exact", "p99", Outcome.HIGHER),
    ("energy", "energy per request", Outcome.HIGHER),
)


def costs(contrasts: Contrasts, best: Cell, runner_up: Cell) -> list[str]:
    """What the one loses significantly against the other by throughput, p99 and energy."""
    lost = []
    for metric, title, worse in _ELSEWHERE:
        contrast = contrasts.of(runner_up, best, metric)
        if contrast and contrast.outcome is worse:
            lost.append(f"{title} {percent(contrast.ratio)[0]}")
    return lost


def choices(comparison: Comparison, query: ComparisonQuery) -> list[Choice]:
    """The best of every workload by every goal for which at least two arms have a figure."""
    every = (_choose(comparison, name, goal) for name in comparison.workloads() for goal in goals(query))
    return [choice for choice in every if choice is not None]


def goals_table(best: Sequence[Choice]) -> Table:
    """The best of every goal and workload, its value, and how it differs from the next; goals that say the same are one."""
    merged: dict[tuple[object, ...], list[Choice]] = {}
    for name in dict.fromkeys(choice.goal.name for choice in best):
        of_goal = [choice for choice in best if choice.goal.name == name]
        merged.setdefault((of_goal[0].goal.metric, *(choice.same for choice in of_goal)), []).extend(of_goal)
    rows: list[dict[str, str | Entry]] = []
    for every in merged.values():
        names = list(dict.fromkeys(choice.goal.name for choice in every))
        goal = "; ".join([names[0], *(name.removeprefix(names[0]).strip() for name in names[1:])])
        own = (choice for choice in every if choice.goal.name == names[0])
        rows += [
            {"Goal": "" if row else goal, "Workload": choice.workload, **choice.in_words}
            for row, choice in enumerate(own)
        ]
    table = Table.of(rows, words=5, caption="The best mode for each goal")
    return table if len({choice.workload for choice in best}) > 1 else table.without("Workload")


def _choose(comparison: Comparison, workload: str, goal: Goal) -> Choice | None:
    counts = comparison.counts(workload)
    if goal.together:  # the most replicas, more than one, that two arms have measured
        counts = [count for count in counts if count > 1 and len([*comparison.with_replicas(workload, count)]) > 1][-1:]
    candidates = []
    for arm in comparison.arms:
        cells = [arm.cells[key] for count in counts if (key := CellKey(workload, count)) in arm.cells]
        if allowed := [cell for cell in cells if goal.allows(cell)]:
            candidates.append((arm.label, (max if goal.highest else min)(allowed, key=goal.mean)))
    if len(candidates) < 2:
        return None
    best, runner_up, *_ = sorted(candidates, key=lambda candidate: goal.mean(candidate[1]), reverse=goal.highest)
    gain = comparison.contrasts.of(runner_up[1], best[1], goal.metric, value=goal.value)
    return Choice(workload, goal, best, runner_up, gain, costs(comparison.contrasts, best[1], runner_up[1]))


def _shown(labelled: tuple[str, Cell]) -> str:
    return mode_name(_named(labelled))


def _named(labelled: tuple[str, Cell]) -> str:
    return f"{labelled[0]}, {replicas_in_words(labelled[1].replicas)}"
