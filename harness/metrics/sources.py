"""The seams between the recorder and the machine: what is read, as data, and by whom.

Every source has one real implementation here in the package and one fake in
``tests/support/fake_metrics.py``. A source never raises while recording: what cannot be read is a
``Missing`` with its reason.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from harness.metrics.catalogue import Source
from harness.metrics.exposition import ReplicaSample
from harness.metrics.rows import POOLED, series_name
from harness.metrics.scrape import Missing


@dataclass(frozen=True, slots=True)
class ReplicaTarget:
    """One replica to record.

    Attributes:
        replica: its index, from 0.
        pid: its process; children count as part of it.
        metrics_url: its ``/metrics``, e.g. ``http://127.0.0.1:8000/metrics``.
        neighbour: the workload that it runs beside the measured ones; empty for a measured replica.
    """

    replica: int
    pid: int
    metrics_url: str
    neighbour: str = ""

    @property
    def series(self) -> str:
        """Name of its series."""
        return series_name(f"replica-{self.replica}", self.neighbour)

    @property
    def pooled_series(self) -> str:
        """Name of the series over all replicas of its workload."""
        return series_name(POOLED, self.neighbour)


@dataclass(frozen=True, slots=True)
class ProcessUsage:
    """CPU seconds used so far and resident bytes now, of one replica's processes."""

    cpu_s: float
    memory_bytes: float


@dataclass(frozen=True, slots=True)
class GpuUsage:
    """One reading of one device: its gauges by name, and memory by process id where the driver tells."""

    gauges: Mapping[str, float | Missing]
    process_memory_bytes: Mapping[int, int] | Missing


def hottest_celsius(devices: Iterable[GpuUsage]) -> float:
    """Temperature of the hottest of them; infinite where there is none, or one does not tell."""
    readings = [device.gauges["temperature_celsius"] for device in devices]
    return max((math.inf if isinstance(reading, Missing) else reading for reading in readings), default=math.inf)


class ReplicaSource(Protocol):
    """Reads the replicas' ``/metrics``."""

    def begin(self) -> None:
        """Ask every replica."""
        ...

    def collect(self, timeout_s: float) -> list[ReplicaSample | Missing]:
        """Their answers, in the targets' order; those later than ``timeout_s`` seconds are missing."""
        ...

    def close(self) -> None:
        """Let go of connections."""
        ...


class ProcessSource(Protocol):
    """Reads the replicas' processes."""

    def read(self) -> list[ProcessUsage | Missing]:
        """Usage of each target, in order."""
        ...

    def pids(self, index: int) -> frozenset[int]:
        """Process ids of one target and its children, as last seen."""
        ...


class GpuSource(Protocol):
    """Reads the devices."""

    @property
    def absent(self) -> str:
        """Why there is no device to read; empty when there is."""
        ...

    @property
    def count(self) -> int:
        """How many devices are read."""
        ...

    def read(self) -> list[GpuUsage]:
        """One reading of every device, in order."""
        ...

    def close(self) -> None:
        """Let go of the driver."""
        ...


class PressureSource(Protocol):
    """Reads the node's stall times."""

    def absent(self, source: Source) -> str:
        """Why this pressure cannot be read on this machine; empty when it can."""
        ...

    def read(self, source: Source) -> float | Missing:
        """Seconds in which some task was stalled, since boot."""
        ...


@dataclass(frozen=True, slots=True)
class Sources:
    """Everything one recorder reads."""

    replicas: ReplicaSource
    processes: ProcessSource
    gpus: GpuSource
    pressure: PressureSource

    def close(self) -> None:
        """Let go of connections and driver."""
        self.replicas.close()
        self.gpus.close()


@dataclass(frozen=True, slots=True)
class Reading:
    """What one tick saw; lists are in the targets' (or devices') order.

    ``processes_ms`` and ``pressure_ms``: when those were really read, ms since the epoch; None: at the tick's own time.
    """

    replicas: Sequence[ReplicaSample | Missing] = ()
    processes: Sequence[ProcessUsage | Missing] = ()
    gpus: Sequence[GpuUsage] = ()
    pressure: Mapping[Source, float | Missing] = field(default_factory=dict)
    processes_ms: float | None = None
    pressure_ms: float | None = None
