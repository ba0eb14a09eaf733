"""The catalogue: every metric as one record, read by recorder, exporter, quality check, docs and plots.

Adding a metric that comes from a source listed in ``Source`` touches this file alone. PromQL is
kept as templates (see ``harness/metrics/promql.py``): a dialect fills in selectors, the label that
tells replicas apart, and the window.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from harness.errors import UsageError


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


class Source(StrEnum):
    """What the embedded recorder reads."""

    PROCESS_CPU = "CPU seconds of the replica's process and its children"
    PROCESS_MEMORY = "resident memory of the replica's process and its children"
    GPU_UTILIZATION = "NVML utilisation of the device"
    GPU_MEMORY = "NVML memory in use on the device, and by each replica's processes"
    GPU_POWER = "NVML power draw of the device"
    GPU_TEMPERATURE = "NVML temperature of the device"
    CPU_PRESSURE = "/proc/pressure/cpu, `some total`"
    MEMORY_PRESSURE = "/proc/pressure/memory, `some total`"
    IO_PRESSURE = "/proc/pressure/io, `some total`"
    LATENCY = "`inference_latency_seconds` on the replica's /metrics"
    REQUESTS = "`inference_requests_total` on the replica's /metrics"
    PUBLISHED = "what some workloads publish of their own on the replica's /metrics"


GPU_SOURCES = frozenset({Source.GPU_UTILIZATION, Source.GPU_MEMORY, Source.GPU_POWER, Source.GPU_TEMPERATURE})
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
    workloads: tuple[str, ...] = ()

    @property
    def windowed(self) -> bool:
        """A value needs two scrapes in its window."""
        return self.kind in {Kind.RATE, Kind.MEAN, Kind.QUANTILE, Kind.SHARE}

    @property
    def of_histogram(self) -> bool:
        """It is made of a histogram's buckets, sum and count; otherwise of counters or gauges."""
        return self.kind in {Kind.MEAN, Kind.QUANTILE}


_REQUESTS_RAW = "inference_requests_total{$replicas}"


def _latency_quantile(quantile: float) -> Metric:
    percent = f"{quantile * 100:g}"
    buckets = "rate(inference_latency_seconds_bucket{$replicas$buckets}[$window])"
    return Metric(
        name=f"latency_p{percent.replace('.', '')}",
        title=f"Latency, p{percent}",
        unit="seconds",
        kind=Kind.QUANTILE,
        level=Level.REPLICA,
        pooled=True,
        source=Source.LATENCY,
        promql=f"histogram_quantile({quantile:g}, $merge({buckets}))",
        promql_pooled=f"histogram_quantile({quantile:g}, sum by (le) ({buckets}))",
        promql_raw=_REQUESTS_RAW,
        minimum=0.0,
        maximum=None,
        nonzero_expected=True,
        quantile=quantile,
        description=f"{percent} % of the requests of the window took no longer; `all` pools the buckets of the replicas.",
    )


def _pressure(name: str, title: str, source: Source, counter: str, description: str) -> Metric:
    return Metric(
        name=name,
        title=title,
        unit="percent of time",
        kind=Kind.RATE,
        level=Level.NODE,
        pooled=False,
        source=source,
        promql=f"100 * ${{per_node}}(rate({counter}{{$node}}[$window]))",
        promql_pooled="",
        promql_raw=f"{counter}{{$node}}",
        minimum=0.0,
        maximum=100.0,
        nonzero_expected=False,
        description=description,
    )


def _device(
    name: str, title: str, unit: str, source: Source, gauge: str, maximum: float, description: str, scale: str = ""
) -> Metric:
    return Metric(
        name=name,
        title=title,
        unit=unit,
        kind=Kind.GAUGE,
        level=Level.DEVICE,
        pooled=False,
        source=source,
        promql=f"{scale}max by ($device) ({gauge}{{$gpus}})",
        promql_pooled="",
        promql_raw=f"{gauge}{{$gpus}}",
        minimum=0.0,
        maximum=maximum,
        nonzero_expected=True,
        description=description,
    )


def _published_quantile(name: str, title: str, family: str, quantile: float, what: str, workload: str) -> Metric:
    percent = f"{quantile * 100:g}"
    buckets = f"rate({family}_bucket{{$replicas}}[$window])"
    return Metric(
        name=f"{name}_p{percent.replace('.', '')}",
        title=f"{title}, p{percent}",
        unit="seconds",
        kind=Kind.QUANTILE,
        level=Level.REPLICA,
        pooled=True,
        source=Source.PUBLISHED,
        promql=f"histogram_quantile({quantile:g}, $merge({buckets}))",
        promql_pooled=f"histogram_quantile({quantile:g}, sum by (le) ({buckets}))",
        promql_raw=f"{family}_count{{$replicas}}",
        minimum=0.0,
        maximum=None,
        nonzero_expected=True,
        quantile=quantile,
        description=f"{percent} % of the requests of the window {what}; `all` pools the buckets of the replicas.",
        families=(family,),
        workloads=(workload,),
    )


