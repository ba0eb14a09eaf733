"""Which mode isolates best from neighbours? What each leaves of a service beside the worst of them, and what it costs elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from harness.analysis.campaign import CampaignAnalysis, shared
from harness.analysis.contrasts.comparison import CellKey, Comparison
from harness.analysis.contrasts.contrast import corrected
from harness.analysis.contrasts.outcome import Outcome
from harness.analysis.format import TIMES, number, ratio_interval, replicas_in_words
from harness.analysis.questions.condition_overhead import Interference, Overhead
from harness.analysis.questions.recommendation import costs
from harness.analysis.statistics import SIGNIFICANCE, Estimate, LogRatio, unpaired

NOT_MEASURED = (
    "Not measured: a campaign whose conditions have neighbours, compared together with these, would tell. "
    "Between replicas of one workload, the lowest p99 and the fairest say it."
)
ONE_MODE = (
    "No neighbour was measured under two modes, so that there is nothing to choose from; two in `sharing` would tell."
)


@dataclass(frozen=True, slots=True)
class Left:
    """What one mode leaves of a service beside its worst neighbour. ``deaths``: in how many of how many runs, by condition."""

    mode: str
    worst: Overhead | None
    deaths: dict[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def rank(self) -> tuple[float, float]:
        """The lower the better: a service that lives before one that dies, then the one that keeps more."""
        dies = max((died / runs for died, runs in self.deaths.values()), default=0.0)
        return dies, self.worst.percent.mean if self.worst else 100.0

    @property
    def figure(self) -> str:
        """``62.2 % of its throughput kept (58.5 to 66.2)``."""
        if self.worst is None:
            return "no figure"
        interval = ratio_interval(self.worst.contrast.ratio.scaled(100))
        return f"{number(100 - self.worst.percent.mean)} % of its throughput kept{f' ({interval})' if interval else ''}"

    @property
    def where(self) -> str:
        """``, beside-l2-hog``: the condition that takes most."""
        return f", {self.worst.key.condition}" if self.worst else ""

    @property
    def died(self) -> str:
        """``, and died under beside-crash in 2 of 2 runs``; empty where it did not."""
        told = [f"under {name} in {died} of {runs} runs" for name, (died, runs) in self.deaths.items()]
        return f", and died {', '.join(told)}" if told else ""


@dataclass(frozen=True, slots=True)
class IsolationChoice:
    """The mode that leaves a service most beside its worst neighbour. ``p`` is corrected for every pair of modes of every service."""

    service: str
    best: Left
    next: Left
    neighbours: int
    gain: Estimate | None
    p: float | None
    costs: str = ""

    @property
    def choice(self) -> str:
        """The mode, where the figures or a death tell one from the other."""
        clear = (self.p is not None and self.p < SIGNIFICANCE) or self.best.rank[0] < self.next.rank[0]
        return self.best.mode if clear else f"either (here {self.best.mode})"

    @property
    def figure(self) -> str:
        """What the best keeps, and where."""
        where = f"the worst of {self.neighbours} conditions" if self.neighbours > 1 else "the condition"
        return f"{self.best.figure} under {where}{self.best.where}{self.best.died}"

    @property
    def sure(self) -> str:
        """How sure that is, and what the runner-up keeps."""
        if self.gain is None:
            return f"{self.next.mode}: {self.next.figure}{self.next.where}{self.next.died}"
        interval = ratio_interval(self.gain)
        against = f"{number(self.gain.mean)} {TIMES} {self.next.mode}{f' ({interval})' if interval else ''}"
        sure = (
            "cannot tell: repeat it"
            if self.p is None
            else "significant"
            if self.p < SIGNIFICANCE
            else Outcome.NOT_SIGNIFICANT
        )
        return f"{sure}: {against}, with {self.next.figure} under its worst{self.next.where}{self.next.died}"

    @property
    def sentence(self) -> str:
        """All of it."""
        price = f"; but {self.costs}" if self.costs else ""
        return f"{self.service}: {self.choice}, {self.figure}; {self.sure}{price}."


def isolation_choices(comparison: Comparison, beside: CampaignAnalysis, found: Interference) -> list[IsolationChoice]:
    """The best mode for every service that was measured beside the same neighbours under several modes.

    Args:
        comparison: where the costs are looked up.
        beside: the campaign with conditions.
        found: its overheads.
    """
    conditions = [condition.name for condition in beside.spec.conditions if condition.neighbours] if beside.spec else []
    services: dict[CellKey, list[Left]] = {}
    neighbours: dict[CellKey, int] = {}
    for service in dict.fromkeys(CellKey(key.workload, key.replicas) for key in found.overheads):
        named = _common(found, service, conditions)
        left = sorted(
            (_left(found, service, mode, named) for mode in _modes(found, service)), key=lambda mode: mode.rank
        )
        if named and len(left) > 1:
            services[service], neighbours[service] = left, len(named)
    tests = {
        (service, a.mode, b.mode): test
        for service, left in services.items()
        for a, b in combinations(left, 2)
        if (test := _test(a, b)) is not None
    }
    return [_choose(comparison, found, service, left, neighbours[service], tests) for service, left in services.items()]


def _test(best: Left, other: Left) -> LogRatio | None:
    """The shares that two modes leave; what a repeat was like has gone from each, which is a ratio within its repeat."""
    if best.worst is None or other.worst is None:
        return None
    try:
        return unpaired([*best.worst.kept.values()], [*other.worst.kept.values()])
    except ValueError:
        return None


def _modes(found: Interference, service: CellKey) -> list[str]:
    return list(dict.fromkeys(key.mode for key in found.overheads if (key.workload, key.replicas) == service))


def _common(found: Interference, service: CellKey, conditions: Sequence[str]) -> list[str]:
    """The conditions that every mode has an outcome of: a figure, or a death."""
    told: dict[str, set[str]] = {}
    for key, by_measure in found.overheads.items():
        if (key.workload, key.replicas) == service and (
            isinstance(by_measure["throughput"], Overhead) or key in found.died
        ):
            told.setdefault(key.condition, set()).add(key.mode)
    return [name for name in conditions if told.get(name) == set(_modes(found, service))]


def _left(found: Interference, service: CellKey, mode: str, conditions: Sequence[str]) -> Left:
    keys = [
        key
        for key in found.overheads
        if (key.workload, key.replicas, key.mode) == (*service, mode) and key.condition in conditions
    ]
    losses = [loss for key in keys if isinstance(loss := found.overheads[key]["throughput"], Overhead)]
    worst = max(losses, key=lambda loss: loss.percent.mean, default=None)
    return Left(mode, worst, {key.condition: found.died[key] for key in keys if key in found.died})


def _choose(
    comparison: Comparison,
    found: Interference,
    service: CellKey,
    left: Sequence[Left],
    neighbours: int,
    tests: Mapping[tuple[CellKey, str, str], LogRatio],
) -> IsolationChoice:
    best, runner_up = left[0], left[1]
    own = (service, best.mode, runner_up.mode)
    test, gain, p = tests.get(own), None, None
    if test is not None and best.worst and runner_up.worst:
        overheads = (best.worst.contrast, runner_up.worst.contrast)
        share = shared(*(cell for contrast in overheads for cell in (contrast.baseline, contrast.candidate)))
        gain = test.estimate(share)
        if test.p is not None:
            ps = (other.careful.p for key, other in tests.items() if key != own)
            others = [min(other / share, 1.0) for other in ps if other is not None]
            gain, _, p = corrected(test, others, share)
    words = f"{service.workload}, {replicas_in_words(service.replicas)}"
    return IsolationChoice(
        words, best, runner_up, neighbours, gain, p, _costs(comparison, found, best.mode, runner_up.mode)
    )


def _costs(comparison: Comparison, found: Interference, best: str, runner_up: str) -> str:
    """What the one mode loses against the other with as many replicas as both were measured with, workload by workload."""
    told = []
    for workload in comparison.workloads():
        for count in reversed(comparison.counts(workload)):
            by_mode = {
                cell.mode: cell
                for arm in comparison.arms
                if (cell := arm.cells.get(CellKey(workload, count))) and cell.condition in {"", found.baseline}
            }
            if best in by_mode and runner_up in by_mode:
                lost = costs(comparison.contrasts, by_mode[best], by_mode[runner_up])
                if lost:
                    told.append(f"{workload}, {replicas_in_words(count)}: {', '.join(lost)}")
                break
    return f"{'; '.join(told)} against {runner_up}" if told else ""
