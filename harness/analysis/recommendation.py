"""Which mode for which workload? The best by each criterion, and whether the next best is any worse."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from harness.analysis.campaign import Cell
from harness.analysis.compare import Comparison, relative
from harness.analysis.comparison_input import Place, Pool, Setup
from harness.analysis.comparison_model import Answer, Asked, Table, counts, missing_modes
from harness.analysis.format import Entry, figure_entry, ratio_entry, replicas_in_words
from harness.analysis.statistics import SIGNIFICANCE, Estimate, difference, holm


@dataclass(frozen=True, slots=True)
class Criterion:
    """What somebody may want.

    Attributes:
        wish: in words.
        measure: of a cell.
        unit: for people.
        highest: whether more is better.
        together: whether only cells of the same, highest common replica count are candidates.
    """

    wish: str
    measure: str
    unit: str
    highest: bool
    together: bool = False


CRITERIA = (
    Criterion("most throughput, whatever the replicas", "throughput", "req/s", highest=True),
    Criterion("most throughput with many replicas", "throughput", "req/s", highest=True, together=True),
    Criterion("lowest p99 with many replicas", "latency_p99", "s", highest=False, together=True),
    Criterion("fairest between many replicas", "fairness", "", highest=True, together=True),
    Criterion("least energy a request, whatever the replicas", "energy", "J", highest=False),
)


@dataclass(frozen=True, slots=True)
class Choice:
    """The best setup of one workload by one criterion.

    Attributes:
        workload: name.
        criterion: by which.
        best: label and cell.
        next: label and cell of the second best; None when there is no rival.
        p: of Welch's test between the two, Holm-corrected over the page; None with one run, or without a rival.
    """

    workload: str
    criterion: Criterion
    best: tuple[str, Cell]
    next: tuple[str, Cell] | None
    p: float | None

    @property
    def clear(self) -> bool:
        """Whether the best is significantly better than the next."""
        return self.p is not None and self.p < SIGNIFICANCE


def choices(pool: Pool) -> list[Choice]:
    """The best of every workload by every criterion that at least two setups can be held against."""
    found = [
        choice
        for workload in pool.workloads()
        for criterion in CRITERIA
        if (choice := _choose(pool, workload, criterion)) is not None
    ]
    tested = [index for index, choice in enumerate(found) if choice.p is not None]
    for index, p in zip(tested, holm([found[index].p or 0.0 for index in tested]), strict=True):
        found[index] = replace(found[index], p=p)
    return found


def answer(pool: Pool, _comparison: Comparison, _asked: Asked) -> Answer:
    """One line per workload and wish."""
    found = choices(pool)
    rows = [_row(choice) for choice in found if choice.next]
    missing = missing_modes(pool)
    if not rows:
        missing.insert(0, "One way of running was measured, so that there is nothing to choose from.")
    return Answer(
        "choosing",
        "Which mode for which workload?",
        "The best mean by each wish, held against the best of the next way of running (Welch's test, Holm's correction over "
        "this table). Where they do not differ significantly, either will do.",
        _sentences(found),
        Table(["Workload", "Who wants", "takes", "Best", "instead of", "Next", "Best / next"], rows, words=3)
        if rows
        else None,
        missing=missing,
    )


def _choose(pool: Pool, workload: str, criterion: Criterion) -> Choice | None:
    best_of = [
        (setup.label, cell)
        for setup in pool.setups
        if (cell := _best_cell(setup, workload, criterion, _common_count(pool, workload))) is not None
    ]
    if len(best_of) < 2:
        return None
    ranked = sorted(best_of, key=lambda one: _mean(criterion)(one[1]), reverse=criterion.highest)
    first, second = ranked[0], ranked[1]
    p = difference(second[1].figures(criterion.measure), first[1].figures(criterion.measure)).welch_p
    return Choice(workload, criterion, first, second, p)


def _best_cell(setup: Setup, workload: str, criterion: Criterion, common: int | None) -> Cell | None:
    wanted = [common] if criterion.together else setup.counts(workload)
    cells = [setup.cells[place] for count in wanted if count and (place := Place(workload, count)) in setup.cells]
    cells = [cell for cell in cells if criterion.measure in cell.estimates]
    if not cells:
        return None
    return (max if criterion.highest else min)(cells, key=_mean(criterion))


def _common_count(pool: Pool, workload: str) -> int | None:
    """The most replicas, more than one, that two setups have measured."""
    shared = [
        count
        for count in counts(pool, workload)
        if count > 1 and sum(Place(workload, count) in setup.cells for setup in pool.setups) > 1
    ]
    return max(shared, default=None)


def _mean(criterion: Criterion) -> Callable[[Cell], float]:
    return lambda cell: cell.estimates[criterion.measure].mean


def _row(choice: Choice) -> list[str | Entry]:
    criterion = choice.criterion
    (label, cell), (other, rival) = choice.best, choice.next or choice.best
    gain: Estimate | None = relative(cell, rival, criterion.measure)
    verdict = (
        "significant"
        if choice.clear
        else "a single run cannot tell"
        if choice.p is None
        else "no significant difference"
    )
    entry = ratio_entry(gain)
    return [
        choice.workload,
        criterion.wish,
        f"{label}, {replicas_in_words(cell.replicas)}"
        if choice.clear
        else f"either (here {label}, {replicas_in_words(cell.replicas)})",
        figure_entry(cell.estimates[criterion.measure], criterion.unit),
        Entry(f"{other}, {replicas_in_words(rival.replicas)}"),
        figure_entry(rival.estimates[criterion.measure], criterion.unit),
        Entry(entry.mean, (*entry.small, verdict), entry.reason),
    ]


def _sentences(found: Sequence[Choice]) -> list[str]:
    sentences = []
    for workload in dict.fromkeys(choice.workload for choice in found):
        mine = [choice for choice in found if choice.workload == workload]
        clear = [
            f"{choice.criterion.wish}: {choice.best[0]} with {replicas_in_words(choice.best[1].replicas)}"
            for choice in mine
            if choice.clear
        ]
        even = [choice.criterion.wish for choice in mine if not choice.clear]
        parts = "; ".join(clear)
        if even:
            parts += ("; " if parts else "") + "no significant difference for " + ", ".join(even)
        sentences.append(f"{workload}: {parts}.")
    return sentences
