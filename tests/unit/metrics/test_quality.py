"""The judge, on files as the writer of results leaves them."""

import itertools

import numpy as np
import pytest

from harness.errors import ReasonCode
from harness.metrics.catalogue import CATALOGUE, STANDARD, Level
from harness.metrics.quality import TOP_BOUND_S, Severity, judge
from harness.metrics.rows import NO_REQUESTS, MetricRow
from harness.results.writers import ExperimentWriter

START_S, STEP_S, ROWS, REPLICAS = 1_800_000_000.0, 5.0, 60, 2
DRIVER = "no NVIDIA driver: libnvidia-ml.so.1 not found"
GOOD = {
    "cpu_usage": 1.0,
    "memory_usage": 2e9,
    "cpu_psi": 0.0,
    "memory_psi": 0.0,
    "io_psi": 0.0,
    "latency_avg": 0.005,
    "latency_p50": 0.005,
    "latency_p95": 0.007,
    "latency_p99": 0.009,
    "throughput": 100.0,
}


def series_of(name):
    metric = CATALOGUE[name]
    if metric.level is Level.REPLICA:
        return [*(f"replica-{index}" for index in range(REPLICAS)), "all"]
    return ["gpu"] if metric.level is Level.DEVICE else ["node"]


def good_columns():
    """Values by metric and series; None with a reason is a tuple."""
    columns = {}
    for name in STANDARD:
        for series in series_of(name):
            if name == "total_count":
                columns[name, series] = [500.0 * k * (REPLICAS if series == "all" else 1) for k in range(ROWS)]
            elif name in GOOD:
                columns[name, series] = [GOOD[name]] * ROWS
            else:
                columns[name, series] = [(None, DRIVER)] * ROWS
    return columns


@pytest.fixture
def judged(tmp_path):
    numbers = itertools.count()

    def run(change=None, **options):
        columns = good_columns()
        if change is not None:
            change(columns)
        folder = tmp_path / str(next(numbers))
        with ExperimentWriter(
            folder,
            workload="resnet50",
            replicas=REPLICAS,
            metrics=list(dict.fromkeys(name for name, _ in columns)),
            start_s=START_S,
            step_s=STEP_S,
        ) as writer:
            for k in range(ROWS):
                writer.write(
                    MetricRow(
                        name,
                        series,
                        START_S + k * STEP_S,
                        *(values[k] if isinstance(values[k], tuple) else (values[k],)),
                    )
                    for (name, series), values in columns.items()
                    if k < len(values)
                )
        return judge(folder, **options)

    return run


def of(findings, severity):
    return [finding for finding in findings if finding.severity is severity]


def bad(findings):
    return [finding for finding in findings if finding.severity is not Severity.INFO]


def test_good_data_have_no_fault_and_absent_metrics_their_reason(judged):
    findings = judged()
    assert bad(findings) == []
    assert {finding.metric for finding in findings} == {"gpu_utilization", "gpu_memory", "gpu_power", "gpu_temperature"}
    assert all(DRIVER in finding.message for finding in findings)


def only(findings, severity, metric, match):
    found = [f for f in bad(findings) if f.metric == metric]
    assert [f.severity for f in found] == [severity], bad(findings)
    assert match in found[0].message
    assert found[0].advice


def test_no_requests_at_all_is_invalid(judged):
    def change(columns):
        for series in series_of("total_count"):
            columns["total_count", series] = [0.0] * ROWS
            columns["throughput", series] = [0.0] * ROWS
            columns["latency_p99", series] = [(None, NO_REQUESTS)] * ROWS

    findings = judged(change)
    assert any("No replica served a single request" in f.message for f in of(findings, Severity.INVALID))
    assert any(f.metric == "latency_p99" and NO_REQUESTS in f.message for f in of(findings, Severity.INVALID))


