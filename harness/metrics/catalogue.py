"""The catalogue: every metric as one record, read by recorder, exporter, quality check, docs and plots.

Adding a metric that comes from a source listed in ``Source`` touches this file alone, and for a gauge of the GPU that NVML is
not read for yet ``harness/metrics/nvml.py``. PromQL is kept as templates, which a dialect fills in (``harness/metrics/promql.py``).
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

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


REQUESTS = "inference_requests_total"
LATENCY = "inference_latency_seconds"
"""What every replica publishes: a counter and a histogram."""
MIG_INSTANCE = "GPU_I_ID"
"""Label of DCGM's samples of an instance of MIG."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric; no value of any can be below 0. What is computed of which counter is said once, for PromQL and the recorder.

    Attributes:
        families: names on the replica's /metrics that it is made of: counters, or a histogram; of replicas only.
        selector: template of what it is made of otherwise.
        maximum: no value can be higher; None: no bound.
        nonzero_expected: a replica under load cannot show 0 here for long.
        gauge: what ``harness/metrics/nvml.py`` calls it; only for GPU_SOURCES.
        dcgm: the field of DCGM's exporter; of devices only.
        workloads: built-in workloads that publish them: with ``metrics: all`` their experiments have this metric, too.
    """

    name: str
    title: str
    unit: str
    kind: Kind
    level: Level = Level.REPLICA
    source: Source
    families: tuple[str, ...] = ()
    selector: str = ""
    maximum: float | None = None
    nonzero_expected: bool = True
    description: str
    quantile: float | None = None
    gauge: str = ""
    dcgm: str = ""
    scale: int = 1
    over_devices: OverDevices = OverDevices.MEAN
    workloads: tuple[str, ...] = ()

    @property
    def pooled(self) -> bool:
        """There is a series ``all`` over the replicas besides one per replica."""
        return self.level is Level.REPLICA

    @property
    def of_histogram(self) -> bool:
        """It is made of a histogram's buckets, sum and count; otherwise of counters or gauges."""
        return self.kind in {Kind.MEAN, Kind.QUANTILE}

    @property
    def promql_raw(self) -> str:
        """Template of the selector whose raw samples say when something was really measured."""
        if self.selector:
            return self.selector
        family = REQUESTS if self.source in ESSENTIAL_SOURCES else self.families[0]
        return f"{family}_count{{$replicas}}" if self.of_histogram and family != REQUESTS else f"{family}{{$replicas}}"

    @property
    def promql(self) -> str:
        """Template of one series per replica, device or node; empty where raw samples are counted instead."""
        if self.level is Level.NODE:
            return f"100 * ${{per_node}}(rate({self.selector}[$window]))"
        if self.level is Level.DEVICE:
            return self._promql_of_device()
        return self._promql("sum by ($by) ", "$merge")

    @property
    def promql_pooled(self) -> str:
        """Template of the series ``all``; empty where there is none, or it is added up from raw samples."""
        return self._promql("sum", "sum by (le) ") if self.pooled else ""

    def _promql(self, total: str, merged: str) -> str:
        def rate(selector: str) -> str:
            return f"rate({selector}[$window])"

        if self.kind is Kind.GAUGE:
            return f"{total}({self.selector})"
        if self.kind is Kind.RATE:
            return f"{total}({rate(self.selector or self.promql_raw)})"
        if self.kind is Kind.SHARE:
            active, idle = (f"{total}({rate(f'{family}{{$replicas}}')})" for family in self.families)
            return f"100 * {active} / ({active} + {idle})"
        if self.kind is Kind.MEAN:
            parts = (f"{total}({rate(f'{self.families[0]}_{part}{{$replicas}}')})" for part in ("sum", "count"))
            return " / ".join(parts)
        if self.kind is Kind.QUANTILE:
            bounded = "$buckets" if self.source is Source.LATENCY else ""
            buckets = rate(f"{self.families[0]}_bucket{{$replicas{bounded}}}")
            return f"histogram_quantile({self.quantile:g}, {merged}({buckets}))"
        return ""

    def _promql_of_device(self) -> str:
        """The largest of what has the device's labels, but for what is impossible; memory is the sum of MIG's instances."""
        believed = f"<= {(self.maximum or 0) / self.scale:.0f}"
        promql = f"max by ($device) ({self.selector} {believed})"
        if self.source is Source.GPU_MEMORY:
            of_instance = f'{self.dcgm}{{{MIG_INSTANCE}!="",$gpus}} {believed}'
            promql = f"(sum by ($device) (max by ($device, {MIG_INSTANCE}) ({of_instance})) or {promql})"
        return f"{self.scale} * {promql}" if self.scale != 1 else promql


