"""The first screen of a comparison: the decision in a sentence, three numbers, one picture, a plain table; for page, terminal and document."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from harness.analysis.campaign import Cell
from harness.analysis.contrasts.comparison import Comparison
from harness.analysis.contrasts.contrast import Contrast
from harness.analysis.format import mode_name, percent, percent_more, replicas_in_words, span
from harness.analysis.metrics.catalogue import METRICS
from harness.analysis.pages.curves import Row, dots
from harness.analysis.pages.plot import Picture
from harness.analysis.pages.table import Column, Table, absent, figure_entry
from harness.analysis.questions.condition_overhead import Interference
from harness.analysis.questions.decision import Decision, decisions, in_one_sentence, sides
from harness.analysis.questions.isolation import Isolation, isolated, overheads
from harness.analysis.questions.question import ComparisonQuery, labels
from harness.analysis.questions.recommendation import NOTHING_TO_CHOOSE, Choice, choices
from harness.analysis.statistics import Outcome

_TITLES = {"throughput": "Throughput", "energy": "Energy per request", "latency_p99_exact": "p99 latency"}
_PLAIN = (("Requests/s", "throughput", 1.0), ("p99, ms", "latency_p99_exact", 1e3), ("J/request", "energy", 1.0))
"""Columns of the plain table: title, metric, and what its unit is multiplied by."""


@dataclass(frozen=True, slots=True)
class HeadlineNumber:
    """One of the three: the difference over all workloads in short, and of each workload with its interval and whether it is unclear.

    ``better``: whether all that differ do so for the better; False: for the worse; None: neither.
    """

    title: str
    short: str
    better: bool | None
    of_workloads: list[tuple[str, str, bool]]


@dataclass(frozen=True)
class FirstScreen:
    """What a comparison says first; ``decided`` is empty where its sides are no sharing modes, or there is nothing to choose from.

    Of a campaign with conditions it has the first condition's alone.
    """

    comparison: Comparison
    interference: Interference | None
    isolation: Isolation
    choices: Sequence[Choice]
    decided: Sequence[Decision]

    @cached_property
    def sentence(self) -> str:
        """The answer: which mode, what it gains, and when to use another."""
        if self.decided:
            under = f"Under {self._condition}: " if self._condition else ""
            return under + in_one_sentence(self.decided, self._neighbours() if self.isolation.best else None)
        if len(self.comparison.sides) < 2:
            return NOTHING_TO_CHOOSE
        tests = self.comparison.tests
        differing = sum(tested.contrast.significant for tested in tests)
        sides = " vs ".join(mode_name(side) for side in self.comparison.sides)
        return f"{sides}: {differing} of {len(tests)} comparisons differ significantly."

    @property
    def _condition(self) -> str:
        """What was decided under, in words; empty without conditions."""
        conditions = dict.fromkeys(decision.condition for decision in self.decided if decision.condition)
        return f"condition {' and '.join(conditions)}" if conditions else ""

    def _neighbours(self) -> list[str]:
        """When another mode is better than the best of them, by what neighbours were measured."""
        modes = {winner.best.mode for decision in self.decided if (winner := decision.winner) and winner.best}
        sentences = []
        for choice in self.isolation.best:
            if choice.decided and modes and choice.best.mode not in modes:
                against = next((kept for kept in choice.every if kept.mode in modes), choice.next)
                deeds = " or ".join(self.isolation.deeds_against(against)) or "need much of the GPU"
                sentences.append(f"Use {mode_name(choice.best.mode)} if a neighbour may {deeds}.")
        return [*dict.fromkeys(sentences)]

    @cached_property
    def against(self) -> str:
        """What the numbers compare: ``MPS vs time-slicing, 8 replicas``; empty where that differs between workloads."""
        pairs = {_compared(contrast) for decision in self.decided for contrast in decision.effects.values()}
        return ", ".join(filter(None, [pairs.pop(), self._condition])) if len(pairs) == 1 else ""

    @cached_property
    def numbers(self) -> list[HeadlineNumber]:
        """Throughput, energy and p99 of the best mode against the baseline, as far as they were measured."""
        metrics = dict.fromkeys(metric for decision in self.decided for metric in decision.effects)
        return [self._number(metric) for metric in metrics]

    def _number(self, metric: str) -> HeadlineNumber:
        effects = [
            (decision.workload, decision.effects[metric]) for decision in self.decided if metric in decision.effects
        ]
        clear = [contrast for _, contrast in effects if contrast.significant]
        outcomes = {contrast.outcome for contrast in clear}
        short, better = "no clear difference", None
        if len(outcomes) == 1:
            alike = len({contrast.baseline.mode for contrast in clear}) == 1
            short = span([contrast.ratio for contrast in clear]) if alike else clear[0].outcome.value
            short += "" if len(clear) == len(effects) else f" for {len(clear)} of {len(effects)}"
            better = outcomes == {Outcome.HIGHER if METRICS[metric].higher_is_better else Outcome.LOWER}
        elif outcomes:
            short = "higher for some, lower for others"
        alone = len(effects) == len(clear) == 1  # ``short`` is its difference already
        lines = [
            (
                workload if self.against else f"{workload}, {_compared(it)}",
                f"95% interval {percent(it.ratio)[1]}" if alone else percent_more(it.ratio),
                not it.significant,
            )
            for workload, it in effects
        ]
        return HeadlineNumber(_TITLES[metric], short, better, lines)

    @cached_property
    def table(self) -> Table | None:
        """Every configuration with its requests/s, p99 and energy; without the columns that nothing has."""
        cells = list(self.comparison.cells())
        if not cells:
            return None
        known = [column for column in _PLAIN if any(column[1] in cell.estimates for *_, cell in cells)]
        several = len(self.comparison.workloads()) > 1
        columns = [
            *([Column("Workload", "workload", words=True)] if several else []),
            Column("Mode", "mode", words=True),
            Column("Replicas", "replicas"),
            *(Column(title, metric) for title, metric, _ in known),
        ]
        rows = [
            [
                *([workload] if several else []),
                mode_name(arm.label),
                count,
                *(
                    figure_entry(cell.estimates[metric].scaled(scale), "")
                    if metric in cell.estimates
                    else absent(cell.absent.get(metric, "not measured"))
                    for _, metric, scale in known
                ),
            ]
            for workload, arm, count, cell in cells
        ]
        return Table(columns, rows, "Every mode: mean and 95% interval")

    @cached_property
    def picture(self) -> Picture | None:
        """Throughput of every mode by replicas, a panel for each workload; of one workload p99 and energy, too."""
        workloads = self.comparison.workloads()
        single = len(workloads) == 1
        panels = [
            (title if single else f"{workload}: {title.lower()}", rows)
            for workload in workloads
            for title, metric, scale in (_PLAIN if single else _PLAIN[:1])
            if (rows := Row.by_replicas(self._cells(workload), metric, scale))
        ]
        order = labels(self.comparison)
        return dots("decision", "Every mode, by replicas", panels, order=order, columns=3) if panels else None

    def _cells(self, workload: str) -> Iterator[tuple[str, Cell]]:
        return ((mode_name(arm.label), cell) for name, arm, _, cell in self.comparison.cells() if name == workload)

    def document(self) -> dict[str, object]:
        """For a program."""
        return {
            "sentence": self.sentence,
            "against": self.against,
            "numbers": [
                _as_number(decision, contrast) for decision in self.decided for contrast in decision.effects.values()
            ],
            "table": self.table.records() if self.table else [],
        }


def first_screen(comparison: Comparison, query: ComparisonQuery | None = None) -> FirstScreen:
    """What a comparison says first."""
    interference = overheads(comparison)
    isolation = isolated(comparison, interference)
    every = choices(comparison, query or ComparisonQuery())
    decided = [it for it in decisions(comparison) if it.condition in {"", *_first_conditions(comparison)}]
    return FirstScreen(comparison, interference, isolation, every, decided)


def _first_conditions(comparison: Comparison) -> list[str]:
    """That of each campaign with conditions: what the others are held against."""
    return [it.spec.conditions[0].name for it in comparison.analyses if it.spec and it.spec.conditions]


def _compared(contrast: Contrast) -> str:
    """``MPS vs time-slicing, 8 replicas``, or ``MPS with 8 replicas vs exclusive with 1 replica``."""
    alike = contrast.candidate.replicas == contrast.baseline.replicas
    return " vs ".join(sides(contrast)) + (f", {replicas_in_words(contrast.candidate.replicas)}" if alike else "")


def _as_number(decision: Decision, contrast: Contrast) -> dict[str, object]:
    return {
        "workload": decision.workload,
        "condition": decision.condition,
        "metric": contrast.metric,
        "best": contrast.candidate.mode,
        "baseline": contrast.baseline.mode,
        "replicas": contrast.candidate.replicas,
        "baseline_replicas": contrast.baseline.replicas,
        **contrast.figures,
        "outcome": contrast.outcome.value,
    }
