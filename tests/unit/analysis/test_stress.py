"""Where a workload breaks, on runs of known truth."""

import math
from dataclasses import replace

import numpy as np
import pytest

from harness.analysis import goodput
from harness.analysis.pages.tables import goodput_table
from harness.analysis.statistics import Estimate, Outcome
from harness.analysis.stress import FailureMode, Grade, LoadPoint, LoadRun, ServedLoad, StressSeries, search, series_of
from harness.errors import ReasonCode
from harness.results.manifest import Status
from harness.spec import CampaignSpec, ScenarioKind, ScenarioSpec, StressLoad, StressSpec, WorkloadSpec

TINY = WorkloadSpec(name="tiny", factory="tests.support.tiny_workload:steady")


def campaign(stress, repeats=1):
    return CampaignSpec(name="s", workloads=[TINY], replicas=[int(stress.first)], stress=stress, repeats=repeats)


def near(mean, half):
    return Estimate(mean, mean - half, mean + half, 40, None)


def run(throughput, p99_s, *, half=0.01, status=Status.VALID, reasons=()):
    figures = {"throughput": near(throughput, half * throughput), "latency_p99_exact": near(p99_s, half * p99_s)}
    return LoadRun(status, reasons, figures)


def dead(code, reason="it did not live."):
    return LoadRun(Status.INVALID, [(code, reason)], {})


def searched(runs, *, repeats=1, **stress):
    """``runs``: by replicas, a run or the list of its repeats."""
    spec = campaign(StressSpec(**stress), repeats)
    (cells,) = spec.series()
    named = {}
    for cell in cells:
        measured = runs.get(cell.replicas, [])
        for number, one in enumerate(measured if isinstance(measured, list) else [measured], start=1):
            named[cell.experiment_id(number)] = one
    return search(spec, cells, named)


def following(series):
    cell, repeat = series.following
    return cell.replicas, repeat


def test_the_load_is_raised_point_by_point():
    assert following(searched({}, most=8)) == (1, 1)
    assert following(searched({1: run(100, 0.01)}, most=8)) == (2, 1)
    assert following(searched({1: run(100, 0.01), 2: run(200, 0.01)}, most=8)) == (4, 1)


def test_a_latency_limit_breaks_where_the_whole_interval_lies_above_it():
    runs = {1: run(100, 0.01), 2: run(200, 0.02), 4: run(300, 0.06)}

    series = searched(runs, most=8, latency_limit_ms={"p99": 50})

    assert (series.broken.load, series.broken.failure_mode) == (4, FailureMode.LATENCY)
    assert series.last_good.load == 2
    (told,) = series.sentences()
    assert "breaks at 4 replicas (latency limit): p99 is 60.0 ± 0.6 ms, above the limit of 50.0 ms." in told
    assert (
        "The last good point is 2 replicas: 200 requests/s, p99 20.0 ms (measured once, so without an interval)."
        in told
    )


def test_a_point_that_cannot_be_told_from_the_limit_is_neither_good_nor_broken():
    runs = {1: run(100, 0.01), 2: run(200, 0.0501), 4: run(300, 0.09)}

    series = searched(runs, most=8, latency_limit_ms={"p99": 50})

    assert [point.grade for point in series.points] == [Grade.GOOD, Grade.DOUBTFUL, Grade.BROKEN]
    assert series.last_good.load == 1
    assert "At 2 replicas, p99 of 50.1 ± 0.5 ms is too close to the limit of 50.0 ms." in series.sentences()[0]


def test_a_limit_below_one_service_time_is_said_at_the_first_point():
    series = searched({1: run(100, 0.01)}, most=8, latency_limit_ms={"p99": 5})

    assert series.following is None
    (told,) = series.sentences()
    assert "breaks at the first point, 1 replica: p99 is 10.0 ± 0.1 ms" in told
    assert "The limit lies below one service time: no load can keep it. There is no good point." in told


