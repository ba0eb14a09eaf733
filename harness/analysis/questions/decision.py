"""The decision of a comparison: by throughput, p99 and energy, which sharing mode is best, by how much, and how sure that is.

One record for the terminal, the page and the JSON, and the one function that says it in a sentence. Every ratio is a ``Contrast``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from harness.analysis.campaign import Cell
from harness.analysis.contrasts.comparison import By, CellKey, Comparison
from harness.analysis.contrasts.contrast import NO_FIGURES, Contrast
from harness.analysis.format import MINUS, mode_name, percent, percent_more, replicas_in_words, span
from harness.analysis.metrics.catalogue import ALL
from harness.analysis.statistics import Outcome, within
from harness.sharing.modes import mode_of

DECIDES = {"throughput": "throughput", "energy": "energy per request", "latency_p99_exact": "p99 latency"}
"""Metrics by which modes are chosen, and their names in sentences."""
_NOUNS = {
    "throughput": ("+", MINUS, "throughput"),
    "latency_p99_exact": ("higher", "lower", "p99"),
    "energy": ("more", "less", "energy"),
}
"""What is more and less of a metric, in a sentence about several."""
_BY_MODE = frozenset({By.SHARING, By.SHARE, By.TIME_SLICE})
AS_GOOD_WITHIN = 0.05
"""Within so much of 1 neither mode is the better one in any way that matters; a ratio known to so much is known well enough."""


class Certainty(StrEnum):
    """What is known about the best mode by one metric."""

    BEST = "best"
    """It is significantly better than every other."""
    EQUAL = "practically equal"
    """Another is as good: the whole interval of the ratio is within 5%."""
    KNOWN = "known to ±5%"
    """How the best and another compare: half of the ratio's interval is at most 5%, but it reaches beyond what is practically equal."""
    INCONCLUSIVE = "inconclusive"
    NOT_MEASURED = "not measured"


@dataclass(frozen=True, slots=True)
class BestMode:
    """The best mode by one metric. ``why``: it was not measured. ``gains``: against each other mode, the runner-up first; ratios of the best over the other."""

    metric: str
    certainty: Certainty
    why: str = ""
    best: Cell | None = None
    gains: tuple[Contrast, ...] = ()

    @property
    def gain(self) -> Contrast | None:
        """Against the runner-up."""
        return self.gains[0] if self.gains else None

    @property
    def title(self) -> str:
        """Of the metric, in a sentence."""
        return DECIDES[self.metric]

    def document(self) -> dict[str, object]:
        """For a program."""
        gain = self.gain
        return {
            "metric": self.metric,
            "certainty": self.certainty.value,
            "why": self.why,
            "best": self.best.mode if self.best else None,
            "runner_up": gain.baseline.mode if gain else None,
            **(gain.figures if gain else NO_FIGURES),
        }


