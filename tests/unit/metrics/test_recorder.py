import dataclasses
import threading

import numpy as np
import pytest

from harness.errors import StorageError, UsageError
from harness.metrics.catalogue import CATALOGUE, GPU_SOURCES, STANDARD, Source, select
from harness.metrics.machine import ProcessUsage
from harness.metrics.nvml import GAUGES
from harness.metrics.recorder import Recorder, ReplicaTarget
from harness.metrics.rows import (
    LATE_TICK,
    MIXED_BUCKETS,
    NO_REPLICA,
    NO_REQUESTS,
    NO_TIME,
    TOO_FEW,
    Missing,
    RecordingRequest,
)
from harness.metrics.scrape import ReplicaParser
from tests.support.fake_metrics import (
    BOUNDS,
    FakeGpus,
    FakePressure,
    FakeProcesses,
    RowList,
    fake_sources,
    gpu_usage,
    sample,
)
from tests.support.simulated_clock import SimulatedClock

START_S = 1_800_000_000.0
WINDOW_SCRAPES = 4
"""Scrapes up to and including the one of row 0."""


class SlowClock(SimulatedClock):
    """Simulated time that real work does not move, so that every tick is punctual unless a test says otherwise."""

    def __init__(self, start_s=START_S - 10):
        super().__init__(start_s)
        self.time_s = start_s

    def now_s(self):
        return self.time_s

    def wait_until(self, deadline_s, wake=None):
        if wake is not None and wake.is_set():
            return True
        self.time_s = max(self.time_s, deadline_s)
        return False


def served(per_scrape=10, latency_s=0.003):
    """A replica that has served ``per_scrape`` more requests at each scrape, long enough to be far from zero."""
    return lambda _replica, scrape: sample([latency_s] * (per_scrape * (scrape + 100)))


def record(script, *, replicas=2, rows=6, metrics="all", step_s=1.0, window_s=None, clock=None, **options):
    """The summary and the sink; ``script`` is one for all replicas, or one for each."""
    scripts = script if isinstance(script, list) else [script] * replicas
    sink = options.pop("sink", None) or RowList()
    fakes = {name: options.pop(name) for name in ("gpus", "pressure", "processes") if name in options}
    sources = fake_sources(len(scripts), lambda replica, scrape: scripts[replica](replica, scrape), **fakes)
    targets = options.pop("targets", None) or [target(index) for index in range(len(scripts))]
    sources = options.pop("sources", sources)
    request = RecordingRequest(
        metrics=select(metrics),
        step_s=step_s,
        window_s=window_s or 4 * step_s,
        sink=sink,
        clock=clock or SlowClock(),
        **options,
    )
    return Recorder(targets, request, sources=sources).record(START_S, rows), sink


def target(index, workload=""):
    return ReplicaTarget(index, (2000 if workload else 1000) + index, "http://127.0.0.1:1/metrics", workload)


def values(sink, metric, series):
    return [row.value for row in sink.series(metric, series)]


def reasons(sink, metric, series):
    return [row.reason for row in sink.series(metric, series)]


def test_every_series_has_every_row_on_the_grid():
    summary, sink = record(served(), gpus=FakeGpus(1))
    series = {(row.metric, row.series) for row in sink.rows}
    grid = [START_S + k for k in range(6)]
    for metric, name in series:
        assert [row.timestamp_s for row in sink.series(metric, name)] == grid
    assert {metric for metric, _ in series} == set(STANDARD)
    assert (summary.rows, summary.start_s, summary.end_s, summary.stopped) == (6, START_S, START_S + 5, False)


def test_row_zero_has_its_rates_already_and_totals_begin_there():
    _, sink = record(served())
    assert values(sink, "throughput", "replica-0") == pytest.approx([10.0] * 6)
    assert values(sink, "throughput", "all") == pytest.approx([20.0] * 6)
    assert values(sink, "cpu_usage", "all") == pytest.approx([2.0] * 6)
    assert values(sink, "latency_avg", "all") == pytest.approx([0.003] * 6)
    assert values(sink, "total_count", "replica-1") == [0, 10, 20, 30, 40, 50]
    assert values(sink, "total_count", "all") == [0, 20, 40, 60, 80, 100]