def test_no_more_throughput_breaks_where_the_slope_is_surely_flat():
    runs = {1: run(100, 0.01), 2: run(198, 0.01), 4: run(240, 0.02), 8: run(241, 0.04)}

    series = searched(runs, most=64)

    assert (series.broken.load, series.broken.failure_mode) == (8, FailureMode.THROUGHPUT)
    assert series.last_good.load == 4
    assert "grows by +0.4% per doubling (95% interval -1.0 to +1.8), less than 5%" in series.sentences()[0]


def test_a_slope_that_may_still_rise_goes_on():
    runs = {1: run(100, 0.01, half=0.05), 2: run(101, 0.01, half=0.05)}

    assert following(searched(runs, most=64)) == (4, 1)


@pytest.mark.parametrize(
    ("code", "failure_mode"),
    [
        (ReasonCode.OUT_OF_MEMORY, FailureMode.MEMORY),
        (ReasonCode.REPLICA_DIED, FailureMode.ERRORS),
        (ReasonCode.REFUSED, FailureMode.ERRORS),
        (ReasonCode.UNKNOWN, FailureMode.UNKNOWN),
    ],
)
def test_replicas_that_cannot_live_break_the_series_whatever_the_words(code, failure_mode):
    reason = "deploy: replica 3 exited with 1; last lines: loaded the out of memory handler"
    series = searched({1: run(100, 0.01), 2: run(200, 0.01), 4: dead(code, reason)}, most=8)

    assert (series.broken.load, series.broken.failure_mode) == (4, failure_mode)
    assert series.last_good.load == 2
    assert reason in series.sentences()[0]


def test_a_death_in_a_recording_that_went_on_breaks_too():
    died = run(100, 0.01, status=Status.DEGRADED, reasons=[(ReasonCode.REPLICA_DIED, "Out of luck.")])

    assert searched({1: run(100, 0.01), 2: died}, most=8).broken.failure_mode is FailureMode.ERRORS


def test_a_restless_run_is_not_broken():
    restless = run(
        200, 0.01, status=Status.DEGRADED, reasons=[(ReasonCode.UNSTEADY, "It is as if replica 1 exited with 4.")]
    )

    assert following(searched({1: run(100, 0.01), 2: restless}, most=8)) == (4, 1)


def test_nothing_broken_is_said_with_the_most_that_was_asked_for():
    series = searched({1: run(100, 0.01), 2: run(200, 0.01), 3: run(300, 0.01)}, most=3)

    assert series.following is None
    assert series.broken is None
    assert "nothing broke up to 3 replicas, the most that was asked for." in series.sentences()[0]


def test_the_last_good_point_is_measured_again():
    runs = {1: run(100, 0.01), 2: [run(200, 0.02)], 4: run(300, 0.06)}
    limit = {"p99": 50}
    assert following(searched(runs, most=8, repeats=3, latency_limit_ms=limit)) == (2, 2)

    runs[2] += [run(210, 0.021)]
    assert following(searched(runs, most=8, repeats=3, latency_limit_ms=limit)) == (2, 3)

    runs[2] += [run(190, 0.019)]
    series = searched(runs, most=8, repeats=3, latency_limit_ms=limit)
    assert series.following is None
    assert "200 ± 25 requests/s, p99 20.0 ± 2.5 ms (mean of 3 runs)." in series.sentences()[0]


def test_a_good_point_that_does_not_hold_again_gives_way_to_the_one_below():
    runs = {1: [run(100, 0.01)], 2: [run(200, 0.04), run(150, 0.08)], 4: run(300, 0.09)}

    series = searched(runs, most=8, repeats=2, latency_limit_ms={"p99": 50})
    assert following(series) == (1, 2)

    runs[1] += [run(100, 0.01)]
    series = searched(runs, most=8, repeats=2, latency_limit_ms={"p99": 50})
    assert series.last_good.load == 1
    assert "2 replicas did not hold when measured again: p99 is 80.0 ± 0.8 ms" in series.sentences()[0]