def _quantiles(name: str, title: str, family: str, description: str, **more: Any) -> list[Metric]:
    """Quantiles of a histogram. ``{}`` in ``title`` and ``description`` is the percentage."""
    return [
        Metric(
            name=f"{name}_p{percent}",
            title=title.format(percent),
            unit="seconds",
            kind=Kind.QUANTILE,
            quantile=percent / 100,
            families=(family,),
            description=description.format(percent),
            **more,
        )
        for percent in (50, 95, 99)
    ]


def _rate(name: str, title: str, unit: str, family: str, description: str, **more: Any) -> Metric:
    """The rate of a counter that some workloads publish."""
    about: dict[str, Any] = {
        "name": name,
        "title": title,
        "unit": unit,
        "description": f"{description}; `all` is their sum.",
    }
    return Metric(kind=Kind.RATE, families=(family,), **{"source": Source.PUBLISHED, **about, **more})


def _pressure(resource: str, title: str, source: Source, waited_for: str) -> Metric:
    return Metric(
        name=f"{resource}_psi",
        title=f"{title} pressure",
        unit="percent of time",
        kind=Kind.RATE,
        level=Level.NODE,
        source=source,
        selector=f"node_pressure_{resource}_waiting_seconds_total{{$node}}",
        maximum=100.0,
        nonzero_expected=False,
        description=f"Share of the window in which at least one task of the node waited for {waited_for}.",
    )


def _device(
    name: str, title: str, unit: str, gauge: str, dcgm: str, maximum: float, description: str, **more: Any
) -> Metric:
    """A gauge of each GPU: ``gauge`` in harness/metrics/nvml.py, ``dcgm`` in Prometheus."""
    about: dict[str, Any] = {"name": name, "title": title, "unit": unit, "description": description, "maximum": maximum}
    about |= {"kind": Kind.GAUGE, "level": Level.DEVICE, "gauge": gauge, "dcgm": dcgm, "selector": f"{dcgm}{{$gpus}}"}
    return Metric(**{"source": Source.GPU, **about, **more})


_STANDARD = (
    Metric(
        name="cpu_usage",
        title="CPU",
        unit="cores",
        kind=Kind.RATE,
        source=Source.PROCESS_CPU,
        selector="$cpu_seconds{$containers}",
        description="CPU cores kept busy by the replica; `all` is their sum.",
    ),
    Metric(
        name="memory_usage",
        title="Memory",
        unit="bytes",
        kind=Kind.GAUGE,
        source=Source.PROCESS_MEMORY,
        selector="$memory_bytes{$containers}",
        description="Resident memory of the replica (working set of its container in a cluster); pages shared "
        "between processes count in each. `all` is their sum.",
    ),
    _device(
        "gpu_utilization",
        "GPU utilisation",
        "percent",
        "utilization_percent",
        "DCGM_FI_DEV_GPU_UTIL",
        100.0,
        "Share of the driver's own sampling period (1/6 to 1 s) in which at least one kernel ran.",
    ),
    _device(
        "gpu_memory",
        "GPU memory",
        "bytes",
        "memory_bytes",
        "DCGM_FI_DEV_FB_USED",
        2.0**43,
        "Memory in use on the device; the recorder adds one series per replica where the driver reports processes separately.",
        source=Source.GPU_MEMORY,
        over_devices=OverDevices.LARGEST_SUM,
        scale=1048576,
    ),
    _device(
        "gpu_power",
        "GPU power",
        "watts",
        "power_w",
        "DCGM_FI_DEV_POWER_USAGE",
        3000.0,
        "Power draw of the board.",
        over_devices=OverDevices.SUM,
    ),
    _device(
        "gpu_temperature",
        "GPU temperature",
        "degrees Celsius",
        "temperature_celsius",
        "DCGM_FI_DEV_GPU_TEMP",
        120.0,
        "Temperature of the GPU's core.",
        over_devices=OverDevices.HIGHEST,
    ),
    _pressure("cpu", "CPU", Source.CPU_PRESSURE, "a CPU"),
    _pressure("memory", "Memory", Source.MEMORY_PRESSURE, "memory"),
    _pressure("io", "IO", Source.IO_PRESSURE, "IO"),
    Metric(
        name="latency_avg",
        title="Latency, mean of the window",
        unit="seconds",
        kind=Kind.MEAN,
        source=Source.LATENCY,
        families=(LATENCY,),
        description="Mean latency of the requests of the window; `all` weights each replica by its requests.",
    ),
    *_quantiles(
        "latency",
        "Latency, p{} of the histogram",
        LATENCY,
        "{}% of the requests of the window took no longer, by the histogram; `all` pools the replicas' buckets.",
        source=Source.LATENCY,
    ),
    _rate(
        "throughput",
        "Throughput",
        "requests per second",
        REQUESTS,
        "Requests finished per second",
        source=Source.REQUESTS,
    ),
    Metric(
        name="total_count",
        title="Requests since the start",
        unit="requests",
        kind=Kind.COUNTER,
        source=Source.REQUESTS,
        description="Requests finished since the first row, counted from the raw counter: row 0 is 0, a restarted "
        "replica goes on counting, nothing is extrapolated. `all` keeps what a replica that is dead, or could not be read, had served before.",
    ),
)