def test_the_pool_is_of_buckets_not_of_quantiles():
    # One replica serves 99 quick requests a second, the other one slow one: the mean of the two p95 would be 37 ms.
    def script(replica, scrape):
        return sample([0.0015] * 99 * (scrape + 100) if replica == 0 else [0.07] * (scrape + 100))

    _, sink = record(script)
    assert values(sink, "latency_p95", "replica-1")[0] > 0.05
    assert values(sink, "latency_p95", "all")[0] < 0.002
    assert values(sink, "latency_p99", "all")[0] <= 0.002


def test_a_replica_that_dies_in_mid_record_is_missing_with_its_reason():
    gone = "the replica's /metrics: no connection: connection refused"

    def script(replica, scrape):
        alive = replica == 0 or scrape < WINDOW_SCRAPES + 2
        return served()(replica, scrape) if alive else Missing(gone)

    def usage(replica, reading):
        alive = replica == 0 or reading < WINDOW_SCRAPES + 2
        return ProcessUsage(float(reading), 1e6) if alive else Missing("the replica's process has ended")

    summary, sink = record(script, rows=10, processes=FakeProcesses(2, usage))
    assert values(sink, "throughput", "replica-1")[:3] == pytest.approx([10.0] * 3)
    for metric in ("throughput", "latency_p99", "total_count"):
        assert values(sink, metric, "replica-1")[3:] == [None] * 7
        assert set(reasons(sink, metric, "replica-1")[3:]) == {gone}
    assert set(reasons(sink, "memory_usage", "replica-1")[3:]) == {"the replica's process has ended"}
    # The pool goes on with the one that is left, and keeps what the other had served.
    assert values(sink, "throughput", "all")[-1] == pytest.approx(10.0)
    assert values(sink, "memory_usage", "all")[-1] == 1e6
    assert values(sink, "total_count", "all")[-1] == 9 * 10 + 2 * 10
    assert summary.metrics["throughput"].missing == 7
    assert summary.metrics["throughput"].reasons == {gone: 7}
    assert any("throughput: 7 of 30 values are missing" in warning for warning in summary.warnings)


def test_a_pool_without_any_replica_is_missing():
    _, sink = record(lambda *_: Missing("gone"), processes=FakeProcesses(2, lambda *_: Missing("ended")))
    for metric in ("throughput", "latency_p50", "total_count", "cpu_usage", "memory_usage"):
        assert values(sink, metric, "all") == [None] * 6
        assert set(reasons(sink, metric, "all")) <= {NO_REPLICA, TOO_FEW}


def test_one_lost_scrape_is_one_missing_row():
    lost = WINDOW_SCRAPES - 1 + 2

    def script(replica, scrape):
        return Missing("no answer in time") if scrape == lost else served()(replica, scrape)

    _, sink = record(script, replicas=1, rows=8)
    found = values(sink, "throughput", "replica-0")
    assert [value is None for value in found] == [k == 2 for k in range(8)]
    assert values(sink, "total_count", "replica-0") == [0, 10, None, 30, 40, 50, 60, 70]
    assert found[3] == pytest.approx(10.0)


def test_a_restarted_replica_goes_on_counting():
    def script(_replica, scrape):
        since = scrape - (WINDOW_SCRAPES + 2)
        return sample([0.003] * (10 * (scrape + 100) if since < 0 else 10 * (since + 1)))

    _, sink = record(script, replicas=1)
    assert values(sink, "total_count", "replica-0") == [0, 10, 20, 30, 40, 50]
    assert all(value > 0 for value in values(sink, "throughput", "replica-0"))


def test_idle_is_a_throughput_of_zero_and_no_latency():
    _, sink = record(lambda *_: sample([0.003] * 50), replicas=1)
    assert values(sink, "throughput", "replica-0") == [0.0] * 6
    for metric in ("latency_avg", "latency_p50"):
        assert values(sink, metric, "all") == [None] * 6
        assert set(reasons(sink, metric, "replica-0")) == {NO_REQUESTS}


def test_replicas_with_different_buckets_have_no_pooled_quantile():
    other = np.array([0.004, 0.04, np.inf])

    def script(replica, scrape):
        return sample([0.003] * (scrape + 100), BOUNDS if replica == 0 else other)

    _, sink = record(script)
    assert set(reasons(sink, "latency_p50", "all")) == {MIXED_BUCKETS}
    assert None not in values(sink, "latency_p50", "replica-1")


