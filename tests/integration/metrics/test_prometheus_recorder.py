"""A recording by a real Prometheus of real HTTP targets: watched while it lasts, collected at its end."""

import contextlib
import threading
import time

import pytest

from harness.clock import SystemClock
from harness.errors import MetricsError, UsageError
from harness.metrics.catalogue import select
from harness.metrics.prometheus.client import PrometheusServer
from harness.metrics.prometheus.recorder import PrometheusRecorder
from harness.metrics.prometheus.series import NO_SAMPLE
from harness.metrics.promql import ReplicaGroup, cluster
from harness.metrics.rows import RecordingRequest
from tests.integration.metrics.pages import PODS, Pages
from tests.integration.metrics.prometheus_server import NEEDED, RunningPrometheus
from tests.support.fake_metrics import RowList
from tests.support.ports import free_port
from tests.support.processes import wait_for

pytestmark = [pytest.mark.long, NEEDED]

STEP_S, WINDOW_S = 1.0, 4.0
METRICS = select(["gpu_power", "io_psi", "throughput", "total_count"])


@pytest.fixture(scope="module")
def pages():
    with contextlib.closing(Pages()) as serving:
        serving.gauges.remove("DEV_FB_USED")
        yield serving


@pytest.fixture(scope="module")
def server(pages, tmp_path_factory):
    with RunningPrometheus(tmp_path_factory.mktemp("prometheus"), pages.config()) as server:
        yield server


@pytest.fixture
def running(server):
    """A server that has just scraped everything for a window, whatever a test before did to it."""
    if not server.alive:
        server.start()
    wait_for(lambda: scraped(server.url))
    return server


def scraped(url):
    with PrometheusServer(url) as server, contextlib.suppress(Exception):
        return len(server.query("count_over_time(inference_requests_total[4s]) > 2").series) == len(PODS)


class Recorded:
    """One recording of ``rows`` rows; ``at`` says what happens after a row."""

    def __init__(self, url, rows, at=None, patience_s=30.0, metrics=METRICS, wake_after=None, enough=None):
        self.sink, self.notices, self.ticks = RowList(), [], []
        at, wake, clock = at or {}, threading.Event(), SystemClock()
        self.seen_at = {}

        def on_tick(done, _of):
            self.ticks.append(done)
            if done in at:
                at[done]()
            if done == wake_after:
                wake.set()

        def notice(sentence):
            self.notices.append(sentence)
            self.seen_at[sentence] = len(self.ticks)

        start_s = float(int(clock.now_s()) + 2)
        with PrometheusServer(url, timeout_s=5) as server:
            recorder = PrometheusRecorder(
                server,
                RecordingRequest(
                    metrics=metrics,
                    step_s=STEP_S,
                    window_s=WINDOW_S,
                    sink=self.sink,
                    clock=clock,
                    wake=wake,
                    on_tick=on_tick,
                    notice=notice,
                    enough=enough,
                ),
                groups=[ReplicaGroup("", cluster("inference", "work-.*", nodes=["n1"]), PODS)],
                patience_s=patience_s,
            )
            self.summary = recorder.record(start_s, rows)

    def missing(self, metric, series):
        return [k for k, row in enumerate(self.sink.series(metric, series)) if row.value is None]


def test_an_undisturbed_recording_has_every_row_and_no_remark(running):
    for _ in range(4):  # a busy machine may scrape late, which is said
        found = Recorded(running.url, 5)
        if not found.notices:
            break

    assert found.notices == []
    assert found.summary.warnings == []
    assert found.ticks == [1, 2, 3, 4, 5]
    assert (found.summary.rows, found.summary.stopped, found.summary.absent) == (5, False, {})
    assert {(row.metric, row.series) for row in found.sink.rows} == {
        ("gpu_power", "gpu-0"),
        ("io_psi", "node"),
        *((metric, name) for metric in ("throughput", "total_count") for name in ("replica-0", "replica-1", "all")),
    }
    assert [row for row in found.sink.rows if row.value is None] == []
    assert found.summary.identities["gpu-0"] == {"node": "n1", "gpu": "0", "UUID": "GPU-1"}
    assert found.summary.identities["replica-1"] == {"pod": "work-b"}


