"""``docs/metrics.md``, from the catalogue."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.metrics import quality
from harness.metrics.catalogue import CATALOGUE, STANDARD, Kind, Level, Metric
from harness.metrics.prometheus.telemetry import FIELDS
from harness.metrics.promql import cluster, render
from harness.metrics.telemetry import GPU_COLUMNS

_WINDOW_S = 20.0

_HEAD = """# Metrics

<!-- Written by `python -m scripts.pages` from the catalogue; edit `harness/metrics/` instead. -->

Every experiment has the same {count} metrics, one CSV each, whether the embedded recorder reads them from this machine
or the exporter from a Prometheus server. Both read one catalogue (`harness/metrics/catalogue.py`).

{columns}"""

_COLUMNS = """| metric | unit | kind | series | what it is |
|---|---|---|---|---|
"""

_PUBLISHED = """
Some workloads publish more. `metrics: all` in a campaign file means the {count}, and for a built-in workload of the last
column those of its own, too; a list of names may have them for any workload that publishes them, also one of your
own. Where a workload does not, the rows say so.

| metric | unit | kind | series | what it is | made of | recorded unasked for |
|---|---|---|---|---|---|---|
"""

_GRID = """
## Rows

- Row `k` belongs to `start + k * step` and to nothing else; the start is a whole multiple of the step, so that all metrics
  and all experiments share their timestamps. A series has `record_s / step_s + 1` rows, always.
- What a driver does not say (memory of a GB10, a Jetson or a vGPU) is missing; a broken GPU is named, and the others go on.
- A value is missing with a reason, never 0. A metric that the machine cannot give (no GPU, no PSI) has a row at every
  grid time, in the series named like its level (`gpu`, `node`), without a value and with the reason.
- A reading that begins late keeps its grid time, and the lateness is in the recording's summary, as is how late the last answer
  to a reading came (`answered_within_s`). A reading that begins late by a whole step or more is missed: its rows say so.
- What a replica counted is compared with the requests in its own log between the first and the last of its readings, within
  1% and what late answers, or a server's scrapes before their rows, explain. Where they disagree the experiment is DEGRADED.
- Rates and quantiles look back over a window of 4 steps (`rate_window_s` sets another), `(t - window, t]`, which holds
  4 scrapes. The recorder scrapes for one window before row 0, so that row 0 is as good as any other.
- `rate()`, with its extrapolation and its handling of resets, and `histogram_quantile()` are computed as Prometheus computes
  them, in the same order. Tests compare the two: on live replicas, and to 1e-9 on samples with restarts, gaps and a death
  (passed with Prometheus 2.42 and 3.5).
- `all` is the pool of the replicas: quantiles of the summed buckets (never an average of quantiles), mean latency weighted
  by requests, everything else a sum. A replica that died is left out, except that `total_count` keeps what it had served.
- Quantiles are interpolated inside buckets about 8% wide. A percentile to quote comes from the raw latencies, not from here.

## What the recorder reads

| metric | source |
|---|---|
"""

_PROMQL = """
Replicas are scraped all at once over connections that stay open, with a deadline below the step. Processes are read with their
children; the search for children is made every 5 seconds. NVML reads the devices that `CUDA_VISIBLE_DEVICES` lets through.

Beside the metrics, `telemetry.csv` holds a fast series (`telemetry_interval_s`, at most 0.25 s): host CPU in percent, and for
each device {columns}. Throttle reasons are NVML's bit mask; energy counts since the driver was loaded.
In a cluster it holds every sample that Prometheus has of the GPUs in use, from these fields of DCGM: {fields}.

## From Prometheus

The exporter asks for one series per replica or device and one for the pool, in chunks below 11,000 points, several queries at
once. A row has a value only if one of the metric's own raw samples lies in its step: Prometheus itself would repeat a sample for five
minutes, over gaps and past the end. (A kubelet measures containers by a jittering clock of its own, and its samples keep that
time: in a cluster `cpu_usage` and `memory_usage` may use a sample of the step before.) Quantiles read only the buckets that the range uses, which gives the same values
for a fraction of the server's work. The window is one millisecond short, so that it holds as many scrapes up to version 2 of
Prometheus (ranges closed on the left) as from version 3 on (open).