@pytest.mark.parametrize(
    ("p99", "limit", "grade", "why"),
    [
        (Estimate(0.06, None, None, 9, None, "few"), {"p99": 50}, Grade.BROKEN, "p99 is 60.0 ms (no interval)"),
        (Estimate(math.nan, None, None, 9, None, "few"), {"p99": 50}, Grade.DOUBTFUL, "p99 was not measured: few."),
        (None, {"p99": 50}, Grade.DOUBTFUL, "p99 was not measured: no request was served."),
        (None, {}, Grade.DOUBTFUL, "nothing was measured."),
    ],
)
def test_a_figure_without_an_interval_counts_and_one_that_is_not_there_leaves_doubt(p99, limit, grade, why):
    figures = {"throughput": near(20, 1), "latency_p99_exact": p99} if p99 else {}

    series = searched({1: LoadRun(Status.VALID, [], figures)}, most=1, latency_limit_ms=limit)

    assert ([point.grade for point in series.points], series.last_good) == ([grade], None)
    assert series.points[0].sentence.startswith(why)
    assert "There is no good point." in series.sentences()[0]


def test_a_last_good_point_whose_repeats_lack_their_logs_is_told_without_a_rate():
    series = StressSeries("tiny", StressLoad.REPLICAS, campaign(StressSpec()).series()[0][0])
    run_without = LoadRun(Status.VALID, [], {})
    series.points = [LoadPoint(series.lowest, 1, run_without, Grade.GOOD)]
    series.last_good, series.repeats = series.points[0], [run_without]

    assert "no throughput measured" in series.sentences()[0]


def raised_batch(throughput, memory, **stress):
    """A batch that is raised, of runs by batch: requests/s and percent of the GPU's memory."""
    model = WorkloadSpec(name="resnet50")
    spec = CampaignSpec(
        name="s", workloads=[model], replicas=[1], stress=StressSpec(load=StressLoad.BATCH, first=8, **stress)
    )
    found, _ = answered(
        spec,
        lambda cell: replace(
            run(throughput(cell.workload.batch_size), 0.01), memory_percent=memory(cell.workload.batch_size)
        ),
    )
    return found[0]


@pytest.mark.parametrize("knee", [100, 300, 1000])
def test_the_knee_of_a_batch_is_where_inputs_grow_no_more(knee):
    series = raised_batch(lambda batch: min(batch, knee) / batch * 50, lambda _: 10, most=4096, precision=0.25)

    assert knee / 2 <= series.last_good.load <= 2.6 * knee
    assert series.broken.failure_mode is FailureMode.THROUGHPUT
    assert "inputs/s" in series.sentences()[0]


@pytest.mark.parametrize("fits", [8, 9, 100, 777, 3000])
def test_a_batch_fills_the_memory_to_its_limit_whatever_throughput_says(fits):
    series = raised_batch(
        lambda batch: 50 / batch, lambda batch: 85 * batch / fits, most=4096, precision=0.02, least_gain_percent=0
    )

    assert series.last_good.load <= fits < series.broken.load <= max(1.03 * series.last_good.load, fits + 1)
    assert series.broken.failure_mode is FailureMode.MEMORY
    assert "% of the GPU's memory in use" in series.sentences()[0]


def test_where_the_memory_was_not_measured_none_is_filled():
    series = raised_batch(lambda batch: 50 / batch, lambda _: None, least_gain_percent=0)

    assert len(series.points) == 1
    assert "how full the GPU's memory is was not measured" in series.sentences()[0]


def test_workloads_are_told_apart_by_their_whole_names():
    http = {"scenario": ScenarioSpec(kind=ScenarioKind.HTTP, rate=1)}
    both = [TINY.model_copy(update={"name": name, **http}) for name in ("high-rate-a", "high-rate-b")]
    stress = StressSpec(load=StressLoad.RATE, first=100, most=200)
    spec = CampaignSpec(name="s", workloads=both, replicas=[1], stress=stress)

    assert [series.name for series in series_of(spec, {})] == [
        "high-rate-a under time-slicing",
        "high-rate-b under time-slicing",
    ]
    assert {cell.workload.family for cells in spec.series() for cell in cells} == {"high-rate-a", "high-rate-b"}


