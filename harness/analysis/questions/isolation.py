"""Which mode isolates best from neighbours? What each leaves of a service beside the worst of them, and what it costs elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from harness.analysis.campaign import CampaignAnalysis, shared
from harness.analysis.comparability import gpu_names
from harness.analysis.contrasts.comparison import CellKey, Comparison, settings_of
from harness.analysis.format import mode_name, replicas_in_words, times
from harness.analysis.questions.condition_overhead import Interference, Kept, Overhead, interference
from harness.analysis.questions.recommendation import costs
from harness.analysis.statistics import SIGNIFICANCE, Estimate, LogRatio, corrected, unpaired

NOT_MEASURED = (
    "Not measured. Add a campaign with `neighbours` to compare isolation. For replicas of one workload, see the lowest p99 and "
    "the fairest."
)
ONE_MODE = "No neighbour was measured under two modes. Add a second mode to `sharing`."


@dataclass(frozen=True, slots=True)
class IsolationChoice:
    """The mode that leaves a service most beside its worst neighbour. ``p`` is corrected for every pair of modes of every service."""

    service: str
    best: Kept
    next: Kept
    neighbours: int
    gain: Estimate | None
    p: float | None
    costs: str = ""
    every: Sequence[Kept] = ()

    @property
    def significant(self) -> bool:
        """Whether the best keeps significantly more than the runner-up."""
        return self.p is not None and self.p < SIGNIFICANCE

    @property
    def decided(self) -> bool:
        """Whether the metrics or a death tell the best from the runner-up."""
        return self.significant or self.best.rank[0] < self.next.rank[0]

    @property
    def takeaway(self) -> str:
        """What the best and the runner-up keep, their ratio, and what the best costs elsewhere."""
        word = "Significant" if self.significant else "Not significant" if self.decided else "No clear winner"
        ratio = f" {word}: {times(self.gain)}." if self.gain else ""
        price = f" But {self.costs}." if self.costs else ""
        clear = "" if self.decided or ratio else " No clear winner."
        worst = f"with the worst of {self.neighbours} neighbours" if self.neighbours > 1 else "with its neighbour"
        return f"{self.service}, {worst}: {self.best.in_words}; {self.next.in_words}.{ratio}{clear}{price}"


@dataclass(frozen=True, slots=True)
class Isolation:
    """What there is to say of the goal of being isolated from neighbours.

    Attributes:
        best: the mode for every service that was measured beside neighbours under several modes.
        instead: why no mode can be named, with what is known; empty where one is.
        conditions: what those are that all this names.
        apart: with which settings and GPU that was measured, where it was by a campaign that stands beside the others.
        deeds: what hostile neighbours do under each condition, e.g. ``fill the memory bandwidth``.
    """

    best: list[IsolationChoice]
    instead: list[str]
    conditions: str = ""
    apart: str = ""
    deeds: Mapping[str, str] = field(default_factory=dict)

    def deeds_against(self, kept: Kept) -> list[str]:
        """What neighbours do that a mode does not protect from: those that end the service, then the one that costs it most."""
        worst = [kept.worst.key.condition] if kept.worst else []
        return [*dict.fromkeys(deed for name in (*kept.deaths, *worst) if (deed := self.deeds.get(name)))]

    @property
    def sentences(self) -> list[str]:
        """All of it."""
        conditions = f"({self.conditions}.)" if self.conditions else ""
        return [*(choice.takeaway for choice in self.best), *self.instead, *filter(None, [conditions, self.apart])]


def overheads(comparison: Comparison) -> Interference | None:
    """Every condition of one campaign against its first, paired by repeat; None without conditions, or with several such campaigns."""
    analysis = _with_conditions(comparison)
    return interference(analysis) if analysis else None


def isolated(comparison: Comparison, interference: Interference | None) -> Isolation:
    """Which mode isolates best from neighbours, or why the campaigns do not say."""
    analysis = _with_conditions(comparison)
    conditions = analysis.spec.conditions if analysis and analysis.spec else []
    if interference is None or analysis is None or not any(condition.neighbours for condition in conditions):
        return Isolation([], [NOT_MEASURED])
    best = isolation_choices(comparison, analysis, interference)
    instead = [] if best else [ONE_MODE, *interference.worst()]
    explained = interference.explained([*(choice.takeaway for choice in best), *instead])
    deeds = {condition.name: condition.deed for condition in conditions}
    return Isolation(best, instead, explained, _apart(comparison.beside), deeds)


def _with_conditions(comparison: Comparison) -> CampaignAnalysis | None:
    return comparison.beside or (comparison.analyses[0] if len(comparison.analyses) == 1 else None)


def _apart(beside: CampaignAnalysis | None) -> str:
    if beside is None:
        return ""
    manifests = [experiment.data.manifest for experiment in beside.experiments]
    settings = ", ".join(f"{name} with {words}" for name, words in settings_of(manifests).items())
    where = gpu_names(manifests[0]) if manifests[0].gpus else "no GPU"
    return f"Measured apart: {beside.name}, {settings}, on {where}."


def isolation_choices(
    comparison: Comparison, beside: CampaignAnalysis, interference: Interference
) -> list[IsolationChoice]:
    """The best mode for every service that was measured beside the same neighbours under several modes; ``comparison`` has the costs."""
    conditions = [condition.name for condition in beside.spec.conditions if condition.neighbours] if beside.spec else []
    ranked: dict[CellKey, list[Kept]] = {}
    neighbours: dict[CellKey, int] = {}
    for service in interference.services():
        common = _common(interference, service, conditions)
        kept = interference.kept(service, common)
        if common and len(kept) > 1:
            ranked[service], neighbours[service] = kept, len(common)
    tests = {
        (service, a.mode, b.mode): test
        for service, kept in ranked.items()
        for a, b in combinations(kept, 2)
        if (test := _test(a, b)) is not None
    }
    choices = []
    for service, (best, runner_up, *_) in ranked.items():
        gain, p = _gain(tests, service, best, runner_up)
        words = f"{service.workload}, {replicas_in_words(service.replicas)}"
        lost = _costs(comparison, interference, best.mode, runner_up.mode)
        choices.append(IsolationChoice(words, best, runner_up, neighbours[service], gain, p, lost, ranked[service]))
    return choices


def _test(best: Kept, other: Kept) -> LogRatio | None:
    """The shares that two modes leave; what a repeat was like has gone from each, which is a ratio within its repeat."""
    if best.worst is None or other.worst is None:
        return None
    try:
        return unpaired([*best.worst.kept.values()], [*other.worst.kept.values()])
    except ValueError:
        return None


def _common(interference: Interference, service: CellKey, conditions: Sequence[str]) -> list[str]:
    """The conditions that every mode has an outcome of: a figure, or a death."""
    modes: dict[str, set[str]] = {}
    for key, by_measure in interference.overheads.items():
        measured = isinstance(by_measure["throughput"], Overhead) or key in interference.died
        if (key.workload, key.replicas) == service and measured:
            modes.setdefault(key.condition, set()).add(interference.modes[key])
    every_mode = {interference.modes[key] for key in interference.overheads if (key.workload, key.replicas) == service}
    return [name for name in conditions if modes.get(name) == every_mode]


def _gain(
    tests: Mapping[tuple[CellKey, str, str], LogRatio], service: CellKey, best: Kept, runner_up: Kept
) -> tuple[Estimate | None, float | None]:
    """What the best keeps over what the runner-up does, and its corrected p."""
    own = (service, best.mode, runner_up.mode)
    test = tests.get(own)
    if test is None or best.worst is None or runner_up.worst is None:
        return None, None
    overheads = (best.worst.contrast, runner_up.worst.contrast)
    share = shared(*(cell for contrast in overheads for cell in (contrast.baseline, contrast.candidate)))
    if test.p is None:
        return test.estimate(share), None
    ps = (other.careful.p for key, other in tests.items() if key != own)
    gain, _, p = corrected(test, [min(p / share, 1.0) for p in ps if p is not None], share)
    return gain, p


def _costs(comparison: Comparison, interference: Interference, best: str, runner_up: str) -> str:
    """What the one mode loses against the other with as many replicas as both were measured with, workload by workload."""
    parts = []
    for workload in comparison.workloads():
        for count in reversed(comparison.counts(workload)):
            by_mode = {
                cell.mode: cell
                for _, cell in comparison.with_replicas(workload, count)
                if cell.condition in {"", interference.baseline}
            }
            if best in by_mode and runner_up in by_mode:
                lost = costs(comparison.contrasts, by_mode[best], by_mode[runner_up])
                parts += [f"{workload}, {replicas_in_words(count)}: {', '.join(lost)}"] if lost else []
                break
    return f"{'; '.join(parts)} vs {mode_name(runner_up)}" if parts else ""
