"""What holds a workload back: its time divided among seven causes, and the largest named where the figures allow it.

Every rule gives the share of the time that its cause explains, at least. The shares exclude one another: while no kernel
runs, torch's trace says what the host did; while kernels run, the activity of the processors (SM) and of the memory
divides the time. What no figure explains may belong to any cause whose figures are missing, so that a cause is named
only where it stays the largest even then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from harness.analysis.format import quantity
from harness.analysis.metrics.catalogue import ALL

LEAST_SHARE = 0.25
"""Of the time: a cause that explains less is not what holds a workload back."""
SAME_WITHIN = 0.1
"""Causes whose shares differ by less are named together."""
DRAM_REACHABLE = 0.9
"""Of the memory's bandwidth, as NVML counts it: more is not reached by any kernel."""


class Cause(StrEnum):
    """What time is spent on."""

    HOST = "host CPU"
    COPY = "input copy"
    LAUNCHES = "kernel launches"
    MEMORY = "memory bandwidth"
    COMPUTE = "compute"
    POWER = "power cap"
    SYNC = "synchronisation"


Figures = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Rule:
    """One cause and its share of the time, 0 to 1, from the metrics that are there; at least so much.

    ``needs``: metrics without which it cannot be told how large its share is. ``evidence``: those that speak for it: name, unit and
    words. ``following``: what to change.
    """

    cause: Cause
    needs: tuple[str, ...]
    share: Callable[[Figures], float]
    evidence: tuple[tuple[str, str, str], ...]
    following: str


def _sum(*names: str) -> Callable[[Figures], float]:
    return lambda figures: sum(figures.get(name, 0.0) for name in names)


def _active(figures: Figures) -> float:
    return figures.get("gpu_sm_active", 0.0) / 100


def _memory(figures: Figures) -> float:
    return min(figures.get("gpu_dram_active_percent", 0.0) / 100 / DRAM_REACHABLE, _active(figures))


def _computing(figures: Figures) -> float:
    """Share of the time in which the processors compute and the memory is not the reason."""
    known = {"gpu_dram_active_percent", "gpu_power_capped"} <= figures.keys()
    return max(_active(figures) - _memory(figures), 0.0) if known else 0.0


def _capped(figures: Figures) -> float:
    return figures.get("gpu_power_capped", 0.0) / 100


def _launches(figures: Figures) -> float:
    """Waiting for the next kernel; and kernels too small to fill the GPU, which the same changes help."""
    busy = figures.get("kernel_busy_share", 0.0) if "gpu_sm_active" in figures else 0.0
    return figures.get("idle_launch_share", 0.0) + max(busy - _active(figures), 0.0)


_PERCENT, _SHARE = "%", "share"
_SM = ("gpu_sm_active", _PERCENT, "SM activity")
_DRAM = ("gpu_dram_active_percent", _PERCENT, "memory activity")
_BUSY = ("kernel_busy_share", _SHARE, "of the time a kernel runs")

RULES: tuple[Rule, ...] = (
    Rule(
        Cause.HOST,
        ("idle_host_share",),
        _sum("idle_host_share"),
        (
            ("idle_host_share", _SHARE, "of the time the GPU waits while the host does other things than launch"),
            ("cpu_usage", "", "CPU cores busy in the process"),
            ("host_cpu_percent", _PERCENT, "of the host's CPU busy"),
        ),
        "Prepare inputs ahead of time in threads or processes (option prefetch), prepare them on the GPU, "
        "or give the replica more CPU.",
    ),
    Rule(
        Cause.COPY,
        ("copy_in_share",),
        _sum("copy_in_share"),
        (
            ("copy_in_share", _SHARE, "of the time only a copy to the GPU runs"),
            ("gpu_pcie_received_bytes_per_s", "bytes/s", "come over PCIe"),
        ),
        "Copy from page-locked memory on a stream of its own while the batch before computes, and send smaller numbers "
        "(uint8 instead of fp32).",
    ),
    Rule(
        Cause.LAUNCHES,
        ("idle_launch_share", "kernel_busy_share", "gpu_sm_active"),
        _launches,
        (
            ("idle_launch_share", _SHARE, "of the time the next kernel is being launched"),
            ("kernels_per_request", "", "kernels per request"),
            ("kernel_mean_s", "s", "a kernel"),
            _SM,
        ),
        "Raise the batch size, use CUDA graphs or torch.compile to launch fewer and larger kernels, "
        "or share the GPU among replicas under MPS.",
    ),
    Rule(
        Cause.MEMORY,
        ("gpu_dram_active_percent", "gpu_sm_active"),
        _memory,
        (_DRAM, _SM, _BUSY),
        "Move fewer bytes: fp16 or bf16, channels-last, fused operators (torch.compile).",
    ),
    Rule(
        Cause.COMPUTE,
        ("gpu_sm_active", "gpu_dram_active_percent", "gpu_power_capped"),
        lambda figures: _computing(figures) * (1 - _capped(figures)),
        (_SM, ("gpu_tensor_active_percent", _PERCENT, "tensor core activity"), _DRAM),
        "The GPU itself is full: use its tensor cores (fp16, bf16 or TF32, channels last) as far as they are not, or a smaller model.",
    ),
    Rule(
        Cause.POWER,
        ("gpu_power_capped", "gpu_sm_active", "gpu_dram_active_percent"),
        lambda figures: _computing(figures) * _capped(figures),
        (
            ("gpu_power_capped", _PERCENT, "of the readings at the power cap"),
            ("gpu_power", "W", "drawn"),
            ("gpu_sm_clock_mhz", "MHz", "clock of the processors"),
        ),
        "Raise the power limit where it may be raised, or do less work for each input (lower precision, fused operators).",
    ),
    Rule(
        Cause.SYNC,
        ("idle_sync_share", "copy_out_share"),
        _sum("idle_sync_share", "copy_out_share"),
        (
            ("idle_sync_share", _SHARE, "of the time the GPU has run dry because the host waited for it"),
            ("copy_out_share", _SHARE, "of the time only a copy to the host runs"),
        ),
        "Bring results to the host once a request and not between (no .item(), .cpu() or synchronize() inside), "
        "and have the next batch under way before this one is waited for.",
    ),
)