def test_a_rate_that_is_not_answered_breaks():
    http = TINY.model_copy(update={"scenario": ScenarioSpec(kind=ScenarioKind.HTTP, rate=1)})
    stress = StressSpec(load=StressLoad.RATE, first=100, most=800)
    spec = CampaignSpec(name="s", workloads=[http], replicas=[2], stress=stress)
    (cells,) = spec.series()
    runs = {cell.experiment_id(1): run(rate, 0.01) for cell, rate in zip(cells, (199, 401, 640), strict=False)}

    series = search(spec, cells, runs)

    assert (series.name, series.broken.failure_mode) == ("tiny under time-slicing", FailureMode.THROUGHPUT)
    (told,) = series.sentences()
    assert "breaks at 400 requests/s per replica (no more throughput): 640 ± 6 requests/s are answered of 800" in told
    assert "The last good point is 200 requests/s per replica" in told


def simulated(random, capacity, *, noise=0.01):
    """Throughput of replicas that scale until the device is full, each run with its own interval."""
    return {
        load: run(min(100 * load, capacity) * random.normal(1, noise / 1.96), 0.01, half=noise)
        for load in (1, 2, 4, 8, 16, 32)
    }


def test_saturation_is_found_where_it_is_and_not_where_it_is_not():
    random = np.random.default_rng(7)
    saturated = [searched(simulated(random, 400), most=32).broken for _ in range(300)]
    scaling = [searched(simulated(random, 1e9), most=32).broken for _ in range(300)]
    # 4% per doubling is too little by a hair: the interval says so only where it can.
    assert sum(point is not None and point.load == 8 for point in saturated) > 0.95 * 300
    assert scaling == [None] * 300


SERVERS = {
    "name": "s",
    "workloads": [
        {"name": "llm", "server": {"command": ["serve", "{port}"], "protocol": "openai-chat", "rate": 1}},
    ],
    "slo": {"ttft_p99_ms": 200},
}


def served(rate, capacity, *, doubt=0.0, servers=1, energy_j=None):
    """A run of servers that keep the objective up to a rate each; within so much of it nobody can tell."""
    outcome = Outcome.PASS if rate <= capacity else Outcome.FAIL
    outcome = Outcome.INCONCLUSIVE if abs(rate / capacity - 1) < doubt else outcome
    unmet = "" if outcome is Outcome.PASS else f"first token p99 300 ms: {outcome}"
    figures = {"throughput": near(rate * servers, 0.01 * rate)}
    return LoadRun(
        Status.VALID, [], figures, ServedLoad(outcome, unmet, rate * servers, 32.0 * rate * servers, energy_j, 1)
    )


def answered(spec, run_at):
    """Every series to its end, and how many points each took; ``run_at``: a run by cell."""
    found, taken = [], []
    for cells in spec.series():
        runs = {}
        while (series := search(spec, cells, runs)).following:
            cell, repeat = series.following
            assert cell.experiment_id(repeat) not in runs
            runs[cell.experiment_id(repeat)] = run_at(cell)
        found.append(series)
        taken.append(len(runs))
    return found, taken


def of_servers(**stress):
    spec = {"load": "rate", "first": 1, "most": 64, **stress}
    return CampaignSpec.model_validate({**SERVERS, "replicas": [1, 2, 4], "stress": spec}, strict=False)


@pytest.mark.parametrize("capacity", [1.0, 1.05, 3.3, 7.99, 8.0, 8.01, 30.0, 63.9])
def test_halving_finds_the_highest_rate_within_the_precision(capacity):
    spec = of_servers(precision=0.1)

    found, taken = answered(spec, lambda cell: served(cell.workload.server.rate, capacity, servers=cell.replicas))

    for series in found:
        good, broken = series.last_good, series.broken
        assert good.load <= capacity < broken.load <= 1.101 * good.load
        assert broken.failure_mode is FailureMode.OBJECTIVE
    assert max(taken) <= len(spec.stress.at_most()) == 7 + 3