Nodes are told apart by the label `node` of their metrics, and devices by `node` and `gpu`; a Prometheus that calls them otherwise
is described in the campaign file (`prometheus_labels`). Over one node the series are `node` and `gpu-<number of the driver>`. Over
several, each node has its series `node-<name>` and `node` is their mean; devices are counted through, `gpu-0`, `gpu-1`...,
node by node, and the recording's summary in the manifest says which is which (`identities`). Two machines under one name at the same
time are not mixed: their rows have no value, and the reason. Nor has a row where DCGM says a number that stands for no value (2147483632,
4294967295, 9223372036854775794, 140737488355328.0); the memory of a GPU that MIG divides is the sum of its instances'.

In a cluster, for a window of {window:g} s:

"""

_QUALITY = """
## What is judged

Every experiment is judged from its files, and again by `harness verify`:

| finding | severity |
|---|---|
| no row at all; no latency, throughput or count; no replica served a request; rows off the grid | invalid |
| a series with fewer rows than the grid | degraded |
| more than {missing:.0%} of a series' values missing | degraded |
| a value beyond its metric's bounds (rates may overshoot by {slack:.0%}) | degraded |
| 0 in more than {zero:.0%} of the rows where a working replica cannot show 0 | degraded |
| one replica served nothing, or nothing in the last {stall:.0%} of the recording (asked at a rate: where {few} requests or more are due in it) | degraded |
| a quantile in the highest bucket ({top:g} s): cut off, not measured | degraded |
| counter and raw latency log differ by more than {count:.0%} | degraded |
| throughput not steady: of {windows} windows the last {last} or more must agree within {tolerance:.0%} | degraded |
| a metric that this machine cannot give; single missing values; a late settling | info |

Replicas that count their active time (`active_share`) rest by themselves: their pauses without requests, their zeros and their
uneven throughput are no faults.
"""

_FIGURES = """
## Figures

Each command prints one figure and whether its bar is met.

| bar | command |
|---|---|
| a tick begins within 20 ms of its schedule at p99, 8 replicas | `python -m tests.benchmarks.recorder_tick` |
| 24 h at 1 s with 8 replicas add less than 50 MB | `python -m tests.benchmarks.recorder_memory` |
| an export is 4 times faster than the client's data frames, same values | `python -m tests.benchmarks.export_speed` |
"""


def page() -> str:
    """The whole page."""
    parts = [_HEAD.format(count=len(STANDARD), columns=_COLUMNS)]
    parts += [f"{_row(metric)}\n" for metric in STANDARD.values()]
    parts.append(_PUBLISHED.format(count=len(STANDARD)))
    parts += [
        f"{_row(metric)} {_quoted(metric.families)} | {_quoted(metric.workloads)} |\n"
        for name, metric in CATALOGUE.items()
        if name not in STANDARD
    ]
    parts.append(_GRID)
    parts += [
        f"| `{metric.name}` | {metric.source.value}{metric.gauge and f': `{metric.gauge}`'} |\n"
        for metric in STANDARD.values()
    ]
    parts.append(
        _PROMQL.format(
            columns=", ".join(f"`{column}`" for column in GPU_COLUMNS),
            fields=", ".join(" or ".join(f"`{name}`" for name in names) for names, _ in FIELDS.values()),
            window=_WINDOW_S,
        )
    )
    parts += ["```promql\n", "\n".join(_queries()), "\n```\n"]
    parts.append(
        _QUALITY.format(
            missing=quality.MISSING_SHARE,
            slack=quality.BOUND_SLACK,
            zero=quality.ZERO_SHARE,
            stall=quality.STALL_SHARE,
            few=quality.REQUESTS_PER_WINDOW,
            top=quality.TOP_BOUND_S,
            count=quality.COUNT_SLACK,
            windows=quality.WINDOWS,
            last=quality.CONSECUTIVE,
            tolerance=quality.TOLERANCE,
        )
    )
    return "".join([*parts, _FIGURES])


def _row(metric: Metric) -> str:
    series = {Level.REPLICA: "`replica-N`", Level.DEVICE: "`gpu-N`", Level.NODE: "`node`"}[metric.level]
    if metric.pooled:
        series += ", `all`"
    return f"| `{metric.name}` | {metric.unit} | {metric.kind.value} | {series} | {metric.description} |"


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _queries() -> Iterator[str]:
    dialect = cluster("inference", "resnet50-.*")
    for metric in CATALOGUE.values():
        queries = render(metric, dialect, _WINDOW_S)
        yield f"# {metric.name}" + (" (counted on raw samples)" if metric.kind is Kind.COUNTER else "")
        yield from filter(None, (queries.each or queries.raw, queries.pooled))