def test_what_the_machine_has_not_is_absent_with_the_reason():
    pressure = FakePressure(lambda *_: 0.0, {Source.IO_PRESSURE: "no /proc/pressure/io"})
    summary, sink = record(served(), pressure=pressure)
    driver = "no NVIDIA driver: libnvidia-ml.so.1 not found"
    assert summary.absent == {
        "gpu_utilization": driver,
        "gpu_memory": driver,
        "gpu_power": driver,
        "gpu_temperature": driver,
        "io_psi": "no /proc/pressure/io",
    }
    assert values(sink, "gpu_power", "gpu") == [None] * 6
    assert set(reasons(sink, "gpu_power", "gpu")) == {driver}
    assert set(reasons(sink, "io_psi", "node")) == {"no /proc/pressure/io"}
    assert "gpu_power" not in summary.metrics


def test_pressure_is_a_share_of_time():
    _, sink = record(served(), pressure=FakePressure(lambda _, reading: 50.0 + 0.25 * reading))
    assert values(sink, "cpu_psi", "node") == pytest.approx([25.0] * 6)


def test_shares_of_time_are_of_the_time_that_really_passed_between_readings():
    class LateEverySecondTick(SlowClock):
        """Sees the machine 0.2 s late in every second of its 0.25 s."""

        def wait_until(self, time_s, wake=None):
            woken = super().wait_until(time_s, wake)
            self.time_s += 0.2 * (round(time_s * 4) % 2)
            return woken

    clock = LateEverySecondTick()
    pressure = FakePressure(lambda *_: clock.now_s())
    _, sink = record([], metrics=["cpu_psi"], rows=20, step_s=0.25, window_s=0.5, clock=clock, pressure=pressure)
    found = [value for value in values(sink, "cpu_psi", "node") if value is not None]
    assert found == pytest.approx([100.0] * 20)


def test_gpu_memory_is_split_among_replicas_where_the_driver_tells():
    usage = gpu_usage({1000: 100, 1001: 200, 4: 700})
    _, sink = record(served(), gpus=FakeGpus(2, lambda *_: usage))
    assert values(sink, "gpu_memory", "gpu-1") == [2.0**30] * 6
    assert values(sink, "gpu_memory", "replica-0") == [200.0] * 6  # 100 on each of the two devices
    _, sink = record(served(), gpus=FakeGpus(1))
    assert set(reasons(sink, "gpu_memory", "replica-0")) == {"NVML does not give memory per process here"}
    _, sink = record(served(), gpus=FakeGpus(1, lambda *_: gpu_usage({4: 700})))
    assert "another PID namespace" in reasons(sink, "gpu_memory", "replica-0")[0]


def test_every_gauge_of_a_device_has_a_reading_of_its_own():
    gauges = [metric.gauge for metric in CATALOGUE.values() if metric.source in GPU_SOURCES]
    assert len(set(gauges)) == len(gauges)
    assert set(gauges) <= GAUGES.keys()


def test_a_missed_tick_has_rows_with_the_reason_and_the_grid_does_not_move():
    class Stall(SlowClock):
        def wait_until(self, deadline_s, wake=None):
            super().wait_until(deadline_s, wake)
            if deadline_s == START_S + 2:
                self.time_s += 2.5  # suspended: rows 2 and 3 are lost, row 4 is half a step late
            return False

    summary, sink = record(served(), clock=Stall())
    found = values(sink, "memory_usage", "all")
    assert [value is None for value in found] == [False, False, True, True, False, False]
    assert reasons(sink, "throughput", "replica-0")[2:4] == [LATE_TICK] * 2
    assert [row.timestamp_s for row in sink.series("throughput", "all")] == [START_S + k for k in range(6)]
    assert summary.lateness.missed == 2
    assert summary.lateness.max_s == pytest.approx(0.5)
    assert summary.answered_within_s == pytest.approx(0.5)
    assert "2 of 6 ticks were missed" in summary.warnings[0]


@pytest.mark.parametrize(
    ("slow_scrape", "within_s"), [(WINDOW_SCRAPES - 2, 0.0), (WINDOW_SCRAPES - 1, 0.3), (WINDOW_SCRAPES + 2, 0.3)]
)
def test_a_recording_says_how_late_the_answers_of_its_rows_were(slow_scrape, within_s):
    clock = SlowClock()

    def answer(replica, scrape):
        if replica == 1 and scrape == slow_scrape:
            clock.time_s += 0.3
        return served()(replica, scrape)

    summary, _ = record(answer, clock=clock)
    assert summary.answered_within_s == pytest.approx(within_s)
    assert summary.lateness.max_s == 0


