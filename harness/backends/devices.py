"""The GPUs of this machine, and which of them each replica gets."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.config import Device, ExperimentSpec, Sharing
from harness.errors import BackendError
from harness.metrics.nvml import VISIBLE, visible

_INITIAL_PID_NAMESPACE = 0xEFFFFFFC
"""Linux's own number of it (PROC_PID_INIT_INO)."""
_COMPUTE_MODES = {0: "default", 2: "prohibited", 3: "exclusive-process"}


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """One GPU, as preflight needs it.

    Attributes:
        uuid: what CUDA_VISIBLE_DEVICES may call it; means the same to every process, unlike its number.
        compute_mode: default, exclusive-process, prohibited; empty when the device does not tell.
        mig: it is divided into instances.
        mig_uuids: the instances there are.
        processes: ids of the processes that compute on it.
    """

    name: str
    total_bytes: int
    free_bytes: int
    uuid: str = ""
    compute_mode: str = ""
    mig: bool = False
    mig_uuids: tuple[str, ...] = ()
    processes: tuple[int, ...] = ()


def gpu_facts(library: Any = None) -> tuple[list[GpuFacts], str]:
    """The GPUs that NVML shows and CUDA_VISIBLE_DEVICES lets through, in its order; or none and the reason.

    Args:
        library: stands in for the ``pynvml`` module in tests.
    """
    import pynvml

    nvml = library or pynvml
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return [], str(error)
    try:
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        found = [_facts(nvml, handle) for handle in visible(nvml, handles)]
    except nvml.NVMLError as error:
        return [], str(error)
    finally:
        nvml.nvmlShutdown()
    return found, "" if found else f"the driver shows no device that {VISIBLE} lets through"


def nvml_names_our_processes() -> bool:
    """Whether the process ids that NVML gives are ours: not in a container that numbers its processes by itself."""
    return Path("/proc/self/ns/pid").stat().st_ino == _INITIAL_PID_NAMESPACE


def _facts(nvml: Any, handle: Any) -> GpuFacts:
    def ask(name: str, default: Any) -> Any:
        try:
            return getattr(nvml, name)(handle)
        except nvml.NVMLError:
            return default  # not every device answers every question

    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    return GpuFacts(
        name=str(nvml.nvmlDeviceGetName(handle)),
        total_bytes=int(memory.total),
        free_bytes=int(memory.free),
        uuid=str(nvml.nvmlDeviceGetUUID(handle)),
        compute_mode=_COMPUTE_MODES.get(ask("nvmlDeviceGetComputeMode", None), ""),
        mig=bool(ask("nvmlDeviceGetMigMode", (0, 0))[0]),
        mig_uuids=tuple(_mig_uuids(nvml, handle)),
        processes=tuple(process.pid for process in ask("nvmlDeviceGetComputeRunningProcesses", [])),
    )


def _mig_uuids(nvml: Any, handle: Any) -> Iterator[str]:
    try:
        places = range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle))
    except nvml.NVMLError:
        return  # the device has no MIG at all
    for place in places:
        try:
            yield str(nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place)))
        except nvml.NVMLError:
            continue  # no instance in this place


def device_environment(experiment: ExperimentSpec, index: int) -> dict[str, str]:
    """What tells replica ``index`` which device is its own; empty where there is nothing to choose.

    Raises:
        BackendError: there are fewer MIG instances than replicas.
    """
    if experiment.sharing is Sharing.MIG:
        gpus, _ = gpu_facts()
        instances = [uuid for gpu in gpus for uuid in gpu.mig_uuids]
        if index >= len(instances):
            raise BackendError(
                f"replica {index} has no MIG instance: there are {len(instances)}.",
                advice="Create more instances (nvidia-smi mig -cgi), or take fewer replicas.",
            )
        return {VISIBLE: instances[index]}
    uuids = used_gpus(experiment)
    return {VISIBLE: uuids[index % len(uuids)]} if uuids else {}


def places(experiment: ExperimentSpec, gpus: Sequence[GpuFacts]) -> list[GpuFacts]:
    """The GPU of each place that ``device_environment`` deals replicas out to, in turn; none where there is no GPU."""
    instances = [gpu for gpu in gpus for _ in gpu.mig_uuids] if experiment.sharing is Sharing.MIG else []
    return instances or [*gpus[: experiment.gpus]]


def used_gpus(experiment: ExperimentSpec) -> Sequence[str]:
    """UUIDs of the GPUs that the replicas take in turn; none where CUDA's own choice, or none at all, is the right one.

    Raises:
        BackendError: there are fewer GPUs than the campaign uses.
    """
    given = os.environ.get(VISIBLE)
    if (given is None and experiment.gpus == 1) or (given or "").startswith("MIG-"):
        return []
    gpus, _ = gpu_facts()
    if gpus and len(gpus) < experiment.gpus:
        raise BackendError(
            f"the campaign uses {experiment.gpus} GPUs, and {len(gpus)} are here and let through by {VISIBLE}.",
            advice="Lower `gpus`.",
        )
    return [gpu.uuid for gpu in gpus[: experiment.gpus]]


def in_use(experiment: ExperimentSpec, replicas: Sequence[tuple[Device, Mapping[str, Any]]]) -> frozenset[str]:
    """UUIDs of the GPUs that replicas are on: as each says itself, else as they were dealt out.

    Args:
        experiment: theirs.
        replicas: of all workloads, in the order in which they were started: the device asked for, and the status.
    """
    gpus, _ = gpu_facts()
    dealt, known = places(experiment, gpus), {gpu.uuid for gpu in gpus}
    given_instance = os.environ.get(VISIBLE, "").startswith("MIG-")  # of which GPU, NVML's handles do not tell
    used: set[str] = set()
    for position, (device, status) in enumerate(replicas):
        told = str(status.get("device_uuid"))
        if told in known:
            used.add(told)
        elif dealt and Device.CPU not in {device, status.get("device")}:
            used |= known if given_instance else {dealt[position % len(dealt)].uuid}
    return frozenset(used)
