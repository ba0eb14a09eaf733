"""What a metric is: where its samples come from, how a value is made of them, what it may be."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """How a row's value comes from the samples."""

    GAUGE = "gauge"
    """The sample at the grid time itself."""
    RATE = "rate"
    """Per-second rate of a counter over the window, as PromQL's ``rate()``."""
    MEAN = "mean"
    """Rate of a histogram's sum over the rate of its count."""
    QUANTILE = "quantile"
    """PromQL's ``histogram_quantile()`` of the buckets' rates."""
    SHARE = "share"
    """Rate of the first of two counters over the sum of both rates, in percent."""
    COUNTER = "counter"
    """Counted since the recording began; resets add up, nothing is extrapolated."""


class Level(StrEnum):
    """What one series of the metric stands for."""

    REPLICA = "replica"
    DEVICE = "device"
    NODE = "node"

    @property
    def absent_series(self) -> str:
        """Series name of the rows of a metric that this machine cannot give."""
        return {Level.REPLICA: "all", Level.DEVICE: "gpu", Level.NODE: "node"}[self]


class OverDevices(StrEnum):
    """How all rows of all devices come to the one figure of a report."""

    MEAN = "Mean over rows and GPUs."
    SUM = "Mean over rows, sum over GPUs."
    LARGEST_SUM = "Largest sum over the GPUs at one time."
    HIGHEST = "Highest row of any GPU."


class Source(StrEnum):
    """What the embedded recorder reads."""

    PROCESS_CPU = "CPU seconds of the replica's process and its children"
    PROCESS_MEMORY = "resident memory of the replica's process and its children"
    GPU = "NVML, of the device"
    GPU_MEMORY = "NVML, of the device and of each replica's processes"
    CPU_PRESSURE = "/proc/pressure/cpu, `some total`"
    MEMORY_PRESSURE = "/proc/pressure/memory, `some total`"
    IO_PRESSURE = "/proc/pressure/io, `some total`"
    LATENCY = "`inference_latency_seconds` on the replica's /metrics"
    REQUESTS = "`inference_requests_total` on the replica's /metrics"
    PUBLISHED = "what some workloads publish of their own on the replica's /metrics"


GPU_SOURCES = frozenset({Source.GPU, Source.GPU_MEMORY})
PRESSURE_SOURCES = frozenset({Source.CPU_PRESSURE, Source.MEMORY_PRESSURE, Source.IO_PRESSURE})
PROCESS_SOURCES = frozenset({Source.PROCESS_CPU, Source.PROCESS_MEMORY})
ESSENTIAL_SOURCES = frozenset({Source.LATENCY, Source.REQUESTS})
"""Every replica publishes these; without them there is no result."""
REPLICA_SOURCES = ESSENTIAL_SOURCES | {Source.PUBLISHED}


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    Attributes:
        name: as in file names, e.g. ``latency_p95``.
        title: for plots and tables.
        unit: of every value, spelt out.
        kind: how a value comes from the samples.
        level: what one series stands for.
        pooled: there is a series ``all`` over the replicas besides one per replica.
        source: what the embedded recorder reads.
        promql: template of one series per replica, device or node; empty when raw samples are counted instead.
        promql_pooled: template of the series ``all``; empty when not pooled, or added up from raw samples.
        promql_raw: template of the selector whose raw samples say when something was really measured.
        minimum: no value can be lower; None: no bound.
        maximum: no value can be higher; None: no bound.
        nonzero_expected: a replica under load cannot show 0 here for long.
        description: one sentence for the docs.
        quantile: between 0 and 1 for quantiles; None otherwise.
        families: names on the replica's /metrics that it is made of; only for the source PUBLISHED.
        gauge: what ``harness/metrics/nvml.py`` calls it; only for GPU_SOURCES.
        dcgm: the field of DCGM's exporter; of devices only.
        scale: what a sample of it is multiplied by.
        over_devices: how its rows come to the figure of a report; of devices only.
        workloads: built-in workloads that publish them: with ``metrics: all`` their experiments have this metric, too.
    """

    name: str
    title: str
    unit: str
    kind: Kind
    level: Level
    pooled: bool
    source: Source
    promql: str
    promql_pooled: str
    promql_raw: str
    minimum: float | None
    maximum: float | None
    nonzero_expected: bool
    description: str
    quantile: float | None = None
    families: tuple[str, ...] = ()
    gauge: str = ""
    dcgm: str = ""
    scale: int = 1
    over_devices: OverDevices = OverDevices.MEAN
    workloads: tuple[str, ...] = ()

    @property
    def of_histogram(self) -> bool:
        """It is made of a histogram's buckets, sum and count; otherwise of counters or gauges."""
        return self.kind in {Kind.MEAN, Kind.QUANTILE}
