"""The catalogue: every metric as one record, read by recorder, exporter, quality check, docs and plots.

Adding a metric that comes from a source listed in ``Source`` (harness/metrics/metric.py) touches this file alone, and for a
gauge of the GPU that NVML is not asked for yet ``harness/metrics/nvml.py``. PromQL is
kept as templates (see ``harness/metrics/promql.py``): a dialect fills in selectors, the label that
tells replicas apart, and the window.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from harness.errors import UsageError
from harness.metrics.metric import (
    ESSENTIAL_SOURCES,
    GPU_SOURCES,
    PRESSURE_SOURCES,
    PROCESS_SOURCES,
    REPLICA_SOURCES,
    Kind,
    Level,
    Metric,
    OverDevices,
    Source,
)

__all__ = [
    "CATALOGUE",
    "ESSENTIAL_SOURCES",
    "GPU_SOURCES",
    "PRESSURE_SOURCES",
    "PROCESS_SOURCES",
    "PUBLISHED_COUNTERS",
    "PUBLISHED_HISTOGRAMS",
    "REPLICA_SOURCES",
    "STANDARD",
    "Kind",
    "Level",
    "Metric",
    "Source",
    "select",
]


_REQUESTS_RAW = "inference_requests_total{$replicas}"


def _latency_quantile(quantile: float) -> Metric:
    percent = f"{quantile * 100:g}"
    buckets = "rate(inference_latency_seconds_bucket{$replicas$buckets}[$window])"
    return Metric(
        name=f"latency_p{percent.replace('.', '')}",
        title=f"Latency, p{percent} of the histogram",
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
        description=f"{percent} % of the requests of the window took no longer, by the histogram; `all` pools the replicas' buckets.",
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
    name: str,
    title: str,
    unit: str,
    gauge: str,
    dcgm: str,
    maximum: float,
    description: str,
    over_devices: OverDevices = OverDevices.MEAN,
    *,
    source: Source = Source.GPU,
    scale: int = 1,
) -> Metric:
    """A gauge of each GPU: ``gauge`` in harness/metrics/nvml.py, ``dcgm`` in Prometheus."""
    return Metric(
        name=name,
        title=title,
        unit=unit,
        kind=Kind.GAUGE,
        level=Level.DEVICE,
        pooled=False,
        source=source,
        promql=f"{f'{scale} * ' if scale != 1 else ''}max by ($device) ({dcgm}{{$gpus}})",
        promql_pooled="",
        promql_raw=f"{dcgm}{{$gpus}}",
        minimum=0.0,
        maximum=maximum,
        nonzero_expected=True,
        description=description,
        gauge=gauge,
        dcgm=dcgm,
        scale=scale,
        over_devices=over_devices,
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
        description=f"{percent} % of the {what}; `all` pools the buckets of the replicas.",
        families=(family,),
        workloads=(workload,),
    )


def _published_rate(
    name: str,
    title: str,
    unit: str,
    family: str,
    description: str,
    workloads: tuple[str, ...],
    *,
    nonzero_expected: bool = True,
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
        nonzero_expected=nonzero_expected,
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
        "Memory in use on the device; the recorder adds one series per replica where the driver tells processes apart.",
        OverDevices.LARGEST_SUM,
        source=Source.GPU_MEMORY,
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
        OverDevices.SUM,
    ),
    _device(
        "gpu_temperature",
        "GPU temperature",
        "degrees Celsius",
        "temperature_celsius",
        "DCGM_FI_DEV_GPU_TEMP",
        120.0,
        "Temperature of the GPU's core.",
        OverDevices.HIGHEST,
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
        title="Latency, mean of the window",
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
        "replica goes on counting, nothing is extrapolated. `all` keeps what a replica that is dead, or could not be read, had served before.",
    ),
)

_STREAM = "streaming-server"
_CLIENT_TTFT = "inference_client_ttft_seconds"
_CLIENT_ITL = "inference_client_itl_seconds"
_CLIENT_TPOT = "inference_client_tpot_seconds"
_CLIENT_TTFT_TEXT = "requests of the window had their first token no later, at the client and from the intended time"
_CLIENT_ITL_TEXT = "gaps between two tokens of the window, at the client, were no longer"
_CLIENT_TPOT_TEXT = "requests of the window took no longer for each token after the first, on average, at the client"

_PUBLISHED = (
    _published_rate(
        "inputs_per_second",
        "Inputs",
        "inputs per second",
        "inference_inputs_total",
        "Inputs (images, texts) served or trained on per second: requests times what each held; `all` is their sum.",
        ("mnist-training", "resnet50-training", "bert-training", "data-parallel-training"),
    ),
    _share(
        "active_share",
        "Active time",
        "inference_active_seconds_total",
        "inference_idle_seconds_total",
        "Share of the window in which the session worked; the rest it spent thinking. `all` is the replicas' mean.",
        "notebook",
    ),
    *(
        _published_quantile(name, title, family, quantile, text, _STREAM)
        for name, title, family, text in (
            ("client_ttft", "Time to first token at the client", _CLIENT_TTFT, _CLIENT_TTFT_TEXT),
            ("client_itl", "Inter-token latency at the client", _CLIENT_ITL, _CLIENT_ITL_TEXT),
            ("client_tpot", "Time per output token at the client", _CLIENT_TPOT, _CLIENT_TPOT_TEXT),
        )
        for quantile in (0.5, 0.95, 0.99)
    ),
    _published_rate(
        "input_tokens_per_second",
        "Input tokens",
        "tokens per second",
        "inference_client_input_tokens_total",
        "Tokens of the requests answered per second, as the server counts them, else `requests.tokenizer`; `all` is their sum.",
        (_STREAM,),
        nonzero_expected=False,  # not every server says it
    ),
    _published_rate(
        "output_tokens_per_second",
        "Output tokens",
        "tokens per second",
        "inference_client_output_tokens_total",
        "Tokens of the answers per second, counted when an answer ends: by the server where it says it, else the pieces with "
        "text; `all` is their sum.",
        (_STREAM,),
    ),
    _published_rate(
        "failed_requests_per_second",
        "Failed requests",
        "requests per second",
        "inference_client_failed_requests_total",
        "Requests to a server of your own that got no proper answer, per second; `all` is their sum.",
        ("server", _STREAM),
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