@dataclass(frozen=True, slots=True)
class BottleneckFound:
    """What holds a workload back.

    ``causes``: several where they cannot be told apart; none where nothing dominates or it cannot be told. ``shares``: of the time by
    cause, at least; None: no figure says. ``evidence``, ``following`` and ``missing``: what speaks for the causes, what to change
    next, and why it cannot be told, a sentence each.
    """

    causes: tuple[Cause, ...]
    sentence: str
    shares: Mapping[Cause, float | None]
    evidence: tuple[str, ...] = ()
    following: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


def find(figures: Figures, missing: Mapping[str, str]) -> BottleneckFound:
    """Name what holds a workload back, from the metrics of one setting and the reasons for those that were not measured."""
    least = {rule.cause: min(max(rule.share(figures), 0.0), 1.0) for rule in RULES}
    unknown = {rule.cause for rule in RULES if not figures.keys() >= set(rule.needs)}
    shares = {cause: None if cause in unknown and not share else share for cause, share in least.items()}
    unexplained = max(1.0 - sum(least.values()), 0.0)
    first, *others = order = sorted(least, key=lambda cause: -least[cause])
    rivals = [cause for cause in others if cause in unknown and least[cause] + unexplained >= least[first]]
    dominates = least[first] >= LEAST_SHARE
    if rivals or (first in unknown and not dominates):
        known = f" At least {_percent(least[first])} of the time is {first}." if dominates else ""
        doubtful = {*rivals, *({first} & unknown)}
        lacking = [name for rule in RULES if rule.cause in doubtful for name in rule.needs if name not in figures]
        names_by_reason: dict[str, list[str]] = {}
        for name in dict.fromkeys(lacking):
            names_by_reason.setdefault(missing.get(name, "not measured"), []).append(name)
        why = tuple(
            f"{', '.join(ALL[name].title if name in ALL else name for name in names)}: {reason}."
            for reason, names in names_by_reason.items()
        )
        return BottleneckFound((), f"The bottleneck is unknown: metrics are missing.{known}", shares, missing=why)
    if not dominates:
        largest = ", ".join(f"{cause} {_percent(least[cause])}" for cause in order[:3])
        return BottleneckFound((), f"Nothing dominates: the largest shares of the time are {largest}.", shares)
    named = tuple(cause for cause in order if least[first] - least[cause] < SAME_WITHIN and least[cause] >= LEAST_SHARE)
    rules = [rule for cause in named for rule in RULES if rule.cause == cause]
    evidence = [
        "; ".join(f"{_shown(figures[name], unit)} {words}" for name, unit, words in rule.evidence if name in figures)
        for rule in rules
    ]
    causes = " and ".join(f"{cause} ({_percent(least[cause])} of the time)" for cause in named)
    return BottleneckFound(
        named,
        f"{'Bottlenecks' if len(named) > 1 else 'Bottleneck'}: {causes}.",
        shares,
        tuple(f"{rule.cause}: {shown}." for rule, shown in zip(rules, evidence, strict=True)),
        tuple(dict.fromkeys(rule.following for rule in rules)),
    )


def _shown(value: float, unit: str) -> str:
    if unit == _SHARE:
        return _percent(value)
    return f"{quantity(value, 'bytes')}/s" if unit == "bytes/s" else quantity(value, unit)


def _percent(share: float) -> str:
    return f"{100 * share:.0f}%"