def _published_rate(
    name: str, title: str, unit: str, family: str, description: str, workloads: tuple[str, ...]
) -> Metric:
    return Metric(
        name=name,
        title=title,
        unit=unit,
        kind=Kind.RATE,
        level=Level.REPLICA,
        pooled=True,
        source=Source.PUBLISHED,
        promql=f"sum by ($by) (rate({family}{{$replicas}}[$window]))",
        promql_pooled=f"sum(rate({family}{{$replicas}}[$window]))",
        promql_raw=f"{family}{{$replicas}}",
        minimum=0.0,
        maximum=None,
        nonzero_expected=True,
        description=description,
        families=(family,),
        workloads=workloads,
    )


def _share(name: str, title: str, family: str, rest: str, description: str, workload: str) -> Metric:
    part, other = f"rate({family}{{$replicas}}[$window])", f"rate({rest}{{$replicas}}[$window])"
    each = f"sum by ($by) ({part})"
    return Metric(
        name=name,
        title=title,
        unit="percent of time",
        kind=Kind.SHARE,
        level=Level.REPLICA,
        pooled=True,
        source=Source.PUBLISHED,
        promql=f"100 * {each} / ({each} + sum by ($by) ({other}))",
        promql_pooled=f"100 * sum({part}) / (sum({part}) + sum({other}))",
        promql_raw=f"{family}{{$replicas}}",
        minimum=0.0,
        maximum=100.0,
        nonzero_expected=False,
        description=description,
        families=(family, rest),
        workloads=(workload,),
    )


_STANDARD = (
    Metric(
        name="cpu_usage",
        title="CPU",
        unit="cores",
        kind=Kind.RATE,
        level=Level.REPLICA,
        pooled=True,
        source=Source.PROCESS_CPU,
        promql="sum by ($by) (rate($cpu_seconds{$containers}[$window]))",
        promql_pooled="sum(rate($cpu_seconds{$containers}[$window]))",
        promql_raw="$cpu_seconds{$containers}",
        minimum=0.0,
        maximum=None,
        nonzero_expected=True,
        description="CPU cores kept busy by the replica; `all` is their sum.",
    ),
    Metric(
        name="memory_usage",
        title="Memory",
        unit="bytes",
        kind=Kind.GAUGE,
        level=Level.REPLICA,
        pooled=True,
        source=Source.PROCESS_MEMORY,
        promql="sum by ($by) ($memory_bytes{$containers})",
        promql_pooled="sum($memory_bytes{$containers})",
        promql_raw="$memory_bytes{$containers}",
        minimum=0.0,
        maximum=None,
        nonzero_expected=True,
        description="Resident memory of the replica (working set of its container in a cluster); pages shared "
        "between processes count in each. `all` is their sum.",
    ),
    _device(
        "gpu_utilization",
        "GPU utilisation",
        "percent",
        Source.GPU_UTILIZATION,
        "DCGM_FI_DEV_GPU_UTIL",
        100.0,
        "Share of the driver's own sampling period (1/6 to 1 s) in which at least one kernel ran.",
    ),
    _device(
        "gpu_memory",
        "GPU memory",
        "bytes",
        Source.GPU_MEMORY,
        "DCGM_FI_DEV_FB_USED",
        2.0**43,
        "Memory in use on the device; the recorder adds one series per replica where the driver tells processes apart.",
        scale="1048576 * ",
    ),
    _device(
        "gpu_power",
        "GPU power",
        "watts",
        Source.GPU_POWER,
        "DCGM_FI_DEV_POWER_USAGE",
        3000.0,
        "Power draw of the board.",
    ),
    _device(
        "gpu_temperature",
        "GPU temperature",
        "degrees Celsius",
        Source.GPU_TEMPERATURE,
        "DCGM_FI_DEV_GPU_TEMP",
        120.0,
        "Temperature of the GPU's core.",
    ),
    _pressure(
        "cpu_psi",
        "CPU pressure",
        Source.CPU_PRESSURE,
        "node_pressure_cpu_waiting_seconds_total",
        "Share of the window in which at least one task of the node waited for a CPU.",
    ),
    _pressure(
        "memory_psi",
        "Memory pressure",
        Source.MEMORY_PRESSURE,
        "node_pressure_memory_waiting_seconds_total",
        "Share of the window in which at least one task of the node waited for memory.",
    ),
    _pressure(
        "io_psi",
        "IO pressure",
        Source.IO_PRESSURE,
        "node_pressure_io_waiting_seconds_total",
        "Share of the window in which at least one task of the node waited for IO.",
    ),
    Metric(
        name="latency_avg",
        title="Latency, mean",
        unit="seconds",
        kind=Kind.MEAN,
        level=Level.REPLICA,
        pooled=True,
        source=Source.LATENCY,
        promql="sum by ($by) (rate(inference_latency_seconds_sum{$replicas}[$window])) / "
        "sum by ($by) (rate(inference_latency_seconds_count{$replicas}[$window]))",
        promql_pooled="sum(rate(inference_latency_seconds_sum{$replicas}[$window])) / "
        "sum(rate(inference_latency_seconds_count{$replicas}[$window]))",
        promql_raw=_REQUESTS_RAW,
        minimum=0.0,
        maximum=None,
        nonzero_expected=True,
        description="Mean latency of the requests of the window; `all` weights each replica by its requests.",
    ),
    _latency_quantile(0.5),
    _latency_quantile(0.95),
    _latency_quantile(0.99),
    Metric(
        name="throughput",
        title="Throughput",
        unit="requests per second",
        kind=Kind.RATE,
        level=Level.REPLICA,
        pooled=True,
        source=Source.REQUESTS,
        promql="sum by ($by) (rate(inference_requests_total{$replicas}[$window]))",
        promql_pooled="sum(rate(inference_requests_total{$replicas}[$window]))",
        promql_raw=_REQUESTS_RAW,
        minimum=0.0,
        maximum=None,
        nonzero_expected=True,
        description="Requests finished per second; `all` is their sum.",
    ),
    Metric(
        name="total_count",
        title="Requests since the start",
        unit="requests",
        kind=Kind.COUNTER,
        level=Level.REPLICA,
        pooled=True,
        source=Source.REQUESTS,
        promql="",
        promql_pooled="",
        promql_raw=_REQUESTS_RAW,
        minimum=0.0,
        maximum=None,
        nonzero_expected=True,
        description="Requests finished since the first row, counted from the raw counter: row 0 is 0, a restarted "
        "replica goes on counting, nothing is extrapolated. `all` keeps what a dead replica had served.",
    ),
)