_STREAM = "streaming-server"
_CLIENT_HISTOGRAMS = (
    (
        "ttft",
        "Time to first token",
        "requests of the window had their first token no later, at the client and from the intended time",
    ),
    ("itl", "Inter-token latency", "gaps between two tokens of the window, at the client, were no longer"),
    (
        "tpot",
        "Time per output token",
        "requests of the window took no longer for each token after the first, on average, at the client",
    ),
)

_PUBLISHED = (
    _rate(
        "inputs_per_second",
        "Inputs",
        "inputs per second",
        "inference_inputs_total",
        "Inputs (images, texts) served or trained on per second: requests times what each held",
        workloads=("mnist-training", "resnet50-training", "bert-training", "data-parallel-training"),
    ),
    Metric(
        name="active_share",
        title="Active time",
        unit="percent of time",
        kind=Kind.SHARE,
        source=Source.PUBLISHED,
        families=("inference_active_seconds_total", "inference_idle_seconds_total"),
        maximum=100.0,
        nonzero_expected=False,
        description="Share of the window in which the session worked; the rest it spent thinking. `all` is the replicas' mean.",
        workloads=("notebook",),
    ),
    *(
        metric
        for name, title, text in _CLIENT_HISTOGRAMS
        for metric in _quantiles(
            f"client_{name}",
            f"{title} at the client, p{{}}",
            f"inference_client_{name}_seconds",
            f"{{}}% of the {text}; `all` pools the buckets of the replicas.",
            source=Source.PUBLISHED,
            workloads=(_STREAM,),
        )
    ),
    _rate(
        "input_tokens_per_second",
        "Input tokens",
        "tokens per second",
        "inference_client_input_tokens_total",
        "Tokens of the requests answered per second, as the server counts them, else `requests.tokenizer`",
        workloads=(_STREAM,),
        nonzero_expected=False,  # not every server says it
    ),
    _rate(
        "output_tokens_per_second",
        "Output tokens",
        "tokens per second",
        "inference_client_output_tokens_total",
        "Tokens of the answers per second, counted when an answer ends: by the server where it says it, else the pieces with text",
        workloads=(_STREAM,),
    ),
    _rate(
        "failed_requests_per_second",
        "Failed requests",
        "requests per second",
        "inference_client_failed_requests_total",
        "Requests to a server of your own that got no proper answer, per second",
        workloads=("server", _STREAM),
        nonzero_expected=False,
    ),
)

STANDARD: dict[str, Metric] = {metric.name: metric for metric in _STANDARD}
"""The 15 metrics of every experiment by name, in the order of files, tables and plots."""
CATALOGUE: dict[str, Metric] = STANDARD | {metric.name: metric for metric in _PUBLISHED}
"""All metrics by name: the 15, then those that only some workloads have."""

PUBLISHED_COUNTERS = frozenset(family for m in _PUBLISHED if not m.of_histogram for family in m.families)
PUBLISHED_HISTOGRAMS = frozenset(family for m in _PUBLISHED if m.of_histogram for family in m.families)


def select(names: str | Sequence[str], *, workload: str = "") -> list[Metric]:
    """The metrics named, in the catalogue's order; ``"all"``: the 15 of every experiment and those that ``workload`` publishes.

    Raises UsageError for a name that the catalogue does not have, with the nearest one that it has, and for no name at all.
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
