"""Turns what one tick saw into rows: one per series of every metric, with a value or a reason."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from harness.metrics.catalogue import PRESSURE_SOURCES, PROCESS_SOURCES, REQUESTS, Kind, Level, Metric, Source
from harness.metrics.machine import ProcessUsage
from harness.metrics.nvml import GpuUsage
from harness.metrics.promql_math import MS_PER_S, CounterWindow, RunningTotal, Vector, histogram_quantile
from harness.metrics.rows import (
    MIXED_BUCKETS,
    NO_REPLICA,
    NO_REQUESTS,
    NO_TIME,
    POOLED,
    TOO_FEW,
    MetricRow,
    Missing,
    series_name,
)
from harness.metrics.scrape import PublishedFamily, ReplicaSample

Value = float | Missing


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


@dataclass(frozen=True, slots=True)
class Reading:
    """What one tick saw; lists are in the targets' (or devices') order.

    ``processes_ms`` and ``pressure_ms``: when those were really read, ms since the epoch; None: at the tick's own time.
    """

    replicas: Sequence[ReplicaSample | Missing] = ()
    processes: Sequence[ProcessUsage | Missing] = ()
    gpus: Sequence[GpuUsage] = ()
    pressure: Mapping[Source, Value] = field(default_factory=dict)
    processes_ms: float | None = None
    pressure_ms: float | None = None


class _Replica:
    """What is remembered of one replica between ticks: its windows and its count."""

    def __init__(self, window_ms: int) -> None:
        self.counters = CounterWindow(window_ms)
        self.cpu = CounterWindow(window_ms)
        self.total = RunningTotal()
        self.families: Mapping[str, PublishedFamily] = {}
        self.sample: ReplicaSample | Missing = Missing(TOO_FEW)
        self.usage: ProcessUsage | Missing = Missing(TOO_FEW)
        self.rates: Vector | None = None
        self.cpu_rate: float | None = None

    def take_sample(self, time_ms: int, sample: ReplicaSample | Missing, *, counting: bool) -> None:
        self.sample = sample
        if not isinstance(sample, Missing):
            if sample.families != self.families:
                self.counters.clear()
                self.families = sample.families
            self.counters.add(time_ms, sample.counters)
            self.total.observe(float(sample.counters[sample.families[REQUESTS].at]), counting=counting)
        self.rates = self.counters.rate(time_ms)

    def take_usage(self, time_ms: int, read_ms: float, usage: ProcessUsage | Missing) -> None:
        self.usage = usage
        if not isinstance(usage, Missing):
            self.cpu.add(time_ms, np.array([usage.cpu_s]), read_ms)
        self.cpu_rate = self.cpu.timed_rate(time_ms)


class _Series:
    """One series of a metric of replicas: of one of them, or of all of a workload, pooled with each other and nobody else."""

    def __init__(self, name: str, replicas: Sequence[_Replica], *, of_workload: bool) -> None:
        self.name = name
        self._of_workload = of_workload
        self._replicas = replicas

    def value(self, metric: Metric) -> Value:
        """The metric over all replicas of the series that could be read."""
        of_processes = metric.source in PROCESS_SOURCES
        readings = [replica.usage if of_processes else replica.sample for replica in self._replicas]
        if all(isinstance(reading, Missing) for reading in readings):
            alone = readings[0] if not self._of_workload else None
            return alone if isinstance(alone, Missing) else Missing(NO_REPLICA)
        return self._of_processes(metric) if of_processes else self._of_requests(metric)

    def _of_processes(self, metric: Metric) -> Value:
        if metric.source is Source.PROCESS_MEMORY:
            return sum(r.usage.memory_bytes for r in self._replicas if not isinstance(r.usage, Missing))
        rates = [replica.cpu_rate for replica in self._replicas if replica.cpu_rate is not None]
        return sum(rates) if rates else Missing(TOO_FEW)

    def _of_requests(self, metric: Metric) -> Value:
        """What is counted, or of the rates of the metric's families over the replicas that publish them, as ``sum(rate())``."""
        if metric.kind is Kind.COUNTER:
            return sum(replica.total.counted for replica in self._replicas if replica.total.seen)
        publishing = [replica for replica in self._replicas if replica.families.keys() >= {*metric.families}]
        if not publishing:
            return Missing(f"the workload does not publish {metric.families[0]}")
        ready = [(replica.families, replica.rates) for replica in publishing if replica.rates is not None]
        if not ready:
            return Missing(TOO_FEW)
        if metric.of_histogram:
            own = [(families[metric.families[0]], rates) for families, rates in ready]
            return _of_histogram(metric, own)
        sums = [sum(float(rates[families[name].at]) for families, rates in ready) for name in metric.families]
        if metric.kind is Kind.RATE:
            return sums[0]
        return 100.0 * sums[0] / sum(sums) if sum(sums) > 0 else Missing(NO_TIME)


_array = functools.lru_cache(maxsize=16)(np.array)


