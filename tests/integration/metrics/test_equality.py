"""The embedded recorder against a real Prometheus server: two scrapers, one set of replicas, the same rows."""

import dataclasses
import json
import time

import numpy as np
import pytest

from harness.clock import SystemClock
from harness.errors import NoDataError
from harness.metrics.catalogue import CATALOGUE, Kind, select
from harness.metrics.prometheus.client import PrometheusServer
from harness.metrics.prometheus.exporter import export
from harness.metrics.promql import local, render
from harness.metrics.recorder import Recorder
from harness.metrics.rows import RecordingRequest
from harness.results.requests import LATENCY, records_of
from tests.integration.metrics.bursts import END_S, PHASE_S
from tests.integration.metrics.prometheus_server import EMPTY_CONFIG, NEEDED, RunningPrometheus
from tests.support.fake_metrics import RowList
from tests.support.replicas import running_replicas

pytestmark = NEEDED

REPLICAS = 2
JOBS = 40
SCRAPES = 4
"""Of each replica by each job, until its phase is known."""
ATTEMPTS = 4
ROWS = 20
STEP_S, WINDOW_S = 1.0, 4.0
METRICS = ["latency_avg", "latency_p50", "latency_p95", "latency_p99", "throughput", "total_count"]
EDGE = 0.002
EDGES = [
    dataclasses.replace(CATALOGUE[name], name=f"{name}{side:+d}", quantile=CATALOGUE[name].quantile + side * EDGE)
    for name in METRICS
    if CATALOGUE[name].kind is Kind.QUANTILE
    for side in (-1, 1)
]
"""The quantiles just beside: where half of the requests end exactly at a bucket's bound, a millisecond of the server's
own jitter decides between this bucket and the next that has any; there its answer may be either."""
QUIET_S = (END_S + 0.15, 0.95)
"""Part of each second in which a scrape sees what the next full second's scrape will see."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("replicas")


@pytest.fixture(scope="module")
def replicas(folder):
    with running_replicas("tests.integration.metrics.bursts:make", REPLICAS, folder) as targets:
        yield targets


def scraping(replicas, jobs):
    """The configuration in which one job after another scrapes the same replicas; its name gives each a phase of its own."""
    targets = [
        {"targets": [target.metrics_url.split("/")[2]], "labels": {"replica": str(target.replica)}}
        for target in replicas
    ]
    every = [{"job_name": job, "static_configs": targets} for job in jobs]
    return json.dumps({"global": {"scrape_interval": "1s", "scrape_timeout": "900ms"}, "scrape_configs": every})


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    with RunningPrometheus(tmp_path_factory.mktemp("prometheus"), EMPTY_CONFIG, None, "--web.enable-lifecycle") as it:
        yield it


@pytest.fixture(scope="module")
def server(running):
    with PrometheusServer(running.url) as server:
        yield server


def quiet_job(running, server, replicas):
    """A job that scrapes every replica in the part of the second in which nothing changes, now alone.

    All of them together keep a busy machine from scraping at any phase, so that each one's median is looked at.
    """
    running.reload(scraping(replicas, [f"phase-{job}" for job in range(JOBS)]))
    deadline_s = time.monotonic() + 100
    while time.monotonic() < deadline_s:
        time.sleep(0.3)
        now_ms = int(time.time() * 1000)
        try:
            answer = server.raw("inference_requests_total", now_ms - 6000, now_ms)
        except NoDataError:
            continue
        phases_s = {}
        for series in answer.series:
            if len(series.times_ms) >= SCRAPES:
                phases_s.setdefault(series.labels["job"], []).append(np.median(series.times_ms % 1000) / 1000)
        margins_s = {
            job: min(min(phases) - QUIET_S[0], QUIET_S[1] - max(phases))
            for job, phases in phases_s.items()
            if len(phases) == REPLICAS
        }
        if len(margins_s) == JOBS:
            job = max(margins_s, key=margins_s.get)
            if margins_s[job] <= 0:
                pytest.skip("this machine is too busy: no job of Prometheus scrapes between the bursts")
            running.reload(scraping(replicas, [job]))
            return job
    pytest.skip(f"this machine is too busy: Prometheus scraped {len(phases_s)} of {JOBS} jobs")


class TimedRows(RowList):
    """Keeps the rows, and how long after its grid time the last of a tick's replicas had answered."""

    def __init__(self, clock):
        super().__init__()
        self.clock = clock
        self.delay_s = 0.0

    def write(self, rows):
        super().write(rows)
        self.delay_s = max(self.delay_s, self.clock.now_s() - self.rows[-1].timestamp_s)


