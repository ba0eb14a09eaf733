"""The judge, on files as the writer of results leaves them."""

import itertools

import numpy as np
import pytest

from harness.errors import ReasonCode
from harness.metrics import quality
from harness.metrics.catalogue import CATALOGUE, STANDARD, Level
from harness.metrics.csv_reader import SeriesColumns
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


def flaws(findings):
    """What is worse than a remark: severity, code and metric of each."""
    return {(f.severity, f.code, f.metric) for f in findings if f.severity is not Severity.INFO}


def degraded(code, metric):
    return Severity.DEGRADED, code, metric


def invalid(code, metric):
    return Severity.INVALID, code, metric


def setting(**values):
    """A change that gives series of their own values: of one replica, of a device, of the node; a number is every row's."""

    def change(columns):
        for key, own in values.items():
            metric, _, series = key.partition("__")
            columns[metric, series.replace("_", "-")] = own if isinstance(own, list) else [own] * ROWS

    return change


def everywhere(**values):
    """The same of every series of a metric."""
    return setting(**{f"{name}__{series}": own for name, own in values.items() for series in series_of(name)})


def some(name, series, rows, value):
    """A change of some rows of one series."""
    return lambda columns: columns[name, series].__setitem__(rows, [value] * len(range(ROWS)[rows]))


def gpus(*shares):
    def change(columns):
        del columns["gpu_utilization", "gpu"]
        setting(**{f"gpu_utilization__gpu_{index}": share for index, share in enumerate(shares)})(columns)

    return change