def test_waking_ends_the_recording_and_keeps_its_rows():
    wake, seen = threading.Event(), []

    def on_tick(done, total):
        seen.append((done, total))
        if done == 3:
            wake.set()

    summary, sink = record(served(), replicas=1, rows=10, metrics=["throughput"], wake=wake, on_tick=on_tick)
    assert (summary.stopped, summary.rows, summary.end_s) == (True, 3, START_S + 2)
    assert len(sink.series("throughput", "all")) == 3
    assert seen == [(1, 10), (2, 10), (3, 10)]


def test_only_what_is_asked_for_is_read():
    class Untouchable:
        def __getattr__(self, name):
            raise AssertionError(name)

    sources = dataclasses.replace(fake_sources(1, served()), gpus=FakeGpus(), pressure=Untouchable())
    _, sink = record(served(), replicas=1, rows=3, metrics=["latency_p50"], step_s=0.1, sources=sources)
    assert [row.timestamp_s for row in sink.series("latency_p50", "all")] == [START_S, START_S + 0.1, START_S + 0.2]


def test_a_sink_that_cannot_write_ends_it():
    class Full:
        def write(self, rows):
            raise StorageError(f"disk full after {len(list(rows))} rows")

    with pytest.raises(StorageError, match="disk full after 1 rows"):
        record([], metrics=["cpu_psi"], sink=Full())


@pytest.mark.parametrize(
    ("start_s", "window_s", "match"), [(START_S + 0.5, 4, "whole multiple"), (START_S, 1, "two scrapes")]
)
def test_a_grid_that_cannot_be_is_refused(start_s, window_s, match):
    request = RecordingRequest(metrics=select("all"), step_s=1, window_s=window_s, sink=RowList(), clock=SlowClock())
    with pytest.raises(UsageError, match=match):
        Recorder([], request).record(start_s, 1)


def page(scrape, **families):
    """What a replica would say at a scrape: ten requests a second, and families that grow by so much a second.

    A tuple is a histogram with the bounds 0.1 and 0.5: so many observations a second in each of its three buckets.
    """
    count = scrape + 100
    lines = [f"inference_requests_total {10 * count}"]
    families = {"inference_latency_seconds": (0, 10, 0)} | families
    for name, growth in families.items():
        if not isinstance(growth, tuple):
            lines.append(f"{name} {growth * count}")
            continue
        cumulative = (np.cumsum(growth) * count).tolist()
        bounds = ("0.1", "0.5", "+Inf")
        lines += [f'{name}_bucket{{le="{bound}"}} {n}' for bound, n in zip(bounds, cumulative, strict=True)]
        lines += [f"{name}_sum 0", f"{name}_count {cumulative[-1]}"]
    return ReplicaParser().parse("\n".join(lines))


OWN = ["throughput", "client_ttft_p50", "output_tokens_per_second", "active_share"]
TTFT = "inference_client_ttft_seconds"


def test_what_a_workload_publishes_of_its_own_is_recorded_for_each_replica_and_for_the_pool():
    growth = [
        {TTFT: (4, 0, 0), "inference_client_output_tokens_total": 100},
        {TTFT: (0, 4, 0), "inference_client_output_tokens_total": 50},
    ]
    _, sink = record(lambda replica, scrape: page(scrape, **growth[replica]), metrics=OWN)
    assert values(sink, "output_tokens_per_second", "replica-1") == pytest.approx([50.0] * 6)
    assert values(sink, "output_tokens_per_second", "all") == pytest.approx([150.0] * 6)
    assert values(sink, "client_ttft_p50", "replica-0") == pytest.approx([0.05] * 6)
    assert values(sink, "client_ttft_p50", "replica-1") == pytest.approx([0.3] * 6)
    assert values(sink, "client_ttft_p50", "all") == pytest.approx([0.1] * 6)
    assert values(sink, "throughput", "all") == pytest.approx([20.0] * 6)


def test_what_a_workload_does_not_publish_has_the_reason_and_is_not_in_the_pool():
    growth = [{"inference_client_output_tokens_total": 100}, {}]
    _, sink = record(lambda replica, scrape: page(scrape, **growth[replica]), metrics=OWN)
    assert values(sink, "output_tokens_per_second", "all") == pytest.approx([100.0] * 6)
    assert set(reasons(sink, "output_tokens_per_second", "replica-1")) == {
        "the workload does not publish inference_client_output_tokens_total"
    }
    assert set(reasons(sink, "client_ttft_p50", "all")) == {f"the workload does not publish {TTFT}"}
    assert values(sink, "throughput", "all") == pytest.approx([20.0] * 6), "different families pool what they share"