def test_a_recording_ends_as_complete_when_enough_is_known(running):
    found = Recorded(running.url, 60, enough=lambda rows: rows == 3)

    assert found.ticks == [1, 2, 3]
    assert (found.summary.rows, found.summary.stopped) == (3, False)
    assert found.summary.end_s == found.summary.start_s + 2 * STEP_S
    assert len(found.sink.series("throughput", "all")) == 3
    assert {row.reason for row in found.sink.rows if row.value is None} <= {NO_SAMPLE}


def test_a_target_that_goes_is_said_within_seconds_and_missing_with_a_reason(running, pages):
    at = {2: lambda: pages.down.add("work-b"), 8: pages.down.clear}
    found = Recorded(running.url, 13, at)

    def said(words):
        return next(sentence for sentence in found.notices if words in sentence)

    gone, back = (
        said("no sample of inference_requests_total of replica-1 (work-b)"),
        said("replica-1 (work-b) is there again"),
    )
    assert "cannot scrape http://127.0.0.1" in said("/work-b: server returned HTTP status 500")
    assert found.seen_at[gone] < found.seen_at[back]
    assert set(found.notices) <= set(found.summary.warnings)
    hole = found.missing("total_count", "replica-1")
    assert 3 <= len(hole) <= 12
    assert {found.sink.series("total_count", "replica-1")[k].reason for k in hole} == {NO_SAMPLE}
    assert len(found.missing("total_count", "replica-0")) < len(hole)
    assert found.missing("total_count", "all") == found.missing("total_count", "replica-0")


def test_a_restart_in_mid_record_is_said_and_leaves_a_hole(running):
    found = Recorded(running.url, 16, {3: running.kill, 8: running.start})

    assert any("cannot be reached" in sentence for sentence in found.notices)
    assert any("answers again" in sentence for sentence in found.notices)
    assert any("was restarted" in sentence for sentence in found.notices)
    assert found.summary.rows == 16
    assert 2 <= len(found.missing("total_count", "all")) < 16
    assert len(found.sink.series("total_count", "all")) == 16
    assert set(range(9, 16)) - set(found.missing("total_count", "replica-0")), "it goes on after the restart"


def test_a_server_that_is_away_at_the_end_is_waited_for(running):
    later = threading.Timer(4.0, running.start)
    found = Recorded(running.url, 6, {5: lambda: (running.kill(), later.start())})
    later.join()

    assert found.summary.rows == 6
    assert any("asked again for 30 s" in sentence for sentence in found.notices)
    assert {1, 2, 3} - set(found.missing("total_count", "replica-0")), "what was scraped before is there"


def test_a_server_that_stays_away_ends_in_an_error_that_says_how_to_collect_later(running):
    begun_s = time.monotonic()
    with pytest.raises(MetricsError, match="4 rows were scraped and could not be collected") as caught:
        Recorded(running.url, 4, {3: running.kill}, patience_s=2.0)
    assert "harness export NEW_FOLDER --from" in caught.value.advice
    assert time.monotonic() - begun_s < 60


def test_woken_it_gives_the_rows_up_to_then(running):
    found = Recorded(running.url, 60, wake_after=5)

    assert found.summary.stopped
    assert 4 <= found.summary.rows < 60
    assert len(found.sink.series("total_count", "all")) == found.summary.rows
    # A busy machine scrapes late now and then; nothing else is missing.
    assert {row.reason for row in found.sink.rows if row.value is None} <= {NO_SAMPLE}


def test_a_metric_that_is_not_there_is_said_at_once_and_absent_with_the_reason(running):
    found = Recorded(running.url, 4, metrics=select(["gpu_power", "gpu_memory", "total_count"]))

    sentence = found.notices[0]
    assert "no sample of DCGM_FI_DEV_FB_USED of any device at the beginning" in sentence
    assert found.seen_at[sentence] == 0
    assert "DCGM_FI_DEV_FB_USED" in found.summary.absent["gpu_memory"]
    assert [row.value for row in found.sink.series("gpu_memory", "gpu")] == [None] * 4


def test_a_start_off_the_grid_is_refused():
    with PrometheusServer(f"http://127.0.0.1:{free_port()}") as server:
        recorder = PrometheusRecorder(
            server,
            RecordingRequest(metrics=METRICS, step_s=5.0, window_s=20.0, sink=RowList(), clock=SystemClock()),
            groups=[ReplicaGroup("", cluster("inference", ".+"), PODS)],
        )
        with pytest.raises(UsageError, match="not a whole multiple"):
            recorder.record(1_800_000_001.0, 3)
