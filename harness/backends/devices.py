"""The GPUs and CPUs of this machine, and which of them each replica gets."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.errors import BackendError, Issue, IssueLevel, counted
from harness.host import HOST
from harness.metrics.nvml import VISIBLE, GpuFacts, gpu_facts
from harness.sharing.modes import mode_of
from harness.spec import Device, ExperimentSpec, WorkloadSpec

_INITIAL_PID_NAMESPACE = 0xEFFFFFFC
"""Linux's own number of it (PROC_PID_INIT_INO)."""

TOPOLOGY = Path("/sys/devices/system/cpu")
_ADVICE = "Lower cpus_per_replica or the replicas, or start the harness where it may use more CPUs."


def nvml_names_our_processes() -> bool:
    """Whether the process ids that NVML gives are ours: not in a container that numbers its processes by itself."""
    return Path("/proc/self/ns/pid").stat().st_ino == _INITIAL_PID_NAMESPACE


def device_environment(experiment: ExperimentSpec, index: int) -> dict[str, str]:
    """What tells replica ``index`` which device is its own; empty where there is nothing to choose. Raises BackendError."""
    if mode_of(experiment.sharing).own_instance:
        gpus, _ = gpu_facts()
        instances = [uuid for gpu in gpus for uuid in gpu.mig_uuids]
        if index >= len(instances):
            raise BackendError(
                f"replica {index} has no MIG instance: there are {len(instances)}.",
                advice="Create more instances (nvidia-smi mig -cgi), or use fewer replicas.",
            )
        return {VISIBLE: instances[index]}
    dealt = deal(experiment, used_gpus(experiment))
    return {VISIBLE: ",".join(dealt[index % len(dealt)])} if dealt else {}


def deal(experiment: ExperimentSpec, uuids: Sequence[str]) -> list[Sequence[str]]:
    """The GPUs of each place that replicas take in turn.

    One each; as many as a replica has processes where they suffice for all. Under MPS one: a process is the client of one
    daemon, and each GPU has its own.
    """
    wide = experiment.workload.processes_per_replica
    if mode_of(experiment.sharing).concurrent or wide * experiment.cell.processes > len(uuids):
        wide = 1
    return [uuids[first : first + wide] for first in range(0, len(uuids) - wide + 1, wide)]


def places(experiment: ExperimentSpec, gpus: Sequence[GpuFacts]) -> list[GpuFacts]:
    """The GPU of each place that ``device_environment`` deals replicas out to, in turn; none where there is no GPU."""
    instances = [gpu for gpu in gpus for _ in gpu.mig_uuids] if mode_of(experiment.sharing).own_instance else []
    return instances or [*gpus[: experiment.gpus]]


def used_gpus(experiment: ExperimentSpec) -> Sequence[str]:
    """UUIDs of the GPUs that the replicas take in turn; none where there is no choice, or an instance is given. Raises BackendError."""
    given = os.environ.get(VISIBLE)
    if (given or "").startswith("MIG-"):
        return []
    gpus, _ = gpu_facts()
    if given is None and experiment.gpus == len(gpus) == 1:
        return []
    if gpus and len(gpus) < experiment.gpus:
        raise BackendError(
            f"the campaign uses {counted(experiment.gpus, 'GPU')}, and {VISIBLE} lets {len(gpus)} through here.",
            advice="Lower `gpus`.",
        )
    return [gpu.uuid for gpu in gpus[: experiment.gpus]]


def device_here(workload: WorkloadSpec) -> Device:
    """Of this machine, where it may compute."""
    return Device.CPU if workload.server is not None and workload.server.elsewhere else workload.device


def measured_on(experiments: Iterable[ExperimentSpec]) -> set[str]:
    """What nobody else may measure on meanwhile: UUIDs of the GPUs of all replicas, a MIG instance's own among them; ``HOST`` for a CPU's."""
    given, measured = os.environ.get(VISIBLE) or "", set[str]()
    gpus, _ = gpu_facts()
    for experiment in experiments:
        workloads = [experiment.workload, *(beside.workload for beside in experiment.neighbours)]
        if all(device_here(workload) is Device.CPU for workload in workloads):
            used = []
        elif given.startswith("MIG-"):
            used = [gpu for gpu in gpus if not set(gpu.mig_uuids).isdisjoint(given.split(","))] or gpus
        elif mode_of(experiment.sharing).own_instance:
            used = [gpu for gpu in gpus if gpu.mig_uuids]
        else:
            used = gpus[: experiment.gpus]
        measured |= {gpu.uuid for gpu in used} or {HOST}
    return measured