def test_a_share_of_the_pool_is_of_the_summed_times():
    growth = [
        {"inference_active_seconds_total": 0.25, "inference_idle_seconds_total": 0.75},
        {"inference_active_seconds_total": 1.0, "inference_idle_seconds_total": 0.0},
    ]
    _, sink = record(lambda replica, scrape: page(scrape, **growth[replica]), metrics=OWN)
    assert values(sink, "active_share", "replica-0") == pytest.approx([25.0] * 6)
    assert values(sink, "active_share", "replica-1") == pytest.approx([100.0] * 6)
    assert values(sink, "active_share", "all") == pytest.approx([62.5] * 6)


def test_a_share_of_no_time_is_missing():
    still = {"inference_active_seconds_total": 0, "inference_idle_seconds_total": 0}
    _, sink = record(lambda _, scrape: page(scrape, **still), metrics=OWN)
    assert set(reasons(sink, "active_share", "all")) == {NO_TIME}


def test_a_replica_that_begins_to_publish_starts_a_new_window():
    begins = WINDOW_SCRAPES + 2
    _, sink = record(
        lambda _, scrape: page(scrape, **({"inference_client_output_tokens_total": 7} if scrape >= begins else {})),
        metrics=OWN,
        rows=10,
    )
    assert values(sink, "output_tokens_per_second", "all")[-1] == pytest.approx(14.0)
    assert TOO_FEW in reasons(sink, "output_tokens_per_second", "all")


def test_histograms_of_different_buckets_are_not_pooled():
    def script(replica, scrape):
        sample = page(scrape, **{TTFT: (4, 0, 0)})
        other = {TTFT: dataclasses.replace(sample.families[TTFT], bounds=(0.1, 0.7, float("inf")))}
        return dataclasses.replace(sample, families=sample.families | other) if replica else sample

    _, sink = record(script, metrics=OWN)
    assert set(reasons(sink, "client_ttft_p50", "all")) == {MIXED_BUCKETS}
    assert values(sink, "client_ttft_p50", "replica-0") == pytest.approx([0.05] * 6)


def beside(measured, neighbours):
    """A recording of measured replicas with ``neighbours`` (workload to scripts) beside them; scripts are by replica."""
    groups = {"": measured, **neighbours}
    targets = [target(index, workload) for workload, group in groups.items() for index in range(len(group))]
    return record([script for group in groups.values() for script in group], targets=targets, rows=4)[1]


def test_a_neighbour_is_pooled_with_its_own_kind_and_with_nobody_else():
    fast, slow = served(per_scrape=30, latency_s=0.002), served(per_scrape=10, latency_s=0.2)

    sink = beside([fast], {"whisper": [slow, slow], "training": [served(per_scrape=1)]})

    assert {row.series for row in sink.rows if row.metric == "throughput"} == {
        "replica-0",
        "all",
        "whisper/replica-0",
        "whisper/replica-1",
        "whisper/all",
        "training/replica-0",
        "training/all",
    }
    assert values(sink, "throughput", "all") == values(sink, "throughput", "replica-0") == [30.0] * 4
    assert values(sink, "throughput", "whisper/all") == [20.0] * 4
    assert values(sink, "total_count", "whisper/all") == [0, 20, 40, 60]
    assert max(values(sink, "latency_p99", "all")) < 0.01 < min(values(sink, "latency_p50", "whisper/all"))


def test_a_neighbour_that_is_gone_leaves_the_measured_series_whole():
    sink = beside([served()], {"whisper": [lambda _replica, _scrape: Missing("no connection")]})

    assert None not in values(sink, "latency_p99", "all")
    assert reasons(sink, "throughput", "whisper/all") == [NO_REPLICA] * 4


def test_a_recording_ends_as_complete_when_enough_is_known():
    asked = []

    def enough(rows):
        asked.append(rows)
        return rows == 4

    summary, sink = record(served(), replicas=1, rows=60, enough=enough)

    assert asked == [1, 2, 3, 4]
    assert (summary.rows, summary.stopped, summary.end_s) == (4, False, START_S + 3)
    assert {row.timestamp_s - START_S for row in sink.rows} == {0, 1, 2, 3}
