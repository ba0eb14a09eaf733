"""Known samples in a real Prometheus: what the recorder made of them, and what the exporter reads back."""

import time

import numpy as np
import pytest

from harness.errors import NoDataError, UsageError
from harness.metrics.catalogue import STANDARD, select
from harness.metrics.machine import ProcessUsage
from harness.metrics.prometheus.client import MAX_POINTS, PrometheusServer
from harness.metrics.prometheus.exporter import export
from harness.metrics.prometheus.series import NO_SAMPLE
from harness.metrics.promql import cluster, local
from harness.metrics.recorder import Recorder, ReplicaTarget
from harness.metrics.rows import Missing, RecordingRequest
from harness.metrics.scrape import PublishedFamily
from harness.replica.custom_metrics import BUCKET_BOUNDS_NS
from tests.integration.metrics.prometheus_server import NEEDED, backfill, prometheus
from tests.support.fake_metrics import FakeProcesses, RowList, fake_sources, replica_sample
from tests.support.simulated_clock import StillClock

pytestmark = NEEDED

STEP_S, WINDOW_S, ROWS, PRE_ROWS = 5.0, 20.0, 90, 3
REPLICAS = 3
BOUNDS = np.array([*(bound_ns / 1e9 for bound_ns in BUCKET_BOUNDS_NS), np.inf])
RECORDED = ["cpu_usage", "memory_usage", "latency_avg", "latency_p50", "latency_p95", "latency_p99", "throughput"]
RECORDED += ["total_count", "client_ttft_p50", "client_ttft_p95", "output_tokens_per_second", "active_share"]
FIRST_TOKEN_BOUNDS = (0.002, 0.004, 0.008, 0.016, np.inf)
BUCKETS_AT = 3
TOKENS_AT = BUCKETS_AT + len(BOUNDS)
ACTIVE_AT, IDLE_AT, FIRST_TOKEN_AT = TOKENS_AT + 1, TOKENS_AT + 2, TOKENS_AT + 3
FAMILIES = {
    "inference_client_output_tokens_total": PublishedFamily(TOKENS_AT),
    "inference_active_seconds_total": PublishedFamily(ACTIVE_AT),
    "inference_idle_seconds_total": PublishedFamily(IDLE_AT),
    "inference_client_ttft_seconds": PublishedFamily(FIRST_TOKEN_AT, FIRST_TOKEN_BOUNDS),
}
LONG_ROWS = MAX_POINTS + 1500
SPARSE_SCRAPES = 40

RESET_AT, GAP, IDLE, DEATH_AT = 30, range(50, 53), range(60, 72), 40


def spelt(bound):
    """A bucket's bound as a replica writes it."""
    return "+Inf" if bound == np.inf else repr(float(bound))


