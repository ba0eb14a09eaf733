"""Where a workload breaks, on runs of known truth."""

import math

import numpy as np
import pytest

from harness.analysis.statistics import Estimate
from harness.analysis.stress import Breakage, Grade, Run, climb
from harness.config import CampaignSpec, ScenarioKind, ScenarioSpec, StressLoad, StressSpec, WorkloadSpec
from harness.errors import ReasonCode
from harness.results.manifest import Status

TINY = WorkloadSpec(name="tiny", factory="tests.support.tiny_workload:steady")


def campaign(stress, repeats=1):
    return CampaignSpec(name="s", workloads=[TINY], replicas=[int(stress.first)], stress=stress, repeats=repeats)


def near(mean, half):
    return Estimate(mean, mean - half, mean + half, 40, None)


def run(throughput, p99_s, *, half=0.01, status=Status.VALID, reasons=()):
    figures = {"throughput": near(throughput, half * throughput), "latency_p99_exact": near(p99_s, half * p99_s)}
    return Run(status, reasons, figures)


def dead(code, reason="it did not live."):
    return Run(Status.INVALID, [(code, reason)], {})


def climbed(runs, *, repeats=1, **stress):
    """``runs``: by replicas, a run or the list of its repeats."""
    spec = campaign(StressSpec(**stress), repeats)
    (cells,) = spec.ladders()
    named = {}
    for cell in cells:
        measured = runs.get(cell.replicas, [])
        for number, one in enumerate(measured if isinstance(measured, list) else [measured], start=1):
            named[cell.experiment_id(number)] = one
    return climb(spec.stress, cells, named, spec.repeats)


def following(ladder):
    cell, repeat = ladder.following
    return cell.replicas, repeat


def test_the_load_is_raised_point_by_point():
    assert following(climbed({}, most=8)) == (1, 1)
    assert following(climbed({1: run(100, 0.01)}, most=8)) == (2, 1)
    assert following(climbed({1: run(100, 0.01), 2: run(200, 0.01)}, most=8)) == (4, 1)


def test_a_latency_limit_breaks_where_the_whole_interval_lies_above_it():
    runs = {1: run(100, 0.01), 2: run(200, 0.02), 4: run(300, 0.06)}

    ladder = climbed(runs, most=8, latency_limit_ms={"p99": 50})

    assert (ladder.broken.load, ladder.broken.breakage) == (4, Breakage.LATENCY)
    assert ladder.last_good.load == 2
    (told,) = ladder.sentences()
    assert "breaks at 4 replicas (latency limit): p99 is 60.0 ± 0.6 ms, above the limit of 50.0 ms." in told
    assert (
        "The last good point is 2 replicas: 200 requests/s, p99 20.0 ms (measured once, so without an interval)."
        in told
    )


def test_a_point_that_cannot_be_told_from_the_limit_is_neither_good_nor_broken():
    runs = {1: run(100, 0.01), 2: run(200, 0.0501), 4: run(300, 0.09)}

    ladder = climbed(runs, most=8, latency_limit_ms={"p99": 50})

    assert [point.grade for point in ladder.points] == [Grade.GOOD, Grade.DOUBTFUL, Grade.BROKEN]
    assert ladder.last_good.load == 1
    assert "At 2 replicas, p99 of 50.1 ± 0.5 ms cannot be told from the limit of 50.0 ms." in ladder.sentences()[0]


def test_a_limit_below_one_service_time_is_said_at_the_first_point():
    ladder = climbed({1: run(100, 0.01)}, most=8, latency_limit_ms={"p99": 5})

    assert ladder.following is None
    (told,) = ladder.sentences()
    assert "breaks at the first point, 1 replica: p99 is 10.0 ± 0.1 ms" in told
    assert "The limit lies below one service time: no load can keep it. There is no good point." in told


def test_no_more_throughput_breaks_where_the_slope_is_surely_flat():
    runs = {1: run(100, 0.01), 2: run(198, 0.01), 4: run(240, 0.02), 8: run(241, 0.04)}

    ladder = climbed(runs, most=64)

    assert (ladder.broken.load, ladder.broken.breakage) == (8, Breakage.THROUGHPUT)
    assert ladder.last_good.load == 4
    assert "grows by +0.4 % per doubling (95 % interval -1.0 to +1.8), less than 5 %" in ladder.sentences()[0]


def test_a_slope_that_may_still_rise_goes_on():
    runs = {1: run(100, 0.01, half=0.05), 2: run(101, 0.01, half=0.05)}

    assert following(climbed(runs, most=64)) == (4, 1)