def in_use(experiment: ExperimentSpec, replicas: Sequence[tuple[Device, Mapping[str, Any]]]) -> frozenset[str]:
    """UUIDs of the GPUs that replicas are on: as each says itself, else as they were dealt out.

    ``replicas``: of all workloads, in the order in which they were started: the device asked for, and the status.
    """
    gpus, _ = gpu_facts()
    dealt, known = places(experiment, gpus), {gpu.uuid for gpu in gpus}
    given_instance = os.environ.get(VISIBLE, "").startswith("MIG-")  # of which GPU, NVML's handles do not tell
    used: set[str] = set()
    for position, (device, status) in enumerate(replicas):
        if says := known & {str(status.get(fact)) for fact in ("device_uuid", "second_device_uuid")}:
            used |= says
        elif dealt and Device.CPU not in {device, status.get("device")}:
            used |= known if given_instance else {dealt[position % len(dealt)].uuid}
    return frozenset(used)


def deal_cpus(experiment: ExperimentSpec, gpus: Sequence[GpuFacts]) -> list[tuple[int, ...]]:
    """The CPUs of each replica, the measured ones first; none for one that is to have no own. Raises BackendError: too few.

    Threads of one core go to one replica. First those near its GPU are dealt out, then the others.
    """
    free = sorted(os.sched_getaffinity(0), key=lambda cpu: (_core(cpu), cpu))
    on = places(experiment, gpus)
    dealt: list[tuple[int, ...]] = []
    for position, workload in enumerate(_seated(experiment)):
        wanted = workload.cpus_per_replica or 0
        if wanted > len(free):
            needed, usable = sum(it.cpus_per_replica or 0 for it in _seated(experiment)), len(os.sched_getaffinity(0))
            raise BackendError(
                f"the replicas want {needed} CPUs of their own, and the harness may use {usable}.", advice=_ADVICE
            )
        near = on[position % len(on)].near_cpus if on and workload.device is not Device.CPU else ()
        chosen = sorted(free, key=lambda cpu: bool(near) and cpu not in near)[:wanted]
        free = [cpu for cpu in free if cpu not in chosen]
        dealt.append(tuple(sorted(chosen)))
    return dealt


def check_cpus(experiment: ExperimentSpec, gpus: Sequence[GpuFacts]) -> Iterator[Issue]:
    """What would keep replicas from CPUs of their own, or have them far from their GPU."""
    try:
        dealt = deal_cpus(experiment, gpus)
    except BackendError as error:
        yield Issue(IssueLevel.ERROR, "cpus", error.message, error.advice)
        return
    on = places(experiment, gpus)
    far = [
        position
        for position, (workload, cpus) in enumerate(zip(_seated(experiment), dealt, strict=True))
        if on and workload.device is not Device.CPU
        if (near := on[position % len(on)].near_cpus) and not set(cpus) <= set(near)
    ]
    if far:
        message = f"{counted(len(far), 'replica', 'get')} CPUs that are not near their GPU: those that are do not suffice for all."
        yield Issue(IssueLevel.WARNING, "cpus", message, _ADVICE)


def _seated(experiment: ExperimentSpec) -> list[WorkloadSpec]:
    """The workload of every replica, in the order in which they are started."""
    beside = [it.workload for it in experiment.neighbours for _ in range(it.replicas)]
    return [experiment.workload] * experiment.replicas + beside


def _core(cpu: int) -> int:
    """The first CPU of the core that this one is a thread of; itself where Linux does not tell."""
    try:
        siblings = (TOPOLOGY / f"cpu{cpu}/topology/thread_siblings_list").read_text(encoding="ascii")
    except OSError:
        return cpu
    return int(siblings.replace("-", ",").split(",")[0])