def _of_histogram(metric: Metric, replicas: Sequence[tuple[PublishedFamily, Vector]]) -> Value:
    """A quantile or the mean, from where each replica's histogram lies and its rates."""
    bounds = replicas[0][0].bounds
    if any(family.bounds != bounds for family, _ in replicas):
        return Missing(MIXED_BUCKETS)
    pooled = np.sum([rates[family.at : family.end] for family, rates in replicas], axis=0)
    if metric.quantile is not None:
        value = histogram_quantile(metric.quantile, _array(bounds), pooled[2:])
    else:
        value = float(pooled[0] / pooled[1]) if pooled[1] > 0 else math.nan
    return Missing(NO_REQUESTS) if math.isnan(value) else value


class TickComputer:
    """Keeps the windows of every replica and of the node, and computes the rows of a tick.

    Args:
        targets: the replicas, neighbours among them, in the order of the readings.
        metrics: what to compute; metrics that are absent on this machine must not be among them.
        gpu_replica_pids: process ids of one target, to find its share of a device's memory.
    """

    def __init__(
        self,
        targets: Sequence[ReplicaTarget],
        metrics: Sequence[Metric],
        gpu_count: int,
        window_ms: int,
        gpu_replica_pids: Callable[[int], frozenset[int]],
    ) -> None:
        self._targets = targets
        self._metrics = metrics
        self._gpu_count = gpu_count
        self._pids = gpu_replica_pids
        self._replicas = [_Replica(window_ms) for _ in targets]
        of_workload: dict[str, list[_Replica]] = {}
        for target, replica in zip(targets, self._replicas, strict=True):
            of_workload.setdefault(series_name(POOLED, target.neighbour), []).append(replica)
        self._series = [
            *(
                _Series(target.series, [own], of_workload=False)
                for target, own in zip(targets, self._replicas, strict=True)
            ),
            *(_Series(name, replicas, of_workload=True) for name, replicas in of_workload.items()),
        ]
        self._pressure = {source: CounterWindow(window_ms) for source in sorted(PRESSURE_SOURCES)}
        self._gpus: Sequence[GpuUsage] = ()
        self._stalled: dict[Source, Value] = {}

    def observe(self, time_ms: int, reading: Reading, *, counting: bool) -> None:
        """Take one reading; ``counting`` is true after the first row."""
        for replica, sample in zip(self._replicas, reading.replicas, strict=False):
            replica.take_sample(time_ms, sample, counting=counting)
        for replica, usage in zip(self._replicas, reading.processes, strict=False):
            replica.take_usage(time_ms, reading.processes_ms or time_ms, usage)
        self._gpus = reading.gpus
        for source, stalled_s in reading.pressure.items():
            if isinstance(stalled_s, Missing):
                self._stalled[source] = stalled_s
                continue
            self._pressure[source].add(time_ms, np.array([stalled_s]), reading.pressure_ms)
            rate = self._pressure[source].timed_rate(time_ms)
            self._stalled[source] = Missing(TOO_FEW) if rate is None else 100.0 * rate

    def rows(self, time_ms: int) -> list[MetricRow]:
        """Rows of the reading last observed."""
        time_s = time_ms / MS_PER_S
        return [
            MetricRow(metric.name, series, time_s, None, value.reason)
            if isinstance(value, Missing)
            else MetricRow(metric.name, series, time_s, value)
            for metric in self._metrics
            for series, value in self._values(metric)
        ]

    def missing_rows(self, time_ms: int, reason: str) -> list[MetricRow]:
        """Rows of a tick that saw nothing."""
        return [
            MetricRow(metric.name, series, time_ms / MS_PER_S, None, reason)
            for metric in self._metrics
            for series in self._names(metric)
        ]

    def _names(self, metric: Metric) -> list[str]:
        """Of the series of one metric."""
        if metric.level is Level.NODE:
            return ["node"]
        if metric.level is Level.REPLICA:
            return [series.name for series in self._series]
        devices = [f"gpu-{index}" for index in range(self._gpu_count)]
        return devices + [t.series for t in self._targets] if metric.source is Source.GPU_MEMORY else devices

    def _values(self, metric: Metric) -> Iterator[tuple[str, Value]]:
        """Each series of one metric with its value."""
        if metric.level is Level.NODE:
            yield "node", self._stalled.get(metric.source, Missing(TOO_FEW))
        elif metric.level is Level.REPLICA:
            for series in self._series:
                yield series.name, series.value(metric)
        else:
            for index, gpu in enumerate(self._gpus):
                yield f"gpu-{index}", gpu.gauges[metric.gauge]
            for index, target in enumerate(self._targets if metric.source is Source.GPU_MEMORY else ()):
                yield target.series, self._replica_gpu_memory(index)

    def _replica_gpu_memory(self, index: int) -> Value:
        pids = self._pids(index)
        held: list[int] = []
        for gpu in self._gpus:
            if isinstance(gpu.process_memory_bytes, Missing):
                return gpu.process_memory_bytes
            held += [size for pid, size in gpu.process_memory_bytes.items() if pid in pids]
        if not held:
            return Missing("NVML lists no process of this replica (it uses no GPU, or lives in another PID namespace)")
        return float(sum(held))
