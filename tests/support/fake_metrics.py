"""One fake per seam of the recorder, shipped so that tests and simulations need no mocks.

Each fake is fed from a script: a function of the reading's number. A script may return ``Missing``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from harness.metrics.catalogue import LATENCY, REQUESTS, Source
from harness.metrics.machine import ProcessUsage
from harness.metrics.nvml import ACTIVITY, GpuUsage
from harness.metrics.recorder import Sources
from harness.metrics.rows import MetricColumn, MetricRow, Missing
from harness.metrics.scrape import PublishedFamily, ReplicaSample

BOUNDS = np.array([0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, np.inf])
"""Buckets of the fakes, in seconds."""


def sample(latencies_s: Sequence[float], bounds: np.ndarray = BOUNDS) -> ReplicaSample:
    """The counters of a replica that has served requests of these latencies."""
    latencies = np.asarray(latencies_s, dtype=np.float64)
    cumulative = np.searchsorted(np.sort(latencies), bounds, side="right").astype(np.float64)
    head = [float(len(latencies)), float(latencies.sum()), float(len(latencies))]
    return replica_sample(np.concatenate([head, cumulative]), bounds)


def replica_sample(counters: np.ndarray, bounds: np.ndarray, **more: PublishedFamily) -> ReplicaSample:
    """Requests, sum, count and buckets of the latency, and more families after them."""
    families = {REQUESTS: PublishedFamily(0), LATENCY: PublishedFamily(1, tuple(bounds.tolist()))}
    return ReplicaSample(counters, families | more)


class FakeReplicas:
    """Replicas whose n-th scrape is ``script(replica, n)``."""

    def __init__(self, count: int, script: Callable[[int, int], ReplicaSample | Missing]) -> None:
        self._count = count
        self._script = script
        self.scrapes = 0
        self.closed = False

    def begin(self) -> None:
        """Nothing to send."""

    def collect(self, timeout_s: float) -> list[ReplicaSample | Missing]:
        """The next answers, at once."""
        del timeout_s
        answers = [self._script(replica, self.scrapes) for replica in range(self._count)]
        self.scrapes += 1
        return answers

    def close(self) -> None:
        """Remember it."""
        self.closed = True


class FakeProcesses:
    """Processes whose n-th reading is ``script(replica, n)``; replica ``i`` has the process id ``1000 + i``."""

    def __init__(self, count: int, script: Callable[[int, int], ProcessUsage | Missing]) -> None:
        self._count = count
        self._script = script
        self.readings = 0

    def read(self) -> list[ProcessUsage | Missing]:
        """The next readings."""
        readings = [self._script(replica, self.readings) for replica in range(self._count)]
        self.readings += 1
        return readings

    def pids(self, index: int) -> frozenset[int]:
        """One process, no children."""
        return frozenset({1000 + index})


GAUGES: dict[str, float | Missing] = {
    "utilization_percent": 50.0,
    "memory_bytes": 2.0**30,
    "power_w": 100.0,
    "temperature_celsius": 40.0,
}


class FakeGpus:
    """Devices whose n-th reading is ``script(device, n)``, or no device with a reason."""

    def __init__(self, count: int = 0, script: Callable[[int, int], GpuUsage] | None = None, absent: str = "") -> None:
        self.count = count
        self.absent = absent or ("" if count else "no NVIDIA driver: libnvidia-ml.so.1 not found")
        self._script = script or (lambda _device, _reading: gpu_usage())
        self.readings = 0
        self.closed = False

    def read(self) -> list[GpuUsage]:
        """The next readings."""
        readings = [self._script(device, self.readings) for device in range(self.count)]
        self.readings += 1
        return readings

    def read_telemetry(self) -> list[dict[str, float | Missing]]:
        """Steady telemetry, the energy counter rising with each reading."""
        self.readings += 1
        return [
            {
                **GAUGES,
                "sm_clock_mhz": 1500.0,
                "memory_clock_mhz": 2600.0,
                "throttle_reasons": 0.0,
                "energy_j": 25.0 * self.readings,
                **dict(zip(ACTIVITY, (30.0, 20.0, 10.0, 5.0, 1e6, 2e6, 3e6, 4e6), strict=True)),
            }
            for _ in range(self.count)
        ]

    def hottest_celsius(self) -> float:
        """That of the next readings; infinite without a device."""
        return max((usage.gauges["temperature_celsius"] for usage in self.read()), default=math.inf)

    def close(self) -> None:
        """Remember it."""
        self.closed = True


class FakePressure:
    """Stall counters whose n-th reading is ``script(source, n)``; sources in ``absent`` have a reason instead."""

    def __init__(
        self, script: Callable[[Source, int], float | Missing], absent: dict[Source, str] | None = None
    ) -> None:
        self._script = script
        self._absent = absent or {}
        self._readings: dict[Source, int] = {}

    def read(self, source: Source) -> float | Missing:
        """The next reading of this source."""
        if source in self._absent:
            return Missing(self._absent[source])
        reading = self._readings.get(source, 0)
        self._readings[source] = reading + 1
        return self._script(source, reading)


class RowList:
    """A sink that keeps every row; for tests only."""

    def __init__(self) -> None:
        self.rows: list[MetricRow] = []

    def write(self, rows: Iterable[MetricRow]) -> None:
        """Keep them."""
        self.rows += rows

    def write_columns(self, times_s: Sequence[float], columns: Sequence[MetricColumn]) -> None:
        """Keep them, too."""
        for place, time_s in enumerate(times_s):
            for column in columns:
                reason = column.reasons[place]
                value = None if reason else column.values[place]
                self.rows.append(MetricRow(column.metric, column.series, time_s, value, reason))

    def series(self, metric: str, series: str) -> list[MetricRow]:
        """The rows of one series, in order."""
        return [row for row in self.rows if row.metric == metric and row.series == series]


def gpu_usage(process_memory_bytes: dict[int, int] | Missing | None = None) -> GpuUsage:
    """A steady device; without an argument the driver does not tell processes apart."""
    return GpuUsage(
        gauges=GAUGES,
        process_memory_bytes=Missing("NVML does not give memory per process here")
        if process_memory_bytes is None
        else process_memory_bytes,
    )


def fake_sources(
    replicas: int,
    script: Callable[[int, int], ReplicaSample | Missing],
    *,
    gpus: FakeGpus | None = None,
    pressure: FakePressure | None = None,
    processes: FakeProcesses | None = None,
) -> Sources:
    """Sources of steady fakes around one script for the replicas' scrapes."""
    return Sources(
        replicas=FakeReplicas(replicas, script),
        processes=processes
        or FakeProcesses(replicas, lambda _, reading: ProcessUsage(cpu_s=100.0 + reading, memory_bytes=1e6)),
        gpus=gpus or FakeGpus(),
        pressure=pressure or FakePressure(lambda _, reading: 0.1 * reading),
    )