def disturbances(server, job, folder, start_s, delay_s):
    """What kept the two scrapers from seeing the same values: a machine too busy to hold the workload's pauses."""
    start_ms, end_ms = int(1000 * (start_s - WINDOW_S)), int(1000 * (start_s + ROWS - 1))
    if delay_s > PHASE_S:
        yield f"the recorder's scrapes took until {delay_s:.2f} s after the second"
    for index in range(REPLICAS):
        log = records_of(folder / str(index) / "latencies.bin", LATENCY)
        ends_s = (log["start_ns"] + log["latency_ns"]) / 1e9
        inside = ends_s[(ends_s > start_ms / 1000) & (ends_s < end_ms / 1000)] % 1
        if inside.max() > QUIET_S[0]:
            yield f"a request of replica {index} ended {inside.max():.2f} s after the second"
    for series in server.raw(f'scrape_duration_seconds{{job="{job}"}}', start_ms, end_ms).series:
        phases_s = series.times_ms % 1000 / 1000
        if phases_s.min() < QUIET_S[0] or (phases_s + series.values).max() > 1 + PHASE_S:
            yield f"Prometheus scraped from {phases_s.min():.2f} to {(phases_s + series.values).max():.2f} s"


@pytest.fixture(scope="module")
def both(replicas, running, server, folder):
    """The same recording twice: by the embedded recorder, and exported from Prometheus."""
    for _ in range(ATTEMPTS):
        job = quiet_job(running, server, replicas)
        recorded, exported, start_s = record_and_export(replicas, server, job)
        disturbed = list(disturbances(server, job, folder, start_s, recorded.delay_s))
        if not disturbed:
            return recorded, exported, job, start_s
    pytest.skip(f"this machine is too busy to compare: {disturbed}")


def record_and_export(replicas, server, job):
    clock, exported = SystemClock(), RowList()
    recorded = TimedRows(clock)
    start_s = float(int(clock.now_s()) + 6)
    request = RecordingRequest(
        metrics=[*select(METRICS), *EDGES], step_s=STEP_S, window_s=WINDOW_S, sink=recorded, clock=clock
    )
    recorder = Recorder(replicas, request)
    recorder.record(start_s, ROWS)
    clock.wait_until(start_s + ROWS * STEP_S)  # until the last row's scrapes are stored
    summary = export(
        server,
        metrics=select(METRICS),
        dialect=local(job),
        start_s=start_s,
        rows=ROWS,
        step_s=STEP_S,
        window_s=WINDOW_S,
        sink=exported,
        replicas=[str(index) for index in range(REPLICAS)],
    )
    assert summary.absent == {}
    return recorded, exported, start_s


@pytest.fixture(scope="module")
def jitter(both, server):
    """How far the server's own scrapes strayed from its interval: on a busy machine its rates stray as far."""
    _, _, job, start_s = both
    start_ms, end_ms = int(1000 * (start_s - WINDOW_S)), int(1000 * (start_s + ROWS - 1))
    samples = server.raw(f'inference_requests_total{{job="{job}"}}', start_ms, end_ms).series
    spans_ms = np.concatenate([series.times_ms[3:] - series.times_ms[:-3] for series in samples])
    return float(np.abs(spans_ms / 3000 - 1).max())


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("series", ["replica-0", "replica-1", "all"])
def test_every_row_is_the_same(both, jitter, metric, series):
    recorded, exported, _, _ = both
    ours, theirs = recorded.series(metric, series), exported.series(metric, series)
    assert len(ours) == ROWS
    assert [row.timestamp_s for row in ours] == [row.timestamp_s for row in theirs]
    assert None not in [row.value for row in [*ours, *theirs]]
    found = np.array([[row.value for row in ours], [row.value for row in theirs]])
    if CATALOGUE[metric].kind is Kind.COUNTER:
        assert found[0].tolist() == found[1].tolist()
        assert found[0][0] == 0
        assert found[0][-1] > 4 * (ROWS - 1)
    elif CATALOGUE[metric].kind is Kind.QUANTILE:
        low, high = ([row.value for row in recorded.series(f"{metric}{side:+d}", series)] for side in (-1, 1))
        assert (found[1] > 0.99 * np.array(low)).all()
        assert (found[1] < 1.01 * np.array(high)).all()
        assert (np.abs(found[0] / found[1] - 1) < 0.01).mean() >= 0.8
    else:
        assert np.abs(found[0] / found[1] - 1).max() < 0.01 + (jitter if metric == "throughput" else 0)


@pytest.mark.parametrize("metric", METRICS)
def test_rows_shifted_by_a_step_would_be_noticed(both, metric):
    values = np.array([row.value for row in both[0].series(metric, "all")])
    assert np.abs(values[1:] / values[:-1].clip(1e-9) - 1).max() > 0.03


def test_the_exporters_narrowed_queries_give_what_the_full_ones_give(both, server):
    _, exported, job, start_s = both
    metric = CATALOGUE["latency_p95"]
    full = render(metric, local(job), WINDOW_S)
    start_ms = int(start_s * 1000)
    answer = server.query_range(full.pooled, start_ms, start_ms + 1000 * (ROWS - 1), 1000)
    assert answer.series[0].values.tolist() == [row.value for row in exported.series("latency_p95", "all")]