_TTFT = "inference_time_to_first_token_seconds"
_TPOT = "inference_time_per_output_token_seconds"
_TTFT_TEXT = "had their first token no later"
_TPOT_TEXT = "took no longer for each token after the first, on average"

_PUBLISHED = (
    _published_quantile("ttft", "Time to first token", _TTFT, 0.5, _TTFT_TEXT, "chat"),
    _published_quantile("ttft", "Time to first token", _TTFT, 0.95, _TTFT_TEXT, "chat"),
    _published_quantile("tpot", "Time per output token", _TPOT, 0.5, _TPOT_TEXT, "chat"),
    _published_quantile("tpot", "Time per output token", _TPOT, 0.95, _TPOT_TEXT, "chat"),
    _published_rate(
        "tokens_per_second",
        "Tokens",
        "tokens per second",
        "inference_tokens_total",
        "Tokens generated per second, over all texts of a batch; `all` is their sum.",
        ("chat",),
    ),
    _published_rate(
        "inputs_per_second",
        "Inputs",
        "inputs per second",
        "inference_inputs_total",
        "Inputs (images, texts) served or trained on per second: requests times batch size; `all` is their sum.",
        ("resnet50-training", "bert-training"),
    ),
    _share(
        "active_share",
        "Active time",
        "inference_active_seconds_total",
        "inference_idle_seconds_total",
        "Share of the window in which the session worked; the rest it spent thinking. `all` is the replicas' mean.",
        "notebook",
    ),
)

STANDARD: dict[str, Metric] = {metric.name: metric for metric in _STANDARD}
"""The 15 metrics of every experiment by name, in the order of files, tables and plots."""
CATALOGUE: dict[str, Metric] = STANDARD | {metric.name: metric for metric in _PUBLISHED}
"""All metrics by name: the 15, then those that only some workloads have."""

PUBLISHED_COUNTERS = frozenset(family for m in _PUBLISHED if not m.of_histogram for family in m.families)
PUBLISHED_HISTOGRAMS = frozenset(family for m in _PUBLISHED if m.of_histogram for family in m.families)


def select(names: str | Sequence[str], *, workload: str = "") -> list[Metric]:
    """The metrics asked for, in the catalogue's order.

    Args:
        names: ``"all"``, which is the 15 of every experiment and those that ``workload`` publishes; or a list of names.
        workload: a built-in workload's name; empty: none in particular.

    Raises:
        UsageError: a name that the catalogue does not have, with the nearest one that it has; or no name at all.
    """
    if isinstance(names, str):
        if names != "all":
            raise UsageError(f"Metrics are `all` or a list of names, not {names!r}.")
        return [*STANDARD.values(), *(metric for metric in _PUBLISHED if workload in metric.workloads)]
    for name in names:
        if name not in CATALOGUE:
            close = difflib.get_close_matches(name, CATALOGUE, n=1)
            hint = f"Did you mean {close[0]}?" if close else f"Known are {', '.join(CATALOGUE)}."
            raise UsageError(f"Unknown metric {name!r}.", advice=hint)
    if not names:
        raise UsageError("The list of metrics is empty.", advice="Name at least one metric, or `all`.")
    return [metric for metric in CATALOGUE.values() if metric.name in set(names)]