@dataclass(frozen=True, slots=True)
class Decision:
    """What to use for one workload with so many replicas, under one condition.

    ``modes``: what there was to choose from; ``alone``: throughput of the best of them against one replica with the GPU to itself;
    ``weak``: sentences about what weakens it. ``effects``: by metric, the best mode against time-slicing, or else the runner-up.
    """

    workload: str
    condition: str
    replicas: int
    modes: tuple[str, ...]
    by_metric: tuple[BestMode, ...]
    alone: Contrast | None = None
    weak: tuple[str, ...] = ()
    effects: Mapping[str, Contrast] = field(default_factory=dict)

    @property
    def decided(self) -> bool:
        """Whether by every metric it is known which mode is best, or by how little that can matter."""
        return all(best.certainty in {Certainty.BEST, Certainty.EQUAL, Certainty.KNOWN} for best in self.by_metric)

    @property
    def compared(self) -> tuple[str, str]:
        """The two sides of the effects in words; empty without any."""
        effect = next(iter(self.effects.values()), None)
        return sides(effect) if effect else ("", "")

    @property
    def winner(self) -> BestMode | None:
        """By the first metric for which one mode is significantly the best; None where none is."""
        return next((best for best in self.by_metric if best.certainty is Certainty.BEST), None)

    @property
    def sentence(self) -> str:
        """The decision in words."""
        return in_one_sentence([self])

    @property
    def unclear(self) -> str:
        """By what the modes cannot be told apart, with what was seen; empty where they can by every metric."""
        others = [best for best in self.by_metric if best.certainty is not Certainty.BEST]
        return f"{'; '.join(map(_so_far, others))}." if others and self.winner else ""

    @property
    def headline(self) -> str:
        """The sentence with what it is about."""
        condition = f", {self.condition}" if self.condition else ""
        gains = [gain for best in self.by_metric for gain in best.gains]
        same = all(gain.baseline.replicas == gain.candidate.replicas for gain in gains)
        count = f", {replicas_in_words(self.replicas)}" if same else ""
        return f"{self.workload}{count}{condition}: {self.sentence}"

    @property
    def sharing_gain(self) -> str:
        """What sharing gains against one replica alone, in words; empty where that was not measured."""
        if self.alone is None or self.alone.outcome is Outcome.INCONCLUSIVE:
            return ""
        cell, doubt = self.alone.candidate, "" if self.alone.significant else ", not significant"
        more = percent_more(self.alone.ratio)
        return f"{mode_name(cell.mode)}, {replicas_in_words(cell.replicas)}: {more} throughput against one replica alone{doubt}."

    def document(self) -> dict[str, object]:
        """For a program."""
        return {
            "workload": self.workload,
            "condition": self.condition,
            "replicas": self.replicas,
            "modes": list(self.modes),
            "decided": self.decided,
            "sentence": self.sentence,
            "unclear": self.unclear,
            "sharing_gain": self.sharing_gain,
            "by_metric": [best.document() for best in self.by_metric],
            "weak": list(self.weak),
        }


def in_one_sentence(decisions: Sequence[Decision], neighbours: Sequence[str] | None = None) -> str:
    """What to use for all of them, the only function that says it; workloads with the same answer are named together.

    ``neighbours``: sentences of when another mode is better beside neighbours; None: that was not measured.
    """
    groups: dict[tuple[object, ...], list[Decision]] = {}
    for decision in decisions:
        winner = decision.winner
        shared = (winner.metric, winner.best.mode, *decision.compared) if winner and winner.best else ()
        groups.setdefault(shared, []).append(decision)
    several = len(groups) > 1
    said = [f"{_of(group) if several else ''}{_recommended(group)}." for group in groups.values()]
    return " ".join([*said, *(_beside(decisions) if neighbours is None else neighbours)])


def _of(group: Sequence[Decision]) -> str:
    return f"{', '.join(dict.fromkeys(decision.workload for decision in group))}: "


def _recommended(group: Sequence[Decision]) -> str:
    """Which mode, what it gains or loses by what differs significantly everywhere, and what single workloads lose."""
    winner = group[0].winner
    if winner is None or winner.best is None:
        known = [(decision.workload, best) for decision in group for best in decision.by_metric[:1]]
        named = (f"{f'{workload}, ' if len(known) > 1 else ''}{_so_far(best)}" for workload, best in known)
        return f"No clear winner: {'; '.join(named)}"
    effects = {metric: [(it.workload, it.effects.get(metric)) for it in group] for metric in DECIDES}
    changes = {metric: phrase for metric, of in effects.items() if (phrase := _change([it for _, it in of]))}
    losses = [loss for metric, of in effects.items() if metric not in changes for loss in _losses(of)]
    but = f"; but {', '.join(losses)}" if losses else ""
    best, baseline = group[0].compared
    gains = f": {', '.join(changes.values())} vs {baseline}" if changes else ""
    return f"Use {best or mode_name(winner.best.mode)}{_if_shared(winner.best.mode)}{gains}{but}{_undecided(group)}"


def _losses(effects: Sequence[tuple[str, Contrast | None]]) -> list[str]:
    """One metric of the workloads that lose significantly by it: ``resnet50: 15% more energy``."""
    return [f"{workload}: {_change([it])}" for workload, it in effects if it and it.significant and not better(it)]


