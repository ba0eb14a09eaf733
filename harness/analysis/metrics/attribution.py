"""What each replica took of the GPUs that it shares: energy above idle, and time x multiprocessors (SMs) with its work on them.

The power of a GPU before the replicas started is its idle power. What it drew above that is divided among its replicas by a weight
of each, so that idle and replicas together are what the GPU drew; idle is nobody's. A replica alone on its GPU has all of it.
Several have a share only where the sharing mode says by which way (``SharingMode.attribution``), else the reason why not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from harness.analysis.metrics.run import Run
from harness.analysis.read import NotMeasuredError
from harness.sharing.modes import mode_of

ALONE = "each replica has its GPU to itself"
_SM_ACTIVE = "gpu{}_sm_active_percent"


@dataclass(frozen=True, slots=True)
class ReplicaUse:
    """Of one replica over the recording.

    ``power_w`` above idle; ``energy_j`` per request, None where it served none; ``sm_active_percent`` of its GPU's SMs, None where
    the GPU's own is not known.
    """

    power_w: float
    energy_j: float | None
    sm_active_percent: float | None


@dataclass(frozen=True, slots=True)
class GpuUse:
    """Of all replicas, in order; ``idle_w`` of their GPUs together, ``how`` it was divided, in words."""

    replicas: tuple[ReplicaUse, ...]
    idle_w: float
    how: str

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


def gpu_use(run: Run) -> GpuUse:
    """What each replica of a run took of its GPU. Raises NotMeasuredError with the reason why that is not known."""
    energy_j, devices = run.gpu_energy_j, _devices(run)  # without a GPU, its reason
    replicas, duration_s = run.data.manifest.replicas, run.data.duration_s
    served = [rate * duration_s for rate in run.replica_rates]
    by_gpu: dict[int, list[int]] = {}
    for replica, status in enumerate(replicas):
        by_gpu.setdefault(_place(status, devices), []).append(replica)
    if len(served) != len(replicas):
        raise NotMeasuredError("not every replica said which GPU it is on")
    uses: dict[int, ReplicaUse] = {}
    idle_w = 0.0
    for gpu, on_it in by_gpu.items():
        weights = _weights(run, gpu, {replica: served[replica] for replica in on_it})
        above_w = _above_idle(gpu, energy_j[gpu][0] / duration_s, devices[gpu]["idle_w"])
        watts = divide(above_w, weights)
        active = _sm_active(run, gpu)
        shares = [None] * len(on_it) if active is None else divide(active, weights)
        for replica, power_w, percent in zip(on_it, watts, shares, strict=True):
            requests = served[replica]
            uses[replica] = ReplicaUse(power_w, power_w * duration_s / requests if requests else None, percent)
        idle_w += devices[gpu]["idle_w"]
    attribution = mode_of(run.data.manifest.experiment.sharing).attribution
    how = ALONE if len(by_gpu) == len(replicas) else f"divided among the replicas {attribution}"
    return GpuUse(tuple(uses[replica] for replica in range(len(replicas))), idle_w, how)


def divide(whole: float, weights: Sequence[float]) -> list[float]:
    """Parts of the whole that relate as the weights. Raises NotMeasuredError where none is above 0."""
    total = math.fsum(weights)
    if not total > 0 or not math.isfinite(total):
        raise NotMeasuredError("nothing was served, so there is nothing to divide the GPU's energy by")
    return [whole * weight / total for weight in weights]


def _devices(run: Run) -> list[Mapping[str, Any]]:
    """The GPUs in the order of the telemetry's columns, each with its idle power."""
    devices: list[Mapping[str, Any]] = run.data.manifest.telemetry.get("devices") or []
    if not devices:
        raise NotMeasuredError("the GPU's idle power was not read before the replicas started")
    for gpu, device in enumerate(devices):
        if "idle_w" not in device:
            raise NotMeasuredError(f"the idle power of gpu-{gpu} is not known: {device.get('idle_absent', 'not read')}")
    missing = [gpu for gpu in range(len(devices)) if gpu not in run.gpu_energy_j]
    if missing:
        raise NotMeasuredError(f"the energy of gpu-{missing[0]} was not read")
    return devices


def _place(status: Mapping[str, Any], devices: Sequence[Mapping[str, Any]]) -> int:
    """Number of the GPU that a replica is on."""
    if status.get("second_device_uuid"):
        raise NotMeasuredError("a replica computes on two GPUs")
    places = [gpu for gpu, device in enumerate(devices) if device["uuid"] == status.get("device_uuid")]
    if not places and len(devices) > 1:
        raise NotMeasuredError("not every replica said which GPU it is on")
    return places[0] if places else 0


def _weights(run: Run, gpu: int, served: Mapping[int, float]) -> list[float]:
    """By which the replicas of one GPU divide what it did. Raises NotMeasuredError where they cannot."""
    manifest = run.data.manifest
    experiment, mode = manifest.experiment, mode_of(manifest.experiment.sharing)
    devices = manifest.telemetry["devices"]
    beside = [
        name
        for name, statuses in manifest.neighbours.items()
        if any(status.get("device") != "cpu" and _place(status, devices) == gpu for status in statuses)
    ]
    if len(served) == 1 and not beside:
        return [1.0]
    if mode.attribution is None:
        raise NotMeasuredError(f"{mode.unattributed} ({mode.sharing.value})")
    if beside:
        raise NotMeasuredError(f"{beside[0]} is on the same GPU, and its requests are other work")
    if experiment.workload.server is not None:
        raise NotMeasuredError("the requests of a server are not all the same work")
    if experiment.workload.factory is not None:
        raise NotMeasuredError("whether the requests of a workload of your own are all the same work is not known")
    return list(served.values())  # Attribution.REQUESTS is the one way that there is


def _above_idle(gpu: int, drawn_w: float, idle_w: float) -> float:
    if drawn_w < idle_w:
        raise NotMeasuredError(
            f"gpu-{gpu} drew {drawn_w:.4g} W, and before the replicas started {idle_w:.4g} W: that was not idle"
        )
    return drawn_w - idle_w


def _sm_active(run: Run, gpu: int) -> float | None:
    """Mean SM activity of one GPU in percent; None where it was not read."""
    try:
        column = run.data.telemetry().get(_SM_ACTIVE.format(gpu))
    except NotMeasuredError:
        return None
    mean = math.nan if column is None else float(column.mean())
    return None if math.isnan(mean) else mean