@pytest.mark.parametrize(
    ("code", "breakage"),
    [
        (ReasonCode.OUT_OF_MEMORY, Breakage.MEMORY),
        (ReasonCode.REPLICA_DIED, Breakage.ERRORS),
        (ReasonCode.REFUSED, Breakage.ERRORS),
        (ReasonCode.UNKNOWN, Breakage.UNKNOWN),
    ],
)
def test_replicas_that_cannot_live_break_the_ladder_whatever_the_words(code, breakage):
    reason = "deploy: replica 3 exited with 1; last lines: loaded the out of memory handler"
    ladder = climbed({1: run(100, 0.01), 2: run(200, 0.01), 4: dead(code, reason)}, most=8)

    assert (ladder.broken.load, ladder.broken.breakage) == (4, breakage)
    assert ladder.last_good.load == 2
    assert reason in ladder.sentences()[0]


def test_a_death_in_a_recording_that_went_on_breaks_too():
    died = run(100, 0.01, status=Status.DEGRADED, reasons=[(ReasonCode.REPLICA_DIED, "Out of luck.")])

    assert climbed({1: run(100, 0.01), 2: died}, most=8).broken.breakage is Breakage.ERRORS


def test_a_restless_run_is_not_broken():
    restless = run(
        200, 0.01, status=Status.DEGRADED, reasons=[(ReasonCode.UNSTEADY, "It is as if replica 1 exited with 4.")]
    )

    assert following(climbed({1: run(100, 0.01), 2: restless}, most=8)) == (4, 1)


def test_nothing_broken_is_said_with_the_most_that_was_asked_for():
    ladder = climbed({1: run(100, 0.01), 2: run(200, 0.01), 3: run(300, 0.01)}, most=3)

    assert ladder.following is None
    assert ladder.broken is None
    assert "nothing broke up to 3 replicas, the most that was asked for." in ladder.sentences()[0]


def test_the_last_good_point_is_measured_again():
    runs = {1: run(100, 0.01), 2: [run(200, 0.02)], 4: run(300, 0.06)}
    limit = {"p99": 50}
    assert following(climbed(runs, most=8, repeats=3, latency_limit_ms=limit)) == (2, 2)

    runs[2] += [run(210, 0.021)]
    assert following(climbed(runs, most=8, repeats=3, latency_limit_ms=limit)) == (2, 3)

    runs[2] += [run(190, 0.019)]
    ladder = climbed(runs, most=8, repeats=3, latency_limit_ms=limit)
    assert ladder.following is None
    assert "200 ± 25 requests/s, p99 20.0 ± 2.5 ms (mean of 3 runs)." in ladder.sentences()[0]


def test_a_good_point_that_does_not_hold_again_gives_way_to_the_one_below():
    runs = {1: [run(100, 0.01)], 2: [run(200, 0.04), run(150, 0.08)], 4: run(300, 0.09)}

    ladder = climbed(runs, most=8, repeats=2, latency_limit_ms={"p99": 50})
    assert following(ladder) == (1, 2)

    runs[1] += [run(100, 0.01)]
    ladder = climbed(runs, most=8, repeats=2, latency_limit_ms={"p99": 50})
    assert ladder.last_good.load == 1
    assert "2 replicas did not hold when measured again: p99 is 80.0 ± 0.8 ms" in ladder.sentences()[0]


def test_a_point_without_an_interval_counts_as_it_is():
    few = Run(
        Status.VALID, [], {"throughput": near(20, 1), "latency_p99_exact": Estimate(0.06, None, None, 9, None, "few")}
    )

    ladder = climbed({1: few}, most=8, latency_limit_ms={"p99": 50})

    assert "p99 is 60.0 ms (no interval), above the limit" in ladder.sentences()[0]


def test_a_percentile_that_was_not_measured_makes_a_point_doubtful():
    few = Run(
        Status.VALID,
        [],
        {"throughput": near(2, 0.1), "latency_p99_exact": Estimate(math.nan, None, None, 9, None, "too few")},
    )

    ladder = climbed({1: few}, most=1, latency_limit_ms={"p99": 50})

    assert ladder.last_good is None
    assert "p99 was not measured: too few." in ladder.sentences()[0]


def test_a_rate_that_is_not_answered_breaks():
    http = TINY.model_copy(update={"scenario": ScenarioSpec(kind=ScenarioKind.HTTP, rate=1)})
    stress = StressSpec(load=StressLoad.RATE, first=100, most=800)
    spec = CampaignSpec(name="s", workloads=[http], replicas=[2], stress=stress)
    (cells,) = spec.ladders()
    runs = {cell.experiment_id(1): run(rate, 0.01) for cell, rate in zip(cells, (199, 401, 640), strict=False)}

    ladder = climb(stress, cells, runs, 1)

    assert (ladder.name, ladder.broken.breakage) == ("tiny under time-slicing", Breakage.THROUGHPUT)
    (told,) = ladder.sentences()
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
    saturated = [climbed(simulated(random, 400), most=32).broken for _ in range(300)]
    scaling = [climbed(simulated(random, 1e9), most=32).broken for _ in range(300)]
    # 4 % per doubling is too little by a hair: the interval says so only where it can.
    assert sum(point is not None and point.load == 8 for point in saturated) > 0.95 * 300
    assert scaling == [None] * 300
