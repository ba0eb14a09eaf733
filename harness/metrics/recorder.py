"""The embedded recorder: every metric of every replica, device and node, on a drift-free grid.

Row ``k`` belongs to ``start + k * step`` and nothing else. A tick that begins late keeps its grid time; one that is late by a
whole step or more is missed, and its rows say so. Before row 0 the recorder scrapes for one window, so that row 0 has its rates.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from harness.errors import UsageError
from harness.metrics.catalogue import (
    GPU_SOURCES,
    PRESSURE_SOURCES,
    PROCESS_SOURCES,
    REPLICA_SOURCES,
    REQUESTS,
    Kind,
    Level,
    Metric,
    Source,
)
from harness.metrics.machine import KernelPressure, ProcessTrees, ProcessUsage
from harness.metrics.nvml import GpuUsage, NvmlGpus
from harness.metrics.promql_math import (
    MS_PER_S,
    CounterWindow,
    RunningTotal,
    Vector,
    histogram_quantile,
    range_ms,
    to_ms,
)
from harness.metrics.rows import (
    LATE_TICK,
    MIXED_BUCKETS,
    NO_REPLICA,
    NO_REQUESTS,
    NO_TIME,
    POOLED,
    TOO_FEW,
    LatenessHistogram,
    MetricRow,
    MetricSummary,
    Missing,
    RecordingRequest,
    RecordingSummary,
    RowStatistics,
    grid_ms,
    missing_warnings,
    series_name,
)
from harness.metrics.scrape import PublishedFamily, ReplicaSample, Scraper

Value = float | Missing
SCRAPE_TIMEOUT_STEPS = 0.8
MAX_SCRAPE_TIMEOUT_S = 2.0
"""A replica gets most of a step to answer, but never so long that the other readings grow old."""

PRIORITY = 10
"""Steps of niceness that the recording thread takes for itself where it may."""


@dataclass(frozen=True, slots=True)
class ReplicaTarget:
    """One replica to record: its index, its process (with all children), its page of metrics; of a neighbour the workload."""

    replica: int
    pid: int
    metrics_url: str
    neighbour: str = ""

    @property
    def series(self) -> str:
        """Name of its series."""
        return series_name(f"replica-{self.replica}", self.neighbour)


@dataclass(frozen=True, slots=True)
class Sources:
    """Everything one recorder reads. None raises while recording: what cannot be read is ``Missing``, with its reason.

    Each has one fake, in ``tests/support/fake_metrics.py``.
    """

    replicas: Scraper
    processes: ProcessTrees
    gpus: NvmlGpus
    pressure: KernelPressure

    def absent(self, metric: Metric) -> str:
        """Why this machine cannot give a metric; empty where it can."""
        if metric.source in GPU_SOURCES:
            return self.gpus.absent
        if metric.source in PRESSURE_SOURCES:
            stalled_s = self.pressure.read(metric.source)
            return stalled_s.reason if isinstance(stalled_s, Missing) else ""
        return ""


class Recorder:
    """Records one experiment on this machine; ``used_gpus``: UUIDs of the devices that are read, None: all of them."""

    def __init__(
        self,
        targets: Sequence[ReplicaTarget],
        request: RecordingRequest,
        *,
        sources: Sources | None = None,
        used_gpus: Collection[str] | None = None,
    ) -> None:
        self._targets = list(targets)
        self._request = request
        self._step_ms, self._window_ms = to_ms(request.step_s), to_ms(request.window_s)
        if self._step_ms <= 0 or self._window_ms < 2 * self._step_ms:
            raise UsageError(
                f"A window of {request.window_s:g} s with a step of {request.step_s:g} s holds fewer than two scrapes.",
                advice="Use a window of 4 steps.",
            )
        self._timeout_s = min(SCRAPE_TIMEOUT_STEPS * request.step_s, MAX_SCRAPE_TIMEOUT_S)
        self._sources = sources
        self._used_gpus = used_gpus

    def record(self, start_s: float, rows: int) -> RecordingSummary:
        """See ``Recording``."""
        start_ms = grid_ms(start_s, self._request.step_s)
        sources = self._sources or Sources(
            replicas=Scraper([target.metrics_url for target in self._targets]),
            processes=ProcessTrees([target.pid for target in self._targets]),
            gpus=NvmlGpus(used=self._used_gpus),
            pressure=KernelPressure(),
        )
        with contextlib.closing(sources.replicas), contextlib.closing(sources.gpus):
            recording = _Recording(sources, self._targets, self._request)
            with _punctual():
                stopped = self._run(recording, start_ms, rows)
        return recording.summary(start_ms, stopped=stopped)

    def _run(self, recording: _Recording, start_ms: int, rows: int) -> bool:
        """Tick from one window before the start to the last row; True when woken before it."""
        request = self._request
        for index in range(1 - self._window_ms // self._step_ms, rows):
            time_ms = start_ms + index * self._step_ms
            if request.clock.wait_until(time_ms / MS_PER_S, request.wake):
                return True
            lateness_s = request.clock.now_s() - time_ms / MS_PER_S
            too_late = lateness_s >= request.step_s
            if not too_late:
                recording.punctuality.add(lateness_s)
                deadline_s = time_ms / MS_PER_S + self._timeout_s
                recording.observe(time_ms, deadline_s, index)
            if index >= 0:
                request.sink.write(recording.rows(time_ms, missed=too_late))
                if request.ends_with(index + 1, rows):
                    return False
        return False


class _Recording:
    """The state of one recording: windows of every replica and of the node, counts, punctuality."""

    def __init__(self, sources: Sources, targets: Sequence[ReplicaTarget], request: RecordingRequest) -> None:
        self._sources = sources
        self._targets = targets
        self._request = request
        self._absent = {metric.name: reason for metric in request.metrics if (reason := sources.absent(metric))}
        self._wanted = {metric.source for metric in request.metrics if metric.name not in self._absent}
        window_ms = range_ms(request.window_s)
        self._replicas = [_Replica(window_ms) for _ in targets]
        of_workload: dict[str, list[_Replica]] = {}
        for target, replica in zip(targets, self._replicas, strict=True):
            of_workload.setdefault(series_name(POOLED, target.neighbour), []).append(replica)
        own = zip(targets, self._replicas, strict=True)
        self._series = [_Series(target.series, [replica], of_workload=False) for target, replica in own]
        self._series += [_Series(name, replicas, of_workload=True) for name, replicas in of_workload.items()]
        self._pressure = {source: CounterWindow(window_ms) for source in sorted(PRESSURE_SOURCES)}
        self._gpus: Sequence[GpuUsage] = ()
        self._stalled: dict[Source, Value] = {}
        self._statistics = RowStatistics()
        self._rows = 0
        self._missed = 0
        self._answered_within_s = 0.0
        self.punctuality = LatenessHistogram()

    def observe(self, time_ms: int, deadline_s: float, row: int) -> None:
        """Read everything once: ask the replicas, read the machine while they answer, take the answers. ``row`` < 0: before row 0."""
        sources, wanted, clock = self._sources, self._wanted, self._request.clock
        scraping = bool(wanted & REPLICA_SOURCES)
        if scraping:
            sources.replicas.begin()
        processes_ms = clock.now_s() * MS_PER_S
        pids_wanted = wanted & PROCESS_SOURCES or Source.GPU_MEMORY in wanted
        for replica, usage in zip(self._replicas, sources.processes.read() if pids_wanted else (), strict=False):
            replica.take_usage(time_ms, processes_ms, usage)
        pressure_ms = clock.now_s() * MS_PER_S
        for source in wanted & PRESSURE_SOURCES:
            self._stalled[source] = self._stalled_percent(source, time_ms, pressure_ms)
        self._gpus = sources.gpus.read() if wanted & GPU_SOURCES else ()
        samples = sources.replicas.collect(deadline_s - clock.now_s()) if scraping else ()
        if row >= 0:
            self._answered_within_s = max(self._answered_within_s, clock.now_s() - time_ms / MS_PER_S)
        for replica, sample in zip(self._replicas, samples, strict=False):
            replica.take_sample(time_ms, sample, counting=row > 0)

    def _stalled_percent(self, source: Source, time_ms: int, read_ms: float) -> Value:
        stalled_s = self._sources.pressure.read(source)
        if isinstance(stalled_s, Missing):
            return stalled_s
        self._pressure[source].add(time_ms, np.array([stalled_s]), read_ms)
        rate = self._pressure[source].timed_rate(time_ms)
        return Missing(TOO_FEW) if rate is None else 100.0 * rate

    def rows(self, time_ms: int, *, missed: bool) -> list[MetricRow]:
        """Every row of one grid time, of what was last observed; those of absent metrics included."""
        rows, time_s = [], time_ms / MS_PER_S
        for metric in self._request.metrics:
            for series, value in self._values(metric):
                seen = Missing(LATE_TICK) if missed and metric.name not in self._absent else value
                if isinstance(seen, Missing):
                    rows.append(MetricRow(metric.name, series, time_s, None, seen.reason))
                else:
                    rows.append(MetricRow(metric.name, series, time_s, seen))
        self._statistics.add(rows)
        self._rows += 1
        self._missed += missed
        return rows

    def _values(self, metric: Metric) -> Iterator[tuple[str, Value]]:
        """Each series of one metric with its value."""
        if metric.name in self._absent:
            yield metric.level.absent_series, Missing(self._absent[metric.name])
        elif metric.level is Level.NODE:
            yield "node", self._stalled.get(metric.source, Missing(TOO_FEW))
        elif metric.level is Level.REPLICA:
            for series in self._series:
                yield series.name, series.value(metric)
        else:
            for index in range(self._sources.gpus.count):
                yield f"gpu-{index}", self._gpus[index].gauges[metric.gauge] if self._gpus else Missing(TOO_FEW)
            for index, target in enumerate(self._targets if metric.source is Source.GPU_MEMORY else ()):
                yield target.series, self._replica_gpu_memory(index)

    def _replica_gpu_memory(self, index: int) -> Value:
        pids = self._sources.processes.pids(index)
        held: list[int] = []
        for gpu in self._gpus:
            if isinstance(gpu.process_memory_bytes, Missing):
                return gpu.process_memory_bytes
            held += [size for pid, size in gpu.process_memory_bytes.items() if pid in pids]
        if not held:
            return Missing("NVML lists no process of this replica (it uses no GPU, or lives in another PID namespace)")
        return float(sum(held))

    def summary(self, start_ms: int, *, stopped: bool) -> RecordingSummary:
        """What the recording says of itself."""
        request = self._request
        metrics = self._statistics.summaries([m.name for m in request.metrics if m.name not in self._absent])
        last_ms = start_ms + (self._rows - 1) * to_ms(request.step_s)
        return RecordingSummary(
            start_s=start_ms / MS_PER_S,
            end_s=last_ms / MS_PER_S if self._rows else None,
            step_s=request.step_s,
            rows=self._rows,
            stopped=stopped,
            lateness=self.punctuality.summary(self._missed),
            metrics=metrics,
            absent=self._absent,
            warnings=list(_warnings(metrics, self._rows, self._missed)),
            answered_within_s=self._answered_within_s,
        )


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


@contextlib.contextmanager
def _punctual() -> Iterator[None]:
    """Put this thread before the replicas' in the kernel's queue, where the user may (root, CAP_SYS_NICE).

    Replicas that fill every CPU would otherwise make ticks late; the recorder itself needs few milliseconds.
    """
    thread = threading.get_native_id()
    before = os.getpriority(os.PRIO_PROCESS, thread)
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, thread, before - PRIORITY)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, thread, before)


def _warnings(metrics: dict[str, MetricSummary], rows: int, missed: int) -> Iterator[str]:
    if missed:
        yield f"{missed} of {rows} ticks were missed: {LATE_TICK}."
    yield from missing_warnings(metrics)