def test_what_cannot_be_decided_is_neither_within_the_objective_nor_beyond_it():
    spec = of_servers(precision=0.1)

    found, _ = answered(spec, lambda cell: served(cell.workload.server.rate, 10, doubt=0.15, servers=cell.replicas))

    for series in found:
        grades = {point.load: point.grade for point in series.points}
        assert series.last_good.load <= 8.5
        assert [load for load, grade in grades.items() if grade is Grade.DOUBTFUL]
        assert "a longer recording decides more" in series.sentences()[0]
    (first, *_) = goodput.bests(spec, found)
    assert first.limit == "objective"
    only, _ = answered(
        of_servers(most=9), lambda cell: served(cell.workload.server.rate, 10, doubt=0.3, servers=cell.replicas)
    )
    assert {best.limit for best in goodput.bests(spec, only)} == {"inconclusive"}


def test_the_number_of_servers_that_fit_is_found_between_two_points():
    stress = {"first": 1, "most": 32, "precision": 0.01}
    spec = CampaignSpec.model_validate({**SERVERS, "stress": stress}, strict=False)

    ((series,), (taken,)) = answered(spec, lambda cell: served(cell.replicas, 11))

    assert (series.last_good.load, series.broken.load) == (11, 12)
    assert taken <= len(spec.stress.at_most())
    assert goodput.bests(spec, [series])[0].servers == 11


def test_the_answer_names_the_number_of_servers_its_energy_and_its_price():
    spec = of_servers(precision=0.1, price_per_gpu_hour=3.6, price_per_kwh=0.36).model_copy(update={"repeats": 3})

    def run_at(cell):
        return served(
            cell.workload.server.rate, 12 / cell.replicas**0.5, servers=cell.replicas, energy_j=100 / cell.replicas
        )

    every, _ = answered(spec, run_at)
    found = goodput.bests(spec, every)

    assert [series.name for series in every][:2] == [
        "llm under time-slicing, 1 replica",
        "llm under time-slicing, 2 replicas",
    ]
    assert [best.servers for best in found] == [1, 2, 4]
    last = found[-1]
    assert last.goodput.mean == pytest.approx(4 * last.rate)
    # 1 hour of the GPU makes 3600 x 32 tokens x requests/s; 25 J per 1,000 tokens are 25,000 J per million.
    cost = 3.6 * 1e6 / (3600 * 32 * last.goodput.mean) + 0.36 * 25_000 / 3.6e6
    assert last.cost.mean == pytest.approx(cost)
    (told,) = goodput.sentences(found)
    assert told.startswith("llm: the highest goodput within the objective is 2")
    assert "of 4 servers under time-slicing" in told
    assert "at 25.0 ± 0 J per 1,000 tokens and " in told
    assert "No significant difference" not in told
    assert "Measured once" not in told
    once, twice = (near(mean, 2) for mean in (20, 21))
    like = [replace(found[0], goodput=once), replace(found[1], goodput=twice)]
    assert goodput.sentences(like)[0].endswith("No significant difference: 1 under time-slicing.")
    alone = [replace(best, goodput=Estimate(9, None, None, 1, None)) for best in found]
    assert goodput.sentences(alone)[0].endswith("Measured once, so without an interval.")
    table = goodput_table(found)
    titles, rows = table.titles, table.rows
    assert titles == [
        "workload",
        "sharing",
        "servers",
        "each/s",
        "goodput/s",
        "limit",
        "J/1,000 tokens",
        "cost/million tokens",
    ]
    assert rows[0][:3] == ["llm", "time-slicing", "1"]
    assert last.to_dict()["energy_j_per_1000_tokens"]["mean"] == 25


def test_a_repeat_that_fails_gives_way_and_no_good_point_is_said():
    spec = of_servers().model_copy(update={"repeats": 2})
    seen = set()

    def run_at(cell):
        again = cell.experiment_id(1) in seen
        seen.add(cell.experiment_id(1))
        return served(cell.workload.server.rate, 4 if again else 8, servers=cell.replicas)

    every, _ = answered(spec, run_at)
    assert [series.last_good.load for series in every] == [4, 4, 4]
    assert "did not hold when measured again: first token p99 300 ms" in every[0].sentences()[0]

    every, _ = answered(spec, lambda cell: served(cell.workload.server.rate, 0.5, servers=cell.replicas))
    found = goodput.bests(spec, every)
    assert goodput.sentences(found) == ["llm: no number of servers was seen to keep the objective."]
    assert found[0].why == "1 requests/s per replica: first token p99 300 ms: fail."