def _undecided(group: Sequence[Decision]) -> str:
    """What became of the first metric, where the winner is one by another."""
    unclear = [(it.workload, it.by_metric[0]) for it in group if it.by_metric[0].certainty is not Certainty.BEST]
    words = [
        (
            workload,
            f"{best.title}{': no clear winner' if best.certainty is Certainty.INCONCLUSIVE else f' {best.certainty}'}",
        )
        for workload, best in unclear
    ]
    if len(words) == len(group) and len({word for _, word in words}) == 1:
        return f"; {words[0][1]}"
    return "".join(f"; {workload}: {word}" for workload, word in words)


def sides(contrast: Contrast) -> tuple[str, str]:
    """The candidate and the baseline: their modes, with the replicas where these differ."""
    both = (contrast.candidate, contrast.baseline)
    if both[0].replicas == both[1].replicas:
        return mode_name(both[0].mode), mode_name(both[1].mode)
    first, second = (f"{mode_name(cell.mode)} with {replicas_in_words(cell.replicas)}" for cell in both)
    return first, second


def better(contrast: Contrast) -> bool:
    """Whether the candidate is significantly better by its metric."""
    return contrast.outcome is (Outcome.HIGHER if ALL[contrast.metric].higher_is_better else Outcome.LOWER)


def _if_shared(mode: str) -> str:
    return " if all replicas are yours" if mode_of(_plain(mode)).caution else ""


def _change(contrasts: Sequence[Contrast | None]) -> str:
    """One metric of several workloads: ``+137% throughput (117 to 158%)``, ``22 to 46% less energy``; empty unless all agree."""
    known = [contrast for contrast in contrasts if contrast and contrast.significant]
    if not known or len(known) < len(contrasts) or len({contrast.outcome for contrast in known}) > 1:
        return ""
    ratios = [contrast.ratio for contrast in known]
    more, less, noun = _NOUNS[known[0].metric]
    if more == "+":
        interval = percent(ratios[0])[1] if len(ratios) == 1 else ""
        return f"{span(ratios)} {noun}{f' ({interval})' if interval else ''}"
    return f"{span(ratios, signs=False)} {less if known[0].outcome is Outcome.LOWER else more} {noun}"


def _beside(decisions: Sequence[Decision]) -> list[str]:
    """What is known of the modes without a measurement, and said as that."""
    won = [winner.best.mode for decision in decisions if (winner := decision.winner) and winner.best]
    cautions = dict.fromkeys(mode_of(_plain(mode)).caution for mode in won)
    safe = [mode for decision in decisions for mode in decision.modes if not mode_of(_plain(mode)).caution]
    if not safe or not cautions or "" in cautions:
        return []
    return [
        f"Not measured here: {mode_name(caution[0].lower() + caution[1:].removesuffix('.'))}; not so under {mode_name(safe[0])}."
        for caution in cautions
    ]


def decisions(comparison: Comparison) -> list[Decision]:
    """For each workload of each campaign and condition, with the most replicas that several modes have; none where one mode was measured."""
    return list(_decisions(comparison)) if comparison.by in _BY_MODE else []


def _decisions(comparison: Comparison) -> Iterator[Decision]:
    for rest in dict.fromkeys(arm.rest for arm in comparison.arms):
        arms = [arm for arm in comparison.arms if arm.rest == rest]
        for workload in dict.fromkeys(key.workload for arm in arms for key in arm.cells):
            counts = sorted({count for arm in arms for count in arm.counts(workload)}, reverse=True)
            shared = [arm for arm in arms if not mode_of(arm.sharing).own_gpu]
            places = [[arm.cells[key] for arm in shared if (key := CellKey(workload, n)) in arm.cells] for n in counts]
            cells = next((place for place in places if len(place) > 1), [])
            own = [arm.cells[key] for arm in arms if arm not in shared and (key := CellKey(workload, 1)) in arm.cells]
            alone = own[0] if own else None
            if not cells:
                cells = [*own[:1], *next((place for place in places if place), [])]
            if len(cells) > 1:
                yield _decision(comparison, cells, alone)