def test_of_a_recording_of_one_row_nobody_knows_whether_replicas_served(judged):
    def change(columns):
        for series in series_of("total_count"):
            columns["total_count", series] = [0.0]

    said = [finding.message for finding in of(judged(change), Severity.INVALID)]
    assert any(message.startswith("Whether replica-0, replica-1 served requests while") for message in said)
    assert not any("a single request" in message for message in said)


def test_one_idle_replica_degrades(judged):
    def change(columns):
        columns["total_count", "replica-1"] = [0.0] * ROWS

    findings = judged(change)
    assert any("replica-1 served no request" in f.message for f in of(findings, Severity.DEGRADED))
    assert of(findings, Severity.INVALID) == []


@pytest.mark.parametrize(
    ("last", "said"),
    [
        (200.0, "replica-0 served nothing in the last 10% of the recording."),
        ((None, "gone"), "total_count replica-0: 20 of 60 values are missing: gone."),
    ],
)
def test_a_replica_that_stopped_before_the_end_degrades_and_one_that_could_not_be_read_is_not_said_to(
    judged, last, said
):
    def change(columns):
        columns["total_count", "replica-0"][40:] = [last] * 20

    degraded = [finding.message for finding in of(judged(change), Severity.DEGRADED)]
    assert said in degraded
    assert sum("in the last 10%" in message for message in degraded) == (last == 200.0)


def test_a_single_missing_value_is_a_remark_and_many_degrade(judged):
    def lose(count):
        def change(columns):
            columns["cpu_psi", "node"][:count] = [(None, "gone")] * count

        return change

    # 1 of 60 is more than 1 %
    only(judged(lose(1)), Severity.DEGRADED, "cpu_psi", "1 of 60 values are missing: gone")
    only(judged(lose(30)), Severity.DEGRADED, "cpu_psi", "30 of 60")


def test_impossible_values_degrade(judged):
    def change(columns):
        columns["cpu_psi", "node"][3] = 180.0

    only(judged(change), Severity.DEGRADED, "cpu_psi", "180 percent of time, which cannot be")

    def negative(columns):
        columns["memory_usage", "all"][3] = -1.0

    only(judged(negative), Severity.DEGRADED, "memory_usage", "-1 bytes")

    def jitter(columns):
        columns["cpu_psi", "node"][3] = 101.0

    assert bad(judged(jitter)) == []


def test_a_gpu_that_never_worked_is_noticed_but_an_idle_second_one_is_fine(judged):
    def gpus(*shares):
        def change(columns):
            del columns["gpu_utilization", "gpu"]
            for index, share in enumerate(shares):
                columns["gpu_utilization", f"gpu-{index}"] = [share] * ROWS

        return change

    only(judged(gpus(0.0)), Severity.DEGRADED, "gpu_utilization", "0 in 100% of the rows")
    assert bad(judged(gpus(97.0, 0.0))) == []


def test_per_process_gpu_memory_that_the_driver_hides_is_a_remark(judged):
    def change(columns):
        del columns["gpu_memory", "gpu"]
        columns["gpu_memory", "gpu-0"] = [3e9] * ROWS
        columns["gpu_memory", "replica-0"] = [(None, "NVML does not give memory per process here")] * ROWS

    findings = judged(change)
    assert bad(findings) == []
    assert any("gpu_memory replica-0: NVML does not" in finding.message for finding in findings)


def test_quantiles_in_the_last_bucket_are_no_measurement(judged):
    def change(columns):
        columns["latency_p99", "all"] = [TOP_BOUND_S] * ROWS

    only(judged(change), Severity.DEGRADED, "latency_p99", "cut off")


def test_rows_are_counted_against_the_plan(judged):
    findings = judged(rows=ROWS + 10)
    assert any("do not have 70 rows" in f.message for f in of(findings, Severity.INVALID))

    def short(columns):
        columns["io_psi", "node"] = columns["io_psi", "node"][:50]

    assert any(
        "1 of 31 series do not have 60 rows, e.g. io_psi node" in f.message
        for f in of(judged(short), Severity.DEGRADED)
    )


