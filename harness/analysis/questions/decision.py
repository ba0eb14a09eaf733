"""The decision of a comparison: by throughput, p99 and energy, which sharing mode is best, by how much, and how sure that is.

One record for the terminal, the page and the JSON, and the one function that says it in a sentence. Every ratio is a ``Contrast``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from harness.analysis.campaign import Cell
from harness.analysis.contrasts.comparison import By, CellKey, Comparison
from harness.analysis.contrasts.contrast import Contrast
from harness.analysis.format import percent_more, replicas_in_words
from harness.analysis.metrics.catalogue import ALL
from harness.analysis.statistics import Outcome
from harness.sharing.modes import mode_of

DECIDES = {"throughput": "throughput", "latency_p99_exact": "p99 latency", "energy": "energy per request"}
"""Metrics by which modes are chosen, and their names in sentences."""
AS_GOOD_WITHIN = 0.05
"""Half of the interval of a ratio within which neither mode is the better one in any way that matters."""


class Certainty(StrEnum):
    """What is known about the best mode by one metric."""

    BEST = "best"
    """It is significantly better than every other."""
    EQUAL = "practically equal"
    """Another is as good, within 5%."""
    INCONCLUSIVE = "inconclusive"
    NOT_MEASURED = "not measured"


_ACRONYM = 3
_NOT_WON = {
    Certainty.EQUAL: "Practically equal:",
    Certainty.INCONCLUSIVE: "Inconclusive:",
    Certainty.NOT_MEASURED: "Not measured:",
}


@dataclass(frozen=True, slots=True)
class BestMode:
    """The best mode by one metric. ``gains``: against each other mode, the runner-up first; ratios of the best over the other."""

    metric: str
    certainty: Certainty
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
            "best": self.best.mode if self.best else None,
            "runner_up": gain.baseline.mode if gain else None,
            "ratio": gain.ratio.mean if gain else None,
            "ci95_low": gain.ratio.low if gain else None,
            "ci95_high": gain.ratio.high if gain else None,
            "p": gain.corrected_p if gain else None,
        }


@dataclass(frozen=True, slots=True)
class Decision:
    """What to use for one workload with so many replicas, under one condition.

    ``modes``: what there was to choose from; ``alone``: throughput of the best of them against one replica with the GPU to itself;
    ``weak``: sentences about what weakens it.
    """

    workload: str
    condition: str
    replicas: int
    modes: tuple[str, ...]
    by_metric: tuple[BestMode, ...]
    alone: Contrast | None = None
    weak: tuple[str, ...] = ()

    @property
    def decided(self) -> bool:
        """Whether by every metric it is known which mode is best, or that it does not matter."""
        return all(best.certainty in {Certainty.BEST, Certainty.EQUAL} for best in self.by_metric)

    @property
    def sentence(self) -> str:
        """The decision in words; the only function that says it."""
        won: dict[str, list[BestMode]] = {}
        for best in self.by_metric:
            if best.best is not None and best.certainty is Certainty.BEST:
                won.setdefault(best.best.mode, []).append(best)
        said = [_use(mode, wins, only=len(won) == 1) for mode, wins in won.items()]
        risky = [mode for mode in won if mode_of(_plain(mode)).caution]
        safe = [mode for mode in self.modes if not mode_of(_plain(mode)).caution]
        if risky and len(won) == 1 and safe:
            said.append(f"Use {_name(safe[0])} if a neighbour may crash or fill the memory bandwidth.")
        for certainty, words in _NOT_WON.items():
            if others := [best for best in self.by_metric if best.certainty is certainty]:
                said.append(f"{words} {', '.join(_so_far(best) for best in others)}.")
        return " ".join(said)

    @property
    def sharing_gain(self) -> str:
        """What sharing gains against one replica alone, in words; empty where that was not measured."""
        if self.alone is None or self.alone.outcome is Outcome.UNKNOWN:
            return ""
        mode, ratio = self.alone.candidate.mode, percent_more(self.alone.ratio)
        doubt = "" if self.alone.significant else ", which is not significant"
        return f"Against one replica alone, {replicas_in_words(self.replicas)} under {_name(mode)} serve {ratio} requests/s{doubt}."

    def document(self) -> dict[str, object]:
        """For a program."""
        return {
            "workload": self.workload,
            "condition": self.condition,
            "replicas": self.replicas,
            "modes": list(self.modes),
            "decided": self.decided,
            "sentence": self.sentence,
            "sharing_gain": self.sharing_gain,
            "by_metric": [best.document() for best in self.by_metric],
            "weak": list(self.weak),
        }


def decisions(comparison: Comparison) -> list[Decision]:
    """For each workload of each campaign and condition, with the most replicas that several modes have; none where one mode was measured."""
    return list(_decisions(comparison)) if comparison.by is By.SHARING else []


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
    return Decision(
        most.workload,
        most.condition,
        most.replicas,
        tuple(cell.mode for cell in cells),
        by_metric,
        gain,
        tuple(_weak(cells)),
    )


def _is_chosen_by(metric: str, cells: Sequence[Cell]) -> bool:
    """At a rate that was set throughput is that rate, and no mode's."""
    return metric != "throughput" or not any(cell.paced for cell in cells)


