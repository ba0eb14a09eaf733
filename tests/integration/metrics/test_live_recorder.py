"""The recorder on real replica processes of which one is killed and one is stopped while it records."""

import os
import signal
import threading
import time
from types import SimpleNamespace

import pytest

from harness.clock import SystemClock
from harness.metrics.catalogue import select
from harness.metrics.recorder import PRIORITY, Recorder, _punctual
from harness.metrics.rows import LATE_TICK, RecordingRequest
from tests.support.fake_metrics import RowList
from tests.support.replicas import running_replicas

STEP_S, ROWS = 0.1, 40
KILLED, STOPPED, LEFT = 0, 1, 2
EVENT_ROW = 15


def make(_settings):
    def infer():
        time.sleep(0.004)
        return 1

    return SimpleNamespace(name="sleeper", infer=infer)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    folder, sink, clock = tmp_path_factory.mktemp("replicas"), RowList(), SystemClock()
    with running_replicas("tests.integration.metrics.test_live_recorder:make", 3, folder) as targets:

        def on_tick(done, _total):
            if done == EVENT_ROW:
                os.kill(targets[KILLED].pid, signal.SIGKILL)
                os.kill(targets[STOPPED].pid, signal.SIGSTOP)

        request = RecordingRequest(
            metrics=select("all"), step_s=STEP_S, window_s=4 * STEP_S, sink=sink, clock=clock, on_tick=on_tick
        )
        recorder = Recorder(targets, request)
        start_s = (int(clock.now_s() / STEP_S) + 10) * STEP_S
        summary = recorder.record(start_s, ROWS)
    return summary, sink, start_s


def rows(sink, metric, replica):
    """The rows of one replica, without those of ticks that this machine was too busy for."""
    return [(k, row) for k, row in enumerate(sink.series(metric, f"replica-{replica}")) if row.reason != LATE_TICK]


def test_the_grid_is_complete_and_on_time(recorded):
    summary, sink, start_s = recorded
    for series in ("all", "replica-0", "replica-1", "replica-2"):
        found = sink.series("throughput", series)
        assert [row.timestamp_s for row in found] == [
            pytest.approx(start_s + k * STEP_S, abs=1e-6) for k in range(ROWS)
        ]
    assert summary.rows == ROWS
    assert summary.lateness.p50_s < STEP_S / 2


def test_before_the_event_everything_is_there(recorded):
    _, sink, _ = recorded
    early = [row for k, row in rows(sink, "latency_p50", LEFT) if k < EVENT_ROW]
    assert sum(row.value is None for row in early) <= len(early) / 3  # a busy machine may cost some
    assert all(0.003 < row.value < 1 for row in early if row.value is not None)


@pytest.mark.parametrize(("replica", "reason"), [(KILLED, "connection"), (STOPPED, "no answer in time")])
def test_who_does_not_answer_is_missing_with_the_reason(recorded, replica, reason):
    _, sink, _ = recorded
    late = [row for k, row in rows(sink, "throughput", replica) if k > EVENT_ROW]
    assert late
    assert all(row.value is None and reason in row.reason for row in late)


def test_the_process_that_ended_is_missing_and_the_stopped_one_is_not(recorded):
    _, sink, _ = recorded
    ended = [row for k, row in rows(sink, "memory_usage", KILLED) if k > EVENT_ROW]
    assert {row.reason for row in ended} == {"the replica's process has ended"}
    stopped = [row for k, row in rows(sink, "memory_usage", STOPPED) if k > EVENT_ROW]
    assert all(row.value > 1e6 for row in stopped)


def test_the_one_that_is_left_is_recorded_on(recorded):
    _, sink, _ = recorded
    late = [row for k, row in rows(sink, "total_count", LEFT) if k > EVENT_ROW]
    present = [row.value for row in late if row.value is not None]
    assert len(present) >= 2
    assert present == sorted(present)
    assert present[-1] > present[0]
    pooled = [row.value for row in sink.series("throughput", "all")[-5:] if row.value is not None]
    assert all(0 < value < 300 for value in pooled)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may put itself forward")
def test_the_recording_thread_puts_itself_forward_and_back():
    def niceness():
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    seen = []

    def work():
        seen.append(niceness())
        with _punctual():
            seen.append(niceness())
        seen.append(niceness())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen in ([seen[0], seen[0] - PRIORITY, seen[0]], [seen[0]] * 3)  # a container may withhold the right
    assert niceness() == seen[0]