def test_rows_off_the_grid_are_invalid(judged, tmp_path):
    judged()
    path = next((tmp_path / "0").glob("*_throughput_*.csv"))
    lines = path.read_text().splitlines()
    del lines[30]
    path.write_text("\n".join([*lines, lines[-1], ""]))
    findings = judge(tmp_path / "0")
    assert any(f.metric == "throughput" and "instead of" in f.message for f in of(findings, Severity.INVALID))


def logs(requests):
    """What the logs hold, whatever rows are asked for; the rows that were are kept."""

    def logged(rows_s):
        logged.rows_s = dict(rows_s)
        return {name: counts for name, counts in requests.items() if name in rows_s}

    return logged


def test_counter_and_log_are_compared(judged):
    counted = 500 * (ROWS - 1)
    assert bad(judged(logged=logs({"replica-0": (counted + 2, counted + 2), "replica-9": (3, 3)}))) == []
    findings = judged(logged=logs({"replica-0": (counted // 4, counted // 2)}))
    only(
        findings, Severity.DEGRADED, "total_count", f"replica-0 counted {counted:g} requests and logged {counted // 2}"
    )


def test_a_counter_that_was_read_before_its_row_may_have_any_growth_that_its_log_has_between_readings(judged):
    counted = 500 * (ROWS - 1)
    assert bad(judged(logged=logs({"replica-0": (counted // 2, counted * 2)}))) == []
    assert bad(judged(logged=logs({"replica-0": (counted * 2, counted * 3)}))) != []


def test_a_counter_is_compared_with_its_log_between_the_first_and_the_last_of_its_readings(judged):
    def change(columns):
        values = columns["total_count", "replica-0"]
        values[0] = values[1] = values[-1] = (None, "no answer in time")

    asked = logs({"replica-0": (500 * (ROWS - 4), 500 * (ROWS - 4))})
    findings = judged(change, logged=asked)
    assert asked.rows_s["replica-0"] == (2 * STEP_S, (ROWS - 2) * STEP_S)
    assert asked.rows_s["replica-1"] == (0.0, (ROWS - 1) * STEP_S)
    assert ReasonCode.COUNTS_DISAGREE not in {finding.code for finding in findings}


def test_a_counter_that_was_read_once_is_compared_with_nothing(judged):
    def change(columns):
        columns["total_count", "replica-0"] = [7.0, *[(None, "no answer in time")] * (ROWS - 1)]

    asked = logs({})
    judged(change, logged=asked)
    assert "replica-0" not in asked.rows_s


def test_unsteady_throughput_degrades_and_a_late_settling_is_told(judged):
    def series(values):
        def change(columns):
            columns["throughput", "all"] = list(values)

        return change

    only(judged(series(np.linspace(50, 150, ROWS))), Severity.DEGRADED, "throughput", "not steady")
    findings = judged(series([50.0] * 12 + [100.0] * 48))
    assert bad(findings) == []
    assert any("steady only from 60 s after" in finding.message for finding in findings)


def test_a_handful_of_requests_is_not_called_unsteady(judged):
    def change(columns):
        columns["throughput", "all"] = list(np.linspace(0.1, 0.5, ROWS))
        columns["total_count", "all"] = list(np.linspace(0, 90, ROWS))

    findings = judged(change)
    assert bad(findings) == []
    assert any("too few requests" in finding.message for finding in findings)


def test_windows_without_a_request_get_the_advice_that_helps(judged):
    def change(columns):
        columns["latency_p50", "replica-0"][::2] = [(None, NO_REQUESTS)] * (ROWS // 2)

    findings = judged(change)
    only(findings, Severity.DEGRADED, "latency_p50", "30 of 60 values are missing: no request finished in the window")
    assert "rate_window_s" in bad(findings)[0].advice


def test_a_folder_without_data_or_with_a_broken_file_is_invalid(judged, tmp_path):
    assert [f.severity for f in judge(tmp_path)] == [Severity.INVALID]
    judged()
    path = next((tmp_path / "0").glob("*_throughput_*.csv"))
    path.write_text("timestamp,elapsed_s,series,value,reason\nx,y,all,z,\n")
    findings = judge(tmp_path / "0")
    assert [f.severity for f in findings] == [Severity.INVALID]
    assert "_throughput_" in findings[0].message


def test_a_recording_without_a_row_is_invalid(tmp_path):
    ExperimentWriter(
        tmp_path / "x", workload="resnet50", replicas=1, metrics=["throughput"], start_s=START_S, step_s=1
    ).close()
    findings = judge(tmp_path / "x")
    assert any("Nothing was recorded" in f.message for f in of(findings, Severity.INVALID))


def neighbour(values):
    """A change that adds a neighbour ``whisper`` of one replica, with ``values`` by metric in place of good ones."""

    def change(columns):
        for (name, series), own in list(columns.items()):
            if series in {"replica-0", "all"}:
                columns[name, f"whisper/{series}"] = values.get(name, own)

    return change


def test_a_good_neighbour_is_no_flaw(judged):
    assert {finding.severity for finding in judged(neighbour({}))} == {Severity.INFO}


def test_a_neighbour_that_serves_nothing_degrades_and_does_not_invalidate(judged):
    gone = [(None, "no replica could be read")] * ROWS
    found = judged(neighbour(dict.fromkeys([*GOOD, "total_count"], gone)))

    assert not of(found, Severity.INVALID)
    said = [finding.message for finding in of(found, Severity.DEGRADED)]
    assert "throughput of the neighbour whisper has no value at all: no replica could be read." in said
    assert (
        "Whether whisper/replica-0 served requests while recording is not known: fewer than 2 values of total_count each."
    ) in said


def test_without_the_measured_replicas_a_busy_neighbour_does_not_save_the_experiment(judged):
    def change(columns):
        neighbour({})(columns)
        for name, series in columns:
            if series in {"replica-0", "replica-1", "all"}:
                columns[name, series] = [(None, "no replica could be read")] * ROWS

    said = [finding.message for finding in of(judged(change), Severity.INVALID)]

    assert "throughput has no value at all: no replica could be read." in said
    assert any(message.startswith("Whether replica-0, replica-1 served requests") for message in said)
    assert not any("served no" in message or "a single request" in message for message in said)


def test_a_neighbour_that_stops_is_named(judged):
    counts = [500.0 * min(k, 20) for k in range(ROWS)]

    found = judged(neighbour({"total_count": counts}))

    assert "whisper/replica-0 served nothing in the last 10% of the recording." in [f.message for f in found]


def test_what_a_neighbour_lacks_that_is_to_wait_and_to_die_is_no_flaw(judged):
    dead = [(None, "no replica could be read")] * (ROWS // 2)
    values = {name: [GOOD[name]] * (ROWS - len(dead)) + dead for name in ("throughput", "latency_p50")}
    change = neighbour(values | {"total_count": [5.0] * ROWS, "cpu_usage": [0.0] * ROWS})

    assert {finding.severity for finding in judged(change, waiting={"whisper"})} == {Severity.INFO}
    assert {finding.severity for finding in judged(change)} > {Severity.INFO}


def resting(columns, active=True):
    """A session that works for ten rows and thinks for twenty: nothing served, nothing computed, uneven throughput."""
    for replica in ("replica-0", "replica-1", "all"):
        works = [k % 30 < 10 for k in range(ROWS)]
        served = np.cumsum([100.0 * work * (1 + k / ROWS) for k, work in enumerate(works)])
        columns["total_count", replica] = (served - served[0]).tolist()
        columns["throughput", replica] = [100.0 * work * (1 + k / ROWS) for k, work in enumerate(works)]
        columns["cpu_usage", replica] = [float(work) for work in works]
        for name in ("latency_avg", "latency_p50", "latency_p95", "latency_p99"):
            columns[name, replica] = [GOOD[name] if work else (None, NO_REQUESTS) for work in works]
        if active:
            columns["active_share", replica] = [80.0 * work for work in works]


def test_a_workload_that_rests_by_itself_may_serve_nothing_for_a_while(judged):
    findings = judged(resting)
    assert bad(findings) == []
    assert any("40 of 60 values are missing: no request finished" in f.message and not f.advice for f in findings)


def test_the_same_data_of_a_workload_that_should_work_are_degraded(judged):
    found = {finding.metric for finding in bad(judged(lambda columns: resting(columns, active=False)))}
    assert {"latency_avg", "throughput", "cpu_usage", "total_count"} <= found


def test_series_that_lack_the_same_rows_are_told_in_one_sentence(judged):
    said = [f.message for f in judged(lambda columns: resting(columns, active=False)) if f.code == "missing-values"]
    assert said == [
        "latency_avg replica-0 and 11 other series: 40 of 60 values are missing: no request finished in the window."
    ]


def asked_now_and_then(columns, share=2):
    """A server that is asked at a rate so low that no request ends in every second row."""
    for replica in ("replica-0", "replica-1", "all"):
        columns["throughput", replica] = [200.0 * (k % share == 0) for k in range(ROWS)]
        for name in ("latency_avg", "latency_p50", "latency_p95", "latency_p99"):
            columns[name, replica] = [(None, NO_REQUESTS) if k % share else GOOD[name] for k in range(ROWS)]


def test_rows_in_which_nobody_asked_are_no_fault_of_a_server_that_is_asked_at_a_rate(judged):
    assert bad(judged(asked_now_and_then, open_loop=True)) == []
    assert {finding.metric for finding in bad(judged(asked_now_and_then))} == {"latency_avg", "throughput"}


def test_a_replica_asked_at_a_rate_has_stopped_only_where_requests_should_have_ended(judged):
    def silent_at_the_end(in_all):
        return lambda columns: columns.__setitem__(
            ("total_count", "replica-0"), [float(in_all) * min(k, 50) / 50 for k in range(ROWS)]
        )

    assert bad(judged(silent_at_the_end(40), open_loop=True)) == [], "four requests were due, which may not have come"
    for found in (judged(silent_at_the_end(500), open_loop=True), judged(silent_at_the_end(40))):
        only(found, Severity.DEGRADED, "total_count", "replica-0 served nothing in the last 10% of the recording.")


def test_a_server_asked_at_a_rate_that_computes_in_no_row_at_all_degrades(judged):
    def change(columns):
        columns["cpu_usage", "replica-0"] = [0.0] * ROWS

    only(judged(change, open_loop=True), Severity.DEGRADED, "cpu_usage", "cpu_usage replica-0 is 0 in 100% of the rows")


def test_a_workload_that_rests_may_not_be_gone(judged):
    def change(columns):
        resting(columns)
        for name in ("latency_p50", "active_share"):
            columns[name, "replica-0"][30:] = [(None, "no connection")] * 30

    found = bad(judged(change))
    assert {finding.metric for finding in found} == {"latency_p50", "active_share"}
    assert all(finding.severity is Severity.DEGRADED and finding.advice for finding in found)


@pytest.mark.parametrize(
    ("cpu", "degraded"), [([0.0, 0.0, 0.02], False), ([0.0, 0.0, 0.0], True), ([0.0, 0.0, 2.0], True)]
)
def test_zeros_of_cpu_time_that_the_kernels_ticks_cannot_show_are_no_flaw(judged, cpu, degraded):
    def change(columns):
        for series in series_of("cpu_usage"):
            columns["cpu_usage", series] = cpu * (ROWS // 3)

    assert ("cpu_usage" in {finding.metric for finding in bad(judged(change))}) is degraded
