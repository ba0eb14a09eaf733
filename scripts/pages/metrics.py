"""``docs/metrics.md``, from the catalogue."""

from __future__ import annotations

from collections.abc import Sequence

from harness.metrics import quality
from harness.metrics.catalogue import CATALOGUE, STANDARD, Level, Metric
from harness.metrics.prometheus.telemetry import FIELDS
from harness.metrics.telemetry import GPU_COLUMNS
from scripts.pages.percentiles import merged

_HEAD = """# Metrics

<!-- Written by `python -m scripts.pages` from the catalogue; edit `harness/metrics/` instead. -->

Every experiment has the same {count} metrics, one CSV each, read by the embedded recorder or from a Prometheus server. The
catalogue is `harness/metrics/catalogue.py`.

{columns}"""

_COLUMNS = """| metric | unit | kind | series | what it is |
|---|---|---|---|---|
"""

_PUBLISHED = """
Some workloads publish more. `metrics: all` in a campaign file means the {count}, and for a built-in workload also its own (last
column). A list of names works for any workload that publishes them, also your own; otherwise the rows say that it does not.

| metric | unit | kind | series | what it is | made of | recorded by default for |
|---|---|---|---|---|---|---|
"""

_GRID = """
## Rows

- Row `k` belongs to `start + k * step`; the start is a multiple of the step. A series always has `record_s / step_s + 1` rows.
- A missing value has a reason and is never 0. A metric that the machine cannot give (no GPU, no PSI, memory of a GB10) has all its rows, without values.
- A late reading keeps its grid time; the recording's summary has the lateness. A reading late by a whole step is missed.
- A replica's counter is compared with its own log, within 1% and what late answers explain. If they disagree, the run is DEGRADED.
- Rates and quantiles cover a window of 4 steps (`rate_window_s` sets another), `(t - window, t]`. The recorder scrapes for one window before row 0.
- `rate()` and `histogram_quantile()` are computed as Prometheus computes them. Tests compare both to 1e-9 (Prometheus 2.42 and 3.5).
- `all` pools the replicas: quantiles of the summed buckets, mean latency weighted by requests, everything else a sum. A dead replica is left out, except in `total_count`.
- Quantiles are interpolated inside buckets about 8% wide. Quote percentiles from the raw latencies instead.

## What the recorder reads

CPU and memory: the replica's process and its children. GPU metrics: NVML, of the device (`gpu_memory`: also of each replica's processes). Pressure: `some total` of /proc/pressure.
Latency and counts: `inference_latency_seconds` and `inference_requests_total` on the replica's /metrics.
"""

_PROMQL = """
Replicas are scraped in parallel, with a deadline below the step. Processes include their children. NVML reads the devices in `CUDA_VISIBLE_DEVICES`.

`telemetry.csv` is a fast series (`telemetry_interval_s`, at most 0.25 s): host CPU in percent, and for each device {columns}.
Throttle reasons are NVML's bit mask; energy counts since the driver was loaded. In a cluster it holds every sample of these fields of DCGM: {fields}.

## From Prometheus

A row has a value only if a raw sample lies in its step (`cpu_usage` and `memory_usage`: or in the step before, because a kubelet's clock jitters). The
window is one millisecond short, so that versions 2 and 3 of Prometheus see the same scrapes.

The label `node` identifies nodes, `node` and `gpu` devices; set `prometheus_labels` for other names. One node has the series `node` and `gpu-<number>`; several have `node-<name>` each and `node` as their
mean, with devices numbered node by node (`identities` in the manifest). A row has no value, with a reason, if two machines share a name or DCGM says a blank
(2147483632, 4294967295, 9223372036854775794, 140737488355328.0). Memory of a MIG GPU is the sum of its instances.

The queries are in [tests/golden/promql](../tests/golden/promql/cluster.txt): `each` for a series of each replica or device, `pooled` for `all`.
"""

_QUALITY = """
## What is judged

Every experiment is judged from its files, and again by `harness verify`:

| finding | severity |
|---|---|
| no row at all; no latency, throughput or count; no replica served a request; rows off the grid | invalid |
| a series with fewer rows than the grid | degraded |
| more than {missing:.0%} of a series' values missing, or 0 in more than {zero:.0%} of the rows where work must show (closed loop: beyond what long requests explain) | degraded |
| a value beyond its metric's bounds (rates may overshoot by {slack:.0%}) | degraded |
| one replica served nothing, or nothing in the last {stall:.0%} of the recording (with {few} or more due; closed loop: {in_turn} per request in flight) | degraded |
| a quantile in the highest bucket ({top:g} s): cut off, not measured | degraded |
| counter and raw latency log differ by more than {count:.0%} | degraded |
| throughput not steady: of {windows} windows (fewer if one has under {per_window} times what is in flight) the last {last} or more must agree within {tolerance:.0%} | degraded |
| a metric that this machine cannot give; single missing values; a late settling | info |

Pauses of replicas that count their active time (`active_share`) are not faults.
"""


def page() -> str:
    """The whole page."""
    parts = [_HEAD.format(count=len(STANDARD), columns=_COLUMNS)]
    parts += merged(f"{_row(metric)}\n" for metric in STANDARD.values())
    parts.append(_PUBLISHED.format(count=len(STANDARD)))
    parts += merged(
        f"{_row(metric)} {_quoted(metric.families)} | {_quoted(metric.workloads)} |\n"
        for name, metric in CATALOGUE.items()
        if name not in STANDARD
    )
    parts.append(_GRID)
    parts.append(
        _PROMQL.format(
            columns=", ".join(f"`{column}`" for column in GPU_COLUMNS),
            fields=", ".join(" or ".join(f"`{name}`" for name in names) for names, _ in FIELDS.values()),
        )
    )
    parts.append(
        _QUALITY.format(
            missing=quality.MISSING_SHARE,
            slack=quality.BOUND_SLACK,
            zero=quality.ZERO_SHARE,
            stall=quality.STALL_SHARE,
            few=quality.REQUESTS_PER_WINDOW,
            in_turn=quality.REQUESTS_IN_TURN,
            top=quality.TOP_BOUND_S,
            count=quality.COUNT_SLACK,
            windows=quality.WINDOWS,
            last=quality.CONSECUTIVE,
            tolerance=quality.TOLERANCE,
            per_window=quality.IN_FLIGHT_PER_WINDOW,
        )
    )
    return "".join(parts)


def _row(metric: Metric) -> str:
    series = {Level.REPLICA: "`replica-N`", Level.DEVICE: "`gpu-N`", Level.NODE: "`node`"}[metric.level]
    if metric.pooled:
        series += ", `all`"
    return f"| `{metric.name}` | {metric.unit} | {metric.kind.value} | {series} | {metric.description} |"


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
