"""How much faster an export is than the client's own data frames, with the same values.

    python -m tests.benchmarks.export_speed [--rounds 5]

15 metrics x 8 replicas x 1 h at a step of 5 s, from a real Prometheus (Debian's package) that holds known samples: 8 pods
with the replicas' real buckets, CPU, memory, GPU and pressure. The exporter fetches, checks every row against raw samples and hands
over rows; the other side asks the same PromQL one query after another with prometheus-api-client and makes a
MetricRangeDataFrame of each answer. Interleaved rounds; the bar is 4 times faster in the median, and equal values.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from prometheus_api_client import MetricRangeDataFrame, PrometheusConnect

from harness.metrics.catalogue import CATALOGUE, STANDARD, Kind, Level, select
from harness.metrics.prometheus.client import PrometheusServer
from harness.metrics.prometheus.exporter import export
from harness.metrics.promql import cluster, render
from harness.replica.custom_metrics import BUCKET_BOUNDS_NS
from tests.integration.metrics.prometheus_server import backfill, prometheus
from tests.support.fake_metrics import RowList

BAR = 4.0
REPLICAS, ROWS, STEP_S, WINDOW_S = 8, 721, 5, 20
REQUESTS_PER_STEP = 600
DIALECT = cluster("inference", "resnet50-8-.*")
LES = [*(repr(bound_ns / 1e9) for bound_ns in BUCKET_BOUNDS_NS), "+Inf"]
GPU_GAUGES = ("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_GPU_TEMP")
Values = dict[tuple[str, str, float], float]


def lines(start_s: int, *, workload: str = "resnet50", replicas: int = REPLICAS, seed: int = 1) -> Iterator[str]:
    """One hour and a window before it, as a cluster's Prometheus would have scraped it."""
    generator = np.random.default_rng(seed)
    times = start_s + STEP_S * np.arange(-4, ROWS)
    for pod in range(replicas):
        labels = f'namespace="inference",pod="{workload}-{replicas}-{pod}"'
        latencies_s = generator.lognormal(-5.2, 0.25, (len(times), REQUESTS_PER_STEP))
        counts = np.stack(
            [np.bincount(np.searchsorted(BUCKET_BOUNDS_NS, row * 1e9), minlength=len(LES)) for row in latencies_s]
        )
        buckets = counts.cumsum(axis=0).cumsum(axis=1)
        series = {f'inference_latency_seconds_bucket{{{labels},le="{le}"}}': buckets[:, k] for k, le in enumerate(LES)}
        series[f"inference_latency_seconds_sum{{{labels}}}"] = latencies_s.sum(axis=1).cumsum()
        series[f"inference_latency_seconds_count{{{labels}}}"] = buckets[:, -1]
        series[f"inference_requests_total{{{labels}}}"] = buckets[:, -1]
        work = f'{labels},container="work"'
        series[f"container_cpu_usage_seconds_total{{{work}}}"] = generator.uniform(3, 5, len(times)).cumsum()
        series[f"container_memory_working_set_bytes{{{work}}}"] = generator.integers(10**9, 2 * 10**9, len(times))
        yield from listed(series, times)
    node = {f'{name}{{node="n",gpu="0"}}': generator.integers(1, 100, len(times)) for name in GPU_GAUGES}
    for kind in ("cpu", "memory", "io"):
        node[f'node_pressure_{kind}_waiting_seconds_total{{node="n",instance="n:9100"}}'] = generator.uniform(
            0, 2, len(times)
        ).cumsum()
    yield from listed(node, times)


def listed(series: dict[str, np.ndarray], times: np.ndarray) -> Iterator[str]:
    for name, values in series.items():
        yield from (f"{name} {value!r} {time}" for value, time in zip(values.tolist(), times.tolist(), strict=True))


def ours(url: str, start_s: int) -> Values:
    sink = RowList()
    with PrometheusServer(url) as server:
        export(
            server,
            metrics=select("all"),
            dialect=DIALECT,
            start_s=start_s,
            rows=ROWS,
            step_s=STEP_S,
            window_s=WINDOW_S,
            sink=sink,
        )
    return {
        (row.metric, row.series, row.timestamp_s): float("nan") if row.value is None else row.value for row in sink.rows
    }


def theirs(url: str, start_s: int) -> list[tuple[str, MetricRangeDataFrame]]:
    client = PrometheusConnect(url)
    start, end = (datetime.fromtimestamp(start_s + seconds, UTC) for seconds in (0, STEP_S * (ROWS - 1)))
    frames = []
    for metric in STANDARD.values():
        queries = render(metric, DIALECT, WINDOW_S)
        each = queries.each or f"sum by (pod) ({queries.raw})"
        pooled = queries.pooled or (f"sum({queries.raw})" if metric.pooled else "")
        for promql in filter(None, (each, pooled)):
            result = client.custom_query_range(promql, start_time=start, end_time=end, step=str(STEP_S))
            frames.append((metric.name, MetricRangeDataFrame(result)))
    return frames


def flatten(frames: list[tuple[str, MetricRangeDataFrame]]) -> Values:
    """Their frames as our rows; a raw counter becomes what was counted since the first row."""
    values: Values = {}
    for name, frame in frames:
        label = "pod" if "pod" in frame else "gpu" if "gpu" in frame else ""
        for key, part in frame.groupby(label) if label else [("", frame)]:
            prefix = {"pod": "replica-", "gpu": "gpu-"}.get(label, "")
            series = f"{prefix}{str(key).removeprefix('resnet50-8-')}" or (
                "node" if CATALOGUE[name].level is Level.NODE else "all"
            )
            base = part["value"].iloc[0] if CATALOGUE[name].kind is Kind.COUNTER else 0.0
            for moment, value in part["value"].items():
                values[name, series, moment.timestamp()] = value - base
    return values


def worst_difference(one: Values, other: Values) -> float:
    if one.keys() != other.keys():
        raise AssertionError(f"other rows: {sorted(one.keys() ^ other.keys())[:4]}")
    return max(abs(value - other[key]) / max(abs(other[key]), 1e-300) for key, value in one.items())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    start_s = int(time.time() - 3 * 3600) // 60 * 60
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with prometheus(folder, database=backfill(folder, lines(start_s))) as url:
            rows, frames = ours(url, start_s), theirs(url, start_s)  # not timed: both find the server warm
            worst = worst_difference(rows, flatten(frames))
            pairs = []
            for _ in range(options.rounds):
                begun_s = time.perf_counter()
                ours(url, start_s)
                between_s = time.perf_counter()
                theirs(url, start_s)
                pairs.append((between_s - begun_s, time.perf_counter() - between_s))
    ratios = [their_s / our_s for our_s, their_s in pairs]
    ratio = statistics.median(ratios)
    met = ratio >= BAR and worst < 1e-9
    print(
        f"{len(rows):,} rows of 15 metrics, {REPLICAS} replicas, 1 h at {STEP_S} s: "
        f"exporter {statistics.median(our_s for our_s, _ in pairs):.2f} s, data frames one after another "
        f"{statistics.median(their_s for _, their_s in pairs):.2f} s, {ratio:.1f} times faster "
        f"({min(ratios):.1f} to {max(ratios):.1f} in {options.rounds} rounds); largest relative difference {worst:.1e}; "
        f"bar {BAR:g} times: {'met' if met else 'MISSED'}"
    )
    return 0 if met else 1


if __name__ == "__main__":
    raise SystemExit(main())