def _decision(comparison: Comparison, cells: Sequence[Cell], alone: Cell | None) -> Decision:
    by_metric = tuple(_best(comparison, cells, metric) for metric in DECIDES if _is_chosen_by(metric, cells))
    best = by_metric[0].best if by_metric and by_metric[0].metric == "throughput" else None
    gain = None
    if alone is not None and best is not None and alone is not best and alone not in cells:
        gain = comparison.contrasts.of(alone, best, "throughput")
    most = cells[-1]
    effects = _effects(comparison, cells, by_metric)
    return Decision(
        most.workload,
        most.condition,
        most.replicas,
        tuple(cell.mode for cell in cells),
        by_metric,
        gain,
        tuple(_weak(cells)),
        effects,
    )


def _effects(comparison: Comparison, cells: Sequence[Cell], by_metric: Sequence[BestMode]) -> dict[str, Contrast]:
    """The winner against time-slicing, which is what a GPU does by itself, or else against the runner-up."""
    known = [best for best in by_metric if best.gain]
    chosen = next((best for best in known if best.certainty is Certainty.BEST), known[0] if known else None)
    if chosen is None or chosen.best is None or chosen.gain is None:
        return {}
    usual = (cell for cell in cells if mode_of(cell.sharing).takes_turns and cell is not chosen.best)
    baseline = next(usual, chosen.gain.baseline)
    contrasts = {best.metric: comparison.contrasts.of(baseline, chosen.best, best.metric) for best in by_metric}
    return {metric: contrast for metric, contrast in contrasts.items() if contrast}


def _is_chosen_by(metric: str, cells: Sequence[Cell]) -> bool:
    """At a rate that was set throughput is that rate, and no mode's."""
    return metric != "throughput" or not any(cell.paced for cell in cells)


def _best(comparison: Comparison, cells: Sequence[Cell], metric: str) -> BestMode:
    measured = [cell for cell in cells if metric in cell.estimates]
    if len(measured) < len(cells):
        why = next((cell.absent[metric] for cell in cells if metric in cell.absent), "")
        return BestMode(metric, Certainty.NOT_MEASURED, why)
    best, *others = sorted(
        measured, key=lambda cell: cell.estimates[metric].mean, reverse=bool(ALL[metric].higher_is_better)
    )
    gains = tuple(gain for other in others if (gain := comparison.contrasts.of(other, best, metric)))
    if len(gains) < len(others):
        return BestMode(metric, Certainty.NOT_MEASURED)
    return BestMode(metric, _certainty(gains), "", best, gains)


def _certainty(gains: Sequence[Contrast]) -> Certainty:
    if all(map(better, gains)):
        return Certainty.BEST
    unsure = [gain.ratio for gain in gains if not better(gain)]
    if any(gain.significant and not better(gain) for gain in gains):  # of pairs, the ratio may contradict the means
        return Certainty.INCONCLUSIVE
    if all(within(ratio, AS_GOOD_WITHIN) is Outcome.AGREES for ratio in unsure):
        return Certainty.EQUAL
    narrow = all((half := ratio.half_width) is not None and half <= AS_GOOD_WITHIN for ratio in unsure)
    return Certainty.KNOWN if narrow else Certainty.INCONCLUSIVE


def _weak(cells: Sequence[Cell]) -> Iterator[str]:
    degraded = sum(cell.badge == "DEGRADED" for cell in cells)
    if degraded:
        yield f"{degraded} of {len(cells)} configurations have DEGRADED runs, which are counted."
    few = min(len(cell.used) for cell in cells)
    if few < 3:
        yield f"A configuration has {few} runs; 3 or more show its spread better."


def _plain(mode: str) -> str:
    """The sharing mode without the limits of MPS, or the time slice."""
    return mode.partition(" (")[0]


def _so_far(best: BestMode) -> str:
    gain, word = best.gain, best.certainty.value
    if gain is None:
        return f"{best.title} {word}{f' ({best.why})' if best.why else ''}"
    seen, rival = sides(gain)
    return f"{best.title} {word} ({seen} vs {rival}: {percent_more(gain.ratio)})"
