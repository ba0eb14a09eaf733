"""CPUs of each replica's own: whole cores where they can be, near its GPU, and nobody else's among the pinned."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness.backends.devices import places
from harness.errors import BackendError, Finding, Severity, counted
from harness.metrics.nvml import GpuFacts
from harness.spec import Device, ExperimentSpec, WorkloadSpec

TOPOLOGY = Path("/sys/devices/system/cpu")
_ADVICE = "Lower cpus_per_replica or the replicas, or start the harness where it may use more CPUs."


def deal(experiment: ExperimentSpec, gpus: Sequence[GpuFacts]) -> list[tuple[int, ...]]:
    """The CPUs of each replica, the measured ones first and then the neighbours'; none for one that is to have no own.

    Threads of one core go to one replica. First those near its GPU are dealt out, then the others.

    Raises:
        BackendError: there are too few.
    """
    free = sorted(os.sched_getaffinity(0), key=lambda cpu: (_core(cpu), cpu))
    on = places(experiment, gpus)
    dealt: list[tuple[int, ...]] = []
    for position, workload in enumerate(_seated(experiment)):
        wanted = workload.cpus_per_replica or 0
        if wanted > len(free):
            raise BackendError(_too_few(experiment), advice=_ADVICE)
        near = on[position % len(on)].near_cpus if on and workload.device is not Device.CPU else ()
        chosen = sorted(free, key=lambda cpu: bool(near) and cpu not in near)[:wanted]
        free = [cpu for cpu in free if cpu not in chosen]
        dealt.append(tuple(sorted(chosen)))
    return dealt


def check_cpus(experiment: ExperimentSpec, gpus: Sequence[GpuFacts]) -> Iterator[Finding]:
    """What would keep replicas from CPUs of their own, or have them far from their GPU."""
    if _wanted(experiment) > len(os.sched_getaffinity(0)):
        yield Finding(Severity.ERROR, "cpus", _too_few(experiment), _ADVICE)
        return
    on = places(experiment, gpus)
    far = [
        position
        for position, (workload, cpus) in enumerate(zip(_seated(experiment), deal(experiment, gpus), strict=True))
        if on and workload.device is not Device.CPU
        if (near := on[position % len(on)].near_cpus) and not set(cpus) <= set(near)
    ]
    if far:
        message = f"{counted(len(far), 'replica', 'get')} CPUs that are not near their GPU: those that are do not suffice for all."
        yield Finding(Severity.WARNING, "cpus", message, _ADVICE)


def _seated(experiment: ExperimentSpec) -> list[WorkloadSpec]:
    """The workload of every replica, in the order in which they are started."""
    beside = [each.workload for each in experiment.neighbours for _ in range(each.replicas)]
    return [experiment.workload] * experiment.replicas + beside


def _wanted(experiment: ExperimentSpec) -> int:
    return sum(workload.cpus_per_replica or 0 for workload in _seated(experiment))


def _too_few(experiment: ExperimentSpec) -> str:
    usable = len(os.sched_getaffinity(0))
    return f"the replicas want {_wanted(experiment)} CPUs of their own, and the harness may use {usable}."


def _core(cpu: int) -> int:
    """The first CPU of the core that this one is a thread of; itself where Linux does not tell."""
    try:
        siblings = (TOPOLOGY / f"cpu{cpu}/topology/thread_siblings_list").read_text(encoding="ascii")
    except OSError:
        return cpu
    return int(siblings.replace("-", ",").split(",")[0])