def start_of_data():
    """A grid time hours ago, so that every series lies in the past."""
    return float(int(time.time() - 9 * 3600) // 60 * 60)


class Script:
    """Three replicas: one is restarted, one has a gap and an idle stretch, one dies."""

    def __init__(self):
        generator = np.random.default_rng(7)
        self.samples, self.cpu = [], []
        for replica in range(REPLICAS):
            counters = np.zeros(FIRST_TOKEN_AT + 2 + len(FIRST_TOKEN_BOUNDS))
            counters[:3] = 1e-9
            for scrape in range(-200, 0):
                self._serve(counters, generator, replica, scrape)
            rows, used = [], 100.0
            for scrape in range(PRE_ROWS + ROWS):
                if replica == 0 and scrape == RESET_AT:
                    counters[:] = 0
                    used = 0.5
                if not (replica == 1 and scrape in IDLE):
                    self._serve(counters, generator, replica, scrape)
                used += float(generator.uniform(1, 5))
                counters[IDLE_AT] += 1.25
                rows.append(replica_sample(counters.copy(), BOUNDS, **FAMILIES))
                self.cpu.append(used)
            self.samples.append(rows)
        self.cpu = np.array(self.cpu).reshape(REPLICAS, -1)

    def _serve(self, counters, generator, replica, scrape):
        count = 20 + (7 * scrape + replica) % 23
        latencies = generator.lognormal(-5 + 0.1 * replica, 0.4, count).round(9)
        counters[0] += count
        counters[1] = round(counters[1] + latencies.sum(), 9)
        counters[2] += count
        counters[BUCKETS_AT:TOKENS_AT] += (latencies[:, None] <= BOUNDS).sum(axis=0)
        counters[[0, 2]] = np.rint(counters[[0, 2]])
        counters[TOKENS_AT] += 64 * count
        counters[ACTIVE_AT] += round(float(latencies.sum()), 9)
        counters[FIRST_TOKEN_AT] += 0.001 * count
        counters[FIRST_TOKEN_AT + 1] += count
        counters[FIRST_TOKEN_AT + 2 :] += (latencies[:, None] / 2 <= np.array(FIRST_TOKEN_BOUNDS)).sum(axis=0)

    def lost(self, replica, scrape):
        return (replica == 1 and scrape in GAP) or (replica == 2 and scrape >= DEATH_AT)

    def sample(self, replica, scrape):
        return Missing("lost") if self.lost(replica, scrape) else self.samples[replica][scrape]

    def usage(self, replica, scrape):
        return Missing("lost") if self.lost(replica, scrape) else ProcessUsage(self.cpu[replica][scrape], 1e9 + scrape)

    def lines(self, start_s):
        """Everything that was not lost, as a Prometheus scraping at the grid times would have stored it."""
        for replica in range(REPLICAS):
            labels = f'job="known",replica="{replica}"'
            kept = [scrape for scrape in range(PRE_ROWS + ROWS) if not self.lost(replica, scrape)]
            times = {scrape: start_s + (scrape - PRE_ROWS) * STEP_S for scrape in kept}
            names = [
                f"inference_requests_total{{{labels}}}",
                f"inference_latency_seconds_sum{{{labels}}}",
                f"inference_latency_seconds_count{{{labels}}}",
                *(f'inference_latency_seconds_bucket{{{labels},le="{spelt(bound)}"}}' for bound in BOUNDS),
                f"inference_client_output_tokens_total{{{labels}}}",
                f"inference_active_seconds_total{{{labels}}}",
                f"inference_idle_seconds_total{{{labels}}}",
                f"inference_client_ttft_seconds_sum{{{labels}}}",
                f"inference_client_ttft_seconds_count{{{labels}}}",
                *(
                    f'inference_client_ttft_seconds_bucket{{{labels},le="{spelt(bound)}"}}'
                    for bound in FIRST_TOKEN_BOUNDS
                ),
            ]
            for place, name in enumerate(names):
                for scrape in kept:
                    yield f"{name} {float(self.samples[replica][scrape].counters[place])!r} {times[scrape]:.3f}"
            for scrape in kept:
                yield f"process_cpu_seconds_total{{{labels}}} {float(self.cpu[replica][scrape])!r} {times[scrape]:.3f}"
                yield f"process_resident_memory_bytes{{{labels}}} {1e9 + scrape!r} {times[scrape]:.3f}"


@pytest.fixture(scope="module")
def script():
    return Script()


@pytest.fixture(scope="module")
def start_s():
    return start_of_data()


@pytest.fixture(scope="module")
def server(tmp_path_factory, script, start_s):
    lines = list(script.lines(start_s))
    lines += [
        f'inference_requests_total{{job="long",replica="0"}} {100 + 3 * k} {start_s + k}' for k in range(-5, LONG_ROWS)
    ]
    lines += [
        f'inference_requests_total{{job="sparse",replica="0"}} {100 + 3 * k} {start_s + 15 * k}'
        for k in range(SPARSE_SCRAPES)
    ]
    for container in ('container="work"', 'container=""', 'container="POD"'):
        lines += [
            f'container_cpu_usage_seconds_total{{namespace="inference",pod="resnet50-a",{container}}} {100 + 2 * k} {start_s + 5 * k}'
            for k in range(-5, 20)
        ]
    for k in range(-5, 20):
        # The same device twice, as the exporter of a cluster shows it for two pods.
        lines += [f'DCGM_FI_DEV_FB_USED{{gpu="1",pod="{pod}"}} {2000 + k} {start_s + 5 * k}' for pod in "ab"]
        lines += [f'DCGM_FI_DEV_FB_USED{{gpu="0"}} 1000 {start_s + 5 * k}']
        lines += [f'node_pressure_io_waiting_seconds_total{{instance="{n}"}} {9 + k} {start_s + 5 * k}' for n in "xy"]
        for place, node in enumerate(("n1", "n2")):
            labels = f'node="{node}",instance="{node}:9100"'
            lines += [f"node_pressure_cpu_waiting_seconds_total{{{labels}}} {100 + (place + 1) * k} {start_s + 5 * k}"]
            lines += [
                f'DCGM_FI_DEV_POWER_USAGE{{node="{node}",gpu="{gpu}",UUID="GPU-{node}-{gpu}"}} {100 * place + gpu} {start_s + 5 * k}'
                for gpu in range(2)
                if not (place and k > 10)  # the second node's exporter dies
            ]
        # Two machines to which somebody gave one name.
        lines += [
            f'DCGM_FI_DEV_GPU_TEMP{{node="n1",gpu="0",UUID="{uuid}"}} 50 {start_s + 5 * k}'
            for uuid in ("GPU-a", "GPU-b")
        ]
    # A kubelet that measures by a jittering clock: every other step of the export holds no sample, the rest hold two.
    for k in range(-5, 20):
        at_s = start_s + 5 * k + (-0.1 if k % 2 else 0.1)
        labels = 'namespace="jitter",pod="resnet50-a",container="work"'
        lines += [f"container_cpu_usage_seconds_total{{{labels}}} {100 + 0.4 * (at_s - start_s)!r} {at_s}"]
        lines += [f"container_memory_working_set_bytes{{{labels}}} 7 {at_s}"]
        # Buckets that were dropped, or became a native histogram.
        for name, each in (("requests_total", 3), ("latency_seconds_count", 3), ("latency_seconds_sum", 0.3)):
            lines += [f'inference_{name}{{job="bucketless",replica="0"}} {each * (k + 9)} {start_s + 5 * k}']
    folder = tmp_path_factory.mktemp("prometheus")
    with prometheus(folder, database=backfill(folder, lines)) as url, PrometheusServer(url) as server:
        yield server


@pytest.fixture(scope="module")
def recorded(script, start_s):
    sink = RowList()
    targets = [ReplicaTarget(replica, 1, "http://127.0.0.1:1/metrics") for replica in range(REPLICAS)]
    clock = StillClock(start_s - 60)
    sources = fake_sources(REPLICAS, script.sample, processes=FakeProcesses(REPLICAS, script.usage))
    request = RecordingRequest(metrics=select(RECORDED), step_s=STEP_S, window_s=WINDOW_S, sink=sink, clock=clock)
    Recorder(targets, request, sources=sources).record(start_s, ROWS)
    return sink


def exported_rows(server, start_s, job="known", rows=ROWS, step_s=STEP_S, metrics=RECORDED, **options):
    sink = RowList()
    summary = export(
        server,
        metrics=select(metrics),
        dialect=options.pop("dialect", local(job)),
        start_s=start_s,
        rows=rows,
        step_s=step_s,
        window_s=4 * step_s,
        sink=sink,
        **options,
    )
    return summary, sink


@pytest.fixture(scope="module")
def exported(server, start_s):
    return exported_rows(server, start_s)[1]


@pytest.mark.parametrize("metric", RECORDED)
@pytest.mark.parametrize("series", ["replica-0", "replica-1", "replica-2", "all"])
def test_the_recorder_computes_what_prometheus_computes(recorded, exported, metric, series):
    ours, theirs = recorded.series(metric, series), exported.series(metric, series)
    assert len(ours) == ROWS
    assert [row.timestamp_s for row in ours] == [row.timestamp_s for row in theirs]
    assert [row.value is None for row in ours] == [row.value is None for row in theirs]
    present = np.array([[a.value, b.value] for a, b in zip(ours, theirs, strict=True) if a.value is not None])
    np.testing.assert_allclose(present[:, 0], present[:, 1], rtol=1e-9, atol=0)


def test_a_histogram_without_buckets_is_the_reason_and_its_mean_goes_on(server, start_s):
    _, sink = exported_rows(server, start_s, "bucketless", rows=10, metrics=["latency_avg", "latency_p95"])
    assert [row.value for row in sink.series("latency_avg", "all")] == [pytest.approx(0.1)] * 10
    for series in ("replica-0", "all"):
        (reason,) = {row.reason for row in sink.series("latency_p95", series)}
        assert reason.startswith("Prometheus holds inference_latency_seconds_count and no bucket")


def test_the_script_shows_every_case(recorded):
    """The comparison above is worth something only if the hard cases are in the data."""

    def missing(metric, series):
        return {k for k, row in enumerate(recorded.series(metric, series)) if row.value is None}

    gap = {scrape - PRE_ROWS for scrape in GAP}
    assert missing("throughput", "replica-1") >= gap
    assert missing("latency_p50", "replica-1") > gap  # and the idle stretch
    assert missing("throughput", "replica-2") == set(range(DEATH_AT - PRE_ROWS, ROWS))
    assert missing("throughput", "all") == set()
    assert min(row.value for row in recorded.series("throughput", "replica-1") if row.value is not None) == 0
    counts = [row.value for row in recorded.series("total_count", "replica-0")]
    assert counts == sorted(counts)


def test_chunks_join_without_gap_or_duplicate(server, start_s, exported, monkeypatch):
    """In pieces of 7 rows, over restarts and gaps, exactly what one piece gives."""
    monkeypatch.setattr("harness.metrics.prometheus.series.MAX_POINTS", 7)
    _, sink = exported_rows(server, start_s)
    for name in {(row.metric, row.series) for row in exported.rows}:
        assert sink.series(*name) == exported.series(*name)
    assert len(sink.rows) == len(exported.rows)


def test_a_stretch_without_restart_reads_few_buckets_and_gives_the_same(server, start_s, exported, monkeypatch):
    asked = []
    query_range = server.query_range
    monkeypatch.setattr(server, "query_range", lambda promql, *grid: asked.append(promql) or query_range(promql, *grid))
    metrics = ["latency_p50", "latency_p95", "latency_p99"]
    rows = RESET_AT - PRE_ROWS - 10
    _, sink = exported_rows(server, start_s + 5 * STEP_S, rows=rows, metrics=metrics)
    assert len(asked) == 6
    for promql in asked:
        read = promql.partition(',le=~"')[2].partition('"')[0].split("|")
        assert 10 < len(read) < len(BOUNDS) / 2
    for metric in metrics:
        for series in ("replica-0", "replica-1", "replica-2", "all"):
            whole = exported.series(metric, series)[5 : 5 + rows]
            assert sink.series(metric, series) == whole


def test_more_points_than_the_server_answers(server, start_s):
    with pytest.raises(UsageError, match="11001 points"):
        server.query_range("up", 0, MAX_POINTS * 1000, 1000)
    summary, sink = exported_rows(
        server, start_s, job="long", rows=LONG_ROWS, step_s=1.0, metrics=["throughput", "total_count"]
    )
    assert summary.rows == LONG_ROWS
    rows = sink.series("total_count", "replica-0")
    assert [row.timestamp_s for row in rows] == [start_s + k for k in range(LONG_ROWS)]
    assert [row.value for row in rows] == [3.0 * k for k in range(LONG_ROWS)]
    rates = [row.value for row in sink.series("throughput", "all")]
    np.testing.assert_allclose(rates, 3.0, rtol=1e-12)


def test_look_back_cannot_invent_rows(server, start_s):
    rows = 3 * SPARSE_SCRAPES + 60
    start_ms, end_ms = int(start_s * 1000), int(start_s * 1000) + 5000 * (rows - 1)
    plain = server.query_range('inference_requests_total{job="sparse"}', start_ms, end_ms, 5000)
    assert len(plain.series[0].values) > 2.5 * SPARSE_SCRAPES  # what the server says: samples that nobody took
    summary, sink = exported_rows(server, start_s, job="sparse", rows=rows, metrics=["throughput", "total_count"])
    found = sink.series("total_count", "replica-0")
    assert len(found) == rows
    real = {k for k, row in enumerate(found) if row.value is not None}
    assert real == {3 * k for k in range(SPARSE_SCRAPES)}
    assert {row.reason for row in found} == {"", NO_SAMPLE}
    assert {k for k, row in enumerate(sink.series("throughput", "replica-0")) if row.value is not None} <= real
    assert summary.metrics["total_count"].reasons[NO_SAMPLE] == rows - SPARSE_SCRAPES


def test_nothing_after_the_end(server, start_s):
    after_s = start_s + ROWS * STEP_S
    summary, sink = exported_rows(server, after_s, rows=12, metrics=["throughput"])
    assert [row.value for row in sink.rows] == [None] * len(sink.rows)
    assert len(sink.series("throughput", "all")) == summary.rows == 12


def test_what_the_server_has_not_is_absent_with_the_reason(server, start_s):
    summary, sink = exported_rows(
        server, start_s, metrics="all", dialect=local("known", node='instance="x"', gpus='node=""')
    )
    assert set(summary.absent) == set(STANDARD) - set(RECORDED) - {"gpu_memory", "io_psi"}
    assert "DCGM_FI_DEV_GPU_UTIL" in summary.absent["gpu_utilization"]
    assert [row.value for row in sink.series("gpu_utilization", "gpu")] == [None] * ROWS
    assert [row.value for row in sink.series("cpu_psi", "node")] == [None] * ROWS


def test_each_device_is_one_series_in_bytes(server, start_s):
    _, sink = exported_rows(server, start_s, rows=10, metrics=["gpu_memory"])
    assert {row.series for row in sink.rows} == {"gpu-0", "gpu-1"}
    assert [row.value for row in sink.series("gpu_memory", "gpu-0")] == [1000 * 2.0**20] * 10
    assert [row.value for row in sink.series("gpu_memory", "gpu-1")] == [(2000 + k) * 2.0**20 for k in range(10)]


def test_two_nodes_are_not_mixed(server, start_s):
    with pytest.raises(UsageError, match="matches 2 series for one node"):
        exported_rows(server, start_s, rows=10, metrics=["io_psi"])
    _, sink = exported_rows(server, start_s, rows=10, metrics=["io_psi"], dialect=local("known", node='instance="x"'))
    np.testing.assert_allclose([row.value for row in sink.rows], 20.0, rtol=1e-9)


def test_containers_are_counted_once(server, start_s):
    """Without the filter the pod's own cgroup and the pause container would make it three times as much."""
    _, sink = exported_rows(
        server, start_s, rows=10, metrics=["cpu_usage"], dialect=cluster("inference", "resnet50-.*")
    )
    values = [row.value for row in sink.series("cpu_usage", "replica-0")]
    np.testing.assert_allclose(values, 0.4, rtol=1e-9)


def test_replicas_have_the_numbers_they_were_given(server, start_s):
    summary, sink = exported_rows(server, start_s, metrics=["throughput"], replicas=["2", "0"])
    assert summary.replicas == ["2", "0"]
    assert sink.series("throughput", "replica-0")[-1].value is None  # replica 2 died
    assert sink.series("throughput", "replica-1")[-1].value is not None


def test_times_keep_their_milliseconds(server, start_s):
    """The client rounds to whole seconds, which would move a grid of 100 ms."""
    start_ms = int(start_s * 1000) + 300
    answer = server.query_range('inference_requests_total{job="long"}', start_ms, start_ms + 400, 100)
    assert answer.series[0].times_ms.tolist() == [start_ms + 100 * k for k in range(5)]


def test_raw_samples_have_their_own_times(server, start_s):
    start_ms = int(start_s * 1000)
    answer = server.raw('inference_requests_total{job="sparse"}', start_ms, start_ms + 60_000)
    assert answer.series[0].times_ms.tolist() == [start_ms + 15_000 * k for k in range(1, 5)]
    with pytest.raises(NoDataError, match="no_such_metric"):
        server.raw("no_such_metric", start_ms, start_ms + 60_000)


def over_nodes(server, start_s, metrics, nodes):
    return exported_rows(server, start_s, rows=15, metrics=metrics, dialect=cluster("inference", ".+", nodes=nodes))


def test_each_node_has_series_of_its_own(server, start_s):
    summary, sink = over_nodes(server, start_s, ["gpu_power", "cpu_psi"], ["n1", "n2"])
    assert {row.series for row in sink.rows if row.metric == "cpu_psi"} == {"node-n1", "node-n2", "node"}
    for name, percent in (("node-n1", 20.0), ("node-n2", 40.0), ("node", 30.0)):
        values = [row.value for row in sink.series("cpu_psi", name)]
        np.testing.assert_allclose(values, percent, rtol=1e-9)
    for number, watts in enumerate((0, 1, 100, 101)):
        values = [row.value for row in sink.series("gpu_power", f"gpu-{number}")]
        assert values == [watts] * 11 + [None if number > 1 else watts] * 4
    assert summary.identities["gpu-2"] == {"node": "n2", "gpu": "0", "UUID": "GPU-n2-0"}


def test_one_of_two_nodes_alone_keeps_the_short_names(server, start_s):
    _, sink = over_nodes(server, start_s, ["gpu_power", "cpu_psi"], ["n2"])
    assert {row.series for row in sink.rows} == {"gpu-0", "gpu-1", "node"}
    assert sink.series("gpu_power", "gpu-1")[0].value == 101


def test_two_devices_under_one_name_have_no_value_but_a_reason(server, start_s):
    _, sink = over_nodes(server, start_s, ["gpu_temperature"], ["n1"])
    assert {row.value for row in sink.rows} == {None}
    assert "under two names at once (UUID GPU-a and GPU-b)" in sink.rows[0].reason


def test_containers_that_are_measured_by_a_jittering_clock_have_every_row(server, start_s):
    _, sink = exported_rows(
        server, start_s, rows=15, metrics=["cpu_usage", "memory_usage"], dialect=cluster("jitter", ".+")
    )
    assert [row.reason for row in sink.rows if row.reason] == []
    np.testing.assert_allclose([row.value for row in sink.series("cpu_usage", "all")], 0.4, rtol=1e-6)
    assert {row.value for row in sink.series("memory_usage", "replica-0")} == {7.0}


def test_a_container_that_is_gone_has_no_row_after_two_steps(server, start_s):
    _, sink = exported_rows(server, start_s + 80, rows=10, metrics=["memory_usage"], dialect=cluster("jitter", ".+"))
    assert [row.value is None for row in sink.series("memory_usage", "replica-0")] == [False] * 5 + [True] * 5