def _best(comparison: Comparison, cells: Sequence[Cell], metric: str) -> BestMode:
    measured = [cell for cell in cells if metric in cell.estimates]
    if len(measured) < len(cells):
        return BestMode(metric, Certainty.NOT_MEASURED)
    best, *others = sorted(
        measured, key=lambda cell: cell.estimates[metric].mean, reverse=bool(ALL[metric].higher_is_better)
    )
    gains = tuple(gain for other in others if (gain := comparison.contrasts.of(other, best, metric)))
    if len(gains) < len(others):
        return BestMode(metric, Certainty.NOT_MEASURED)
    return BestMode(metric, _certainty(gains), best, gains)


def _certainty(gains: Sequence[Contrast]) -> Certainty:
    unsure = [gain for gain in gains if not gain.significant]
    if not unsure:
        return Certainty.BEST
    narrow = all((half := gain.ratio.half_width) is not None and half <= AS_GOOD_WITHIN for gain in unsure)
    return Certainty.EQUAL if narrow else Certainty.INCONCLUSIVE


def _weak(cells: Sequence[Cell]) -> Iterator[str]:
    degraded = sum(cell.badge == "DEGRADED" for cell in cells)
    if degraded:
        yield f"{degraded} of {len(cells)} configurations have DEGRADED runs, which are counted."
    few = min(len(cell.used) for cell in cells)
    if few < 3:
        yield f"A configuration has {few} runs; 3 or more tell its spread better."


def _plain(mode: str) -> str:
    """The sharing mode without the limits of MPS, or the time slice."""
    return mode.partition(" (")[0]


def _name(mode: str) -> str:
    """As people write it: acronyms in capitals."""
    plain = _plain(mode)
    return mode.replace(plain, plain.upper(), 1) if len(plain) <= _ACRONYM else mode


def _use(mode: str, wins: Sequence[BestMode], *, only: bool) -> str:
    condition = " if all replicas are yours" if mode_of(_plain(mode)).caution else ""
    rivals = {gain.baseline.mode: None for win in wins if (gain := win.gain)}
    numbers = [f"{percent_more(gain.ratio)} {win.title}" for win in wins if (gain := win.gain)]
    for_what = "" if only else f" for {' and '.join(win.title for win in wins)}"
    return f"Use {_name(mode)}{for_what}{condition}: {', '.join(numbers)} against {' and '.join(map(_name, rivals))}."


def _so_far(best: BestMode) -> str:
    gain = best.gain
    if gain is None:
        return best.title
    return f"{best.title} ({_name(gain.candidate.mode)} {percent_more(gain.ratio)} against {_name(gain.baseline.mode)})"