GONE, QUIET = (None, "gone"), (None, NO_REQUESTS)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (None, set()),
        (
            setting(total_count__replica_1=0.0),
            {degraded(ReasonCode.IDLE_REPLICA, "total_count"), degraded(ReasonCode.ZEROS, "total_count")},
        ),
        (
            some("total_count", "replica-0", slice(40, None), 200.0),
            {degraded(ReasonCode.STALLED_REPLICA, "total_count")},
        ),
        (some("total_count", "replica-0", slice(40, None), GONE), {degraded(ReasonCode.MISSING_VALUES, "total_count")}),
        (some("cpu_psi", "node", slice(1), GONE), {degraded(ReasonCode.MISSING_VALUES, "cpu_psi")}),  # more than 1%
        (some("cpu_psi", "node", slice(3, 4), 180.0), {degraded(ReasonCode.IMPOSSIBLE_VALUE, "cpu_psi")}),
        (some("cpu_psi", "node", slice(3, 4), 101.0), set()),  # jitter
        (some("memory_usage", "all", slice(3, 4), -1.0), {degraded(ReasonCode.IMPOSSIBLE_VALUE, "memory_usage")}),
        (gpus(0.0), {degraded(ReasonCode.ZEROS, "gpu_utilization")}),
        (gpus(97.0, 0.0), set()),  # an idle second one is fine
        (setting(latency_p99__all=TOP_BOUND_S), {degraded(ReasonCode.ABOVE_BUCKETS, "latency_p99")}),
        (lambda columns: columns["io_psi", "node"].__delitem__(slice(50, None)), {degraded(ReasonCode.ROWS, "")}),
        (
            setting(throughput__all=np.linspace(50, 150, ROWS).tolist()),
            {degraded(ReasonCode.UNSTEADY, "throughput")},
        ),
        (everywhere(cpu_usage=[0.0, 0.0, 0.02] * (ROWS // 3)), set()),  # less than the kernel's ticks can show
        (everywhere(cpu_usage=0.0), {degraded(ReasonCode.ZEROS, "cpu_usage")}),
        (everywhere(cpu_usage=[0.0, 0.0, 2.0] * (ROWS // 3)), {degraded(ReasonCode.ZEROS, "cpu_usage")}),
        (
            everywhere(total_count=0.0, throughput=0.0, latency_p99=QUIET),
            {
                invalid(ReasonCode.IDLE_REPLICA, "total_count"),
                invalid(ReasonCode.NO_VALUE, "latency_p99"),
                degraded(ReasonCode.ZEROS, "throughput"),
                degraded(ReasonCode.ZEROS, "total_count"),
                degraded(ReasonCode.UNSTEADY, "throughput"),
            },
        ),
    ],
)
def test_flaws_of_a_recording(judged, change, expected):
    findings = judged(change)
    assert flaws(findings) == expected
    assert all(finding.advice for finding in findings if finding.severity is not Severity.INFO)


@pytest.mark.parametrize(("step_s", "flawed"), [(0.25, False), (60.0, True)])
def test_a_late_reading_of_a_short_step_is_no_impossible_pressure(step_s, flawed):
    times = np.arange(10) * step_s
    values = np.full(10, 106.637)
    series = SeriesColumns(times, values, values)

    assert bool([*quality._bounds(CATALOGUE["cpu_psi"], "node", series)]) is flawed


def test_absent_metrics_are_remarked_with_their_reason(judged):
    findings = judged()
    assert {finding.metric for finding in findings} == {"gpu_utilization", "gpu_memory", "gpu_power", "gpu_temperature"}
    assert all(DRIVER in finding.message for finding in findings)


def test_of_a_recording_of_one_row_nobody_knows_whether_replicas_served(judged):
    assert invalid(ReasonCode.NO_VALUE, "total_count") in flaws(judged(everywhere(total_count=[0.0])))


def test_per_process_gpu_memory_that_the_driver_hides_is_a_remark(judged):
    def change(columns):
        del columns["gpu_memory", "gpu"]
        hidden = (None, "NVML does not give memory per process here")
        setting(gpu_memory__gpu_0=3e9, gpu_memory__replica_0=hidden)(columns)

    findings = judged(change)
    assert flaws(findings) == set()
    assert any("gpu_memory replica-0: NVML does not" in finding.message for finding in findings)


def test_rows_are_counted_against_the_plan(judged):
    assert flaws(judged(rows=ROWS + 10)) == {invalid(ReasonCode.ROWS, "")}


def test_rows_off_the_grid_are_invalid(judged, tmp_path):
    judged()
    path = next((tmp_path / "0").glob("*_throughput_*.csv"))
    lines = path.read_text().splitlines()
    del lines[30]
    path.write_text("\n".join([*lines, lines[-1], ""]))
    assert invalid(ReasonCode.ROWS, "throughput") in flaws(judge(tmp_path / "0"))


def logs(requests):
    """What the logs hold, whatever rows are asked for; the rows that were are kept."""

    def logged(rows_s):
        logged.rows_s = dict(rows_s)
        return {name: counts for name, counts in requests.items() if name in rows_s}

    return logged


COUNTED = 500 * (ROWS - 1)
DISAGREE = {degraded(ReasonCode.COUNTS_DISAGREE, "total_count")}


@pytest.mark.parametrize(
    ("logged", "expected"),
    [
        ({"replica-0": (COUNTED + 2, COUNTED + 2), "replica-9": (3, 3)}, set()),
        ({"replica-0": (COUNTED // 4, COUNTED // 2)}, DISAGREE),
        ({"replica-0": (COUNTED // 2, COUNTED * 2)}, set()),  # whatever its log has between two readings
        ({"replica-0": (COUNTED * 2, COUNTED * 3)}, DISAGREE),
    ],
)
def test_counter_and_log_are_compared(judged, logged, expected):
    assert flaws(judged(logged=logs(logged))) == expected


def test_a_counter_is_compared_with_its_log_between_the_first_and_the_last_of_its_readings(judged):
    def change(columns):
        values = columns["total_count", "replica-0"]
        values[0] = values[1] = values[-1] = (None, "no answer in time")

    asked = logs({"replica-0": (500 * (ROWS - 4), 500 * (ROWS - 4))})
    findings = judged(change, logged=asked)
    assert asked.rows_s["replica-0"] == (2 * STEP_S, (ROWS - 2) * STEP_S)
    assert asked.rows_s["replica-1"] == (0.0, (ROWS - 1) * STEP_S)
    assert ReasonCode.COUNTS_DISAGREE not in {finding.code for finding in findings}

    judged(setting(total_count__replica_0=[7.0, *[(None, "no answer in time")] * (ROWS - 1)]), logged=asked)
    assert "replica-0" not in asked.rows_s, "read once, it is compared with nothing"


def test_a_late_settling_and_a_handful_of_requests_are_remarks(judged):
    settled = judged(setting(throughput__all=[50.0] * 12 + [100.0] * 48))
    few = judged(
        setting(
            throughput__all=np.linspace(0.1, 0.5, ROWS).tolist(), total_count__all=np.linspace(0, 90, ROWS).tolist()
        )
    )
    assert flaws(settled) == flaws(few) == set()
    assert any(finding.code is ReasonCode.UNSTEADY and "60 s" in finding.message for finding in settled)
    assert ReasonCode.STEADINESS_UNKNOWN in {finding.code for finding in few}


def test_windows_without_a_request_get_the_advice_that_helps(judged):
    findings = judged(some("latency_p50", "replica-0", slice(None, None, 2), QUIET))
    assert flaws(findings) == {degraded(ReasonCode.MISSING_VALUES, "latency_p50")}
    assert any("rate_window_s" in finding.advice for finding in findings)


def test_a_folder_without_data_or_with_a_broken_file_is_invalid(judged, tmp_path):
    assert flaws(judge(tmp_path)) == {invalid(ReasonCode.ROWS, "")}
    judged()
    path = next((tmp_path / "0").glob("*_throughput_*.csv"))
    path.write_text("timestamp,elapsed_s,series,value,reason\nx,y,all,z,\n")
    [finding] = judge(tmp_path / "0")
    assert finding.severity is Severity.INVALID
    assert "_throughput_" in finding.message


def test_a_recording_without_a_row_is_invalid(tmp_path):
    ExperimentWriter(
        tmp_path / "x", workload="resnet50", replicas=1, metrics=["throughput"], start_s=START_S, step_s=1
    ).close()
    assert invalid(ReasonCode.ROWS, "") in flaws(judge(tmp_path / "x"))


def neighbour(values):
    """A change that adds a neighbour ``whisper`` of one replica, with ``values`` by metric in place of good ones."""

    def change(columns):
        for (name, series), own in list(columns.items()):
            if series in {"replica-0", "all"}:
                columns[name, f"whisper/{series}"] = values.get(name, own)

    return change


def test_a_good_neighbour_is_no_flaw_and_one_that_serves_nothing_degrades(judged):
    assert flaws(judged(neighbour({}))) == set()
    gone = [(None, "no replica could be read")] * ROWS
    found = flaws(judged(neighbour(dict.fromkeys([*GOOD, "total_count"], gone))))
    assert found == {
        degraded(ReasonCode.NO_VALUE, name)
        for name in ("latency_avg", "latency_p50", "latency_p95", "latency_p99", "throughput", "total_count")
    }


def test_without_the_measured_replicas_a_busy_neighbour_does_not_save_the_experiment(judged):
    def change(columns):
        neighbour({})(columns)
        for name, series in columns:
            if series in {"replica-0", "replica-1", "all"}:
                columns[name, series] = [(None, "no replica could be read")] * ROWS

    found = flaws(judged(change))
    assert {invalid(ReasonCode.NO_VALUE, "throughput"), invalid(ReasonCode.NO_VALUE, "total_count")} <= found
    assert ReasonCode.IDLE_REPLICA not in {code for _, code, _ in found}


def test_a_neighbour_that_stops_is_named(judged):
    found = judged(neighbour({"total_count": [500.0 * min(k, 20) for k in range(ROWS)]}))
    assert flaws(found) == {degraded(ReasonCode.STALLED_REPLICA, "total_count")}
    assert any(finding.message.startswith("whisper/replica-0 ") for finding in found)


def test_what_a_neighbour_lacks_that_is_to_wait_and_to_die_is_no_flaw(judged):
    dead = [(None, "no replica could be read")] * (ROWS // 2)
    values = {name: [GOOD[name]] * (ROWS - len(dead)) + dead for name in ("throughput", "latency_p50")}
    change = neighbour(values | {"total_count": [5.0] * ROWS, "cpu_usage": [0.0] * ROWS})

    assert flaws(judged(change, waiting={"whisper"})) == set()
    assert flaws(judged(change)) != set()


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
    assert flaws(findings) == set()
    assert any(finding.code is ReasonCode.MISSING_VALUES and not finding.advice for finding in findings)


def test_the_same_data_of_a_workload_that_should_work_are_degraded_and_told_in_one_sentence(judged):
    findings = judged(lambda columns: resting(columns, active=False))
    assert {"latency_avg", "throughput", "cpu_usage", "total_count"} <= {metric for _, _, metric in flaws(findings)}
    [missing] = [finding.message for finding in findings if finding.code is ReasonCode.MISSING_VALUES]
    assert missing.startswith("latency_avg replica-0 and 11 other series: 40 of 60 values")


def asked_now_and_then(columns, share=2):
    """A server that is asked at a rate so low that no request ends in every second row."""
    for replica in ("replica-0", "replica-1", "all"):
        columns["throughput", replica] = [200.0 * (k % share == 0) for k in range(ROWS)]
        for name in ("latency_avg", "latency_p50", "latency_p95", "latency_p99"):
            columns[name, replica] = [(None, NO_REQUESTS) if k % share else GOOD[name] for k in range(ROWS)]


def test_rows_in_which_nobody_asked_are_no_fault_of_a_server_that_is_asked_at_a_rate(judged):
    assert flaws(judged(asked_now_and_then, open_loop=True)) == set()
    assert {metric for _, _, metric in flaws(judged(asked_now_and_then))} == {"latency_avg", "throughput"}


@pytest.mark.parametrize(
    ("in_all", "open_loop", "stalled"),
    [(40, True, False), (500, True, True), (40, False, True)],  # of 40, four were due, which may not have come
)
def test_a_replica_asked_at_a_rate_has_stopped_only_where_requests_should_have_ended(
    judged, in_all, open_loop, stalled
):
    change = setting(total_count__replica_0=[float(in_all) * min(k, 50) / 50 for k in range(ROWS)])
    expected = {degraded(ReasonCode.STALLED_REPLICA, "total_count")} if stalled else set()
    assert flaws(judged(change, open_loop=open_loop)) == expected


@pytest.mark.parametrize(
    ("in_all", "until", "in_flight", "stalled"),
    [
        (10, 50, 1, False),
        (20, 50, 1, True),
        (40, 50, 8, False),
        (160, 50, 8, True),
        (8, 30, 1, True),
        (1, 30, 1, False),
    ],
)
def test_a_closed_loop_has_stopped_only_where_no_request_takes_as_long(judged, in_all, until, in_flight, stalled):
    change = setting(total_count__replica_0=[float(in_all) * min(k, until) / until for k in range(ROWS)])
    expected = {degraded(ReasonCode.STALLED_REPLICA, "total_count")} if stalled else set()
    assert flaws(judged(change, in_flight=in_flight)) == expected


def slow(seconds, rows_without):
    """Requests that take so long, of which none ended in some rows."""

    def change(columns):
        everywhere(latency_p50=seconds)(columns)
        setting(throughput__replica_0=[0.0 if k in rows_without else 0.2 for k in range(ROWS)])(columns)
        for k in rows_without:
            columns["latency_p50", "replica-0"][k] = QUIET

    return change


@pytest.mark.parametrize(
    ("request_s", "rows_without", "codes"),
    [
        (50, range(10, 20), set()),  # 100 s may pass, which is more than the window of 20 s
        (50, range(4, 60), {ReasonCode.MISSING_VALUES, ReasonCode.ZEROS}),  # not all of them, though
        (5, range(10, 20), {ReasonCode.MISSING_VALUES, ReasonCode.ZEROS}),  # who answers in 5 s and then hangs
    ],
)
def test_rows_in_which_no_slow_request_ended_are_no_flaw(judged, request_s, rows_without, codes):
    found = judged(slow(request_s, rows_without), rate_window_s=20)
    assert {f.code for f in found if f.severity is not Severity.INFO} == codes


def test_a_replica_that_hangs_excuses_no_other(judged):
    def change(columns):
        slow(50, range(10, 20))(columns)
        columns["latency_p50", "replica-1"] = [0.1 if k < 30 else QUIET for k in range(ROWS)]

    flawed = [f for f in judged(change, rate_window_s=20) if f.code is ReasonCode.MISSING_VALUES]
    assert [f.message.split(":")[0] for f in flawed if f.severity is Severity.DEGRADED] == ["latency_p50 replica-1"]


@pytest.mark.parametrize(
    ("in_flight", "in_all", "verdict"),
    [
        (1, 1200, ReasonCode.UNSTEADY),
        (20, 1200, ReasonCode.UNSTEADY),  # in six windows
        (64, 1200, ReasonCode.STEADINESS_UNKNOWN),  # 128 are on their way, and a window has 120
    ],
)
def test_steadiness_is_judged_in_windows_that_hold_several_times_what_is_in_flight(judged, in_flight, in_all, verdict):
    def change(columns):
        setting(total_count__all=[in_all * k / (ROWS - 1) for k in range(ROWS)])(columns)
        setting(throughput__all=[25.0 if k // 15 % 2 else 15.0 for k in range(ROWS)])(columns)

    codes = {f.code for f in judged(change, in_flight=in_flight)}
    assert codes & {ReasonCode.UNSTEADY, ReasonCode.STEADINESS_UNKNOWN} == {verdict}


def test_a_server_asked_at_a_rate_that_computes_in_no_row_at_all_degrades(judged):
    found = flaws(judged(setting(cpu_usage__replica_0=0.0), open_loop=True))
    assert found == {degraded(ReasonCode.ZEROS, "cpu_usage")}


def test_a_workload_that_rests_may_not_be_gone(judged):
    def change(columns):
        resting(columns)
        for name in ("latency_p50", "active_share"):
            columns[name, "replica-0"][30:] = [(None, "no connection")] * 30

    assert flaws(judged(change)) == {
        degraded(ReasonCode.MISSING_VALUES, name) for name in ("latency_p50", "active_share")
    }
