"""A recording that ends when its objective is decided: looks that share the error, and what they must not miss."""

import numpy as np
import pytest
from pydantic import ValidationError

from harness.analysis.client_result import SERVER, evaluate
from harness.analysis.objective import fewest_requests, look_times, share_interval
from harness.campaign.planners import LOG_LAG_S, StopRule
from harness.results.requests import Window
from harness.spec import CampaignSpec, SloSpec, StopWhenKnown, Timing, WorkloadSpec
from tests.support.experiments import experiment
from tests.unit.results.streams import write_answers

START_S, RECORD_S = 1000.0, 300.0
KNOWN = StopWhenKnown(metrics=["objective"], min_s=30)
CHAT = WorkloadSpec.model_validate(
    {"name": "llm", "server": {"command": ["serve", "{port}"], "protocol": "openai-chat"}}
)


def run(replicas=1, **limits):
    timing = {"step_s": 1, "record_s": RECORD_S, "stop_when_known": KNOWN}
    spec = experiment(replicas=replicas, workload=CHAT, timing=timing)
    return spec.model_copy(update={"slo": SloSpec(**limits)})


def recorded(folder, spec, *, ttft_ms=50.0, seconds=RECORD_S, replica=0):
    """Ten answers a second, each with its own time to the first token."""
    times_ms = np.broadcast_to(ttft_ms, round(10 * seconds)).astype(float)
    write_answers(folder, replica, START_S, seconds, times_ms, np.full(len(times_ms), 5.0))
    return spec


def ended_at(folder, spec):
    """Seconds recorded when the rule ends it, and the rule; None: it never does."""
    rule = StopRule(spec, KNOWN, folder, start_s=START_S)
    rows = spec.timing.rows
    return next((row - 1 for row in range(1, rows + 1) if rule(row)), None), rule


def test_looks_are_a_quarter_apart_from_the_shortest_recording_to_the_longest():
    times_s = look_times(run(ttft_p99_ms=60).timing)
    assert 30 <= times_s[0] < 30 * 1.25
    assert times_s[-1] == RECORD_S
    assert np.allclose(np.diff(np.log(times_s)), np.log(1.25))
    assert look_times(Timing(record_s=100, step_s=1)) == [100]


@pytest.mark.parametrize(("limit_ms", "outcome", "most_s"), [(60, "pass", 130), (40, "fail", 40)])
def test_it_ends_as_soon_as_the_objective_passes_or_fails(tmp_path, limit_ms, outcome, most_s):
    spec = recorded(tmp_path, run(ttft_p99_ms=limit_ms))

    seconds, rule = ended_at(tmp_path, spec)

    assert 30 <= seconds <= most_s
    record = rule.record(rows=seconds + 1, planned_rows=spec.timing.rows)
    assert (record["known"], record["objective"], record["recorded_s"]) == (True, outcome, seconds)
    window = Window(START_S, START_S + seconds)
    slo = evaluate(spec, tmp_path, window, statuses=[], provenance=None).files[SERVER]["slo"]
    assert (slo["outcome"], slo["looks"]) == (outcome, len(look_times(spec.timing)))


def test_what_cannot_be_told_is_recorded_to_the_end(tmp_path):
    ttft_ms = np.where(np.arange(10 * round(RECORD_S)) % 100, 50.0, 70.0)  # 1%, as may be
    spec = recorded(tmp_path, run(ttft_p99_ms=60), ttft_ms=ttft_ms)

    seconds, rule = ended_at(tmp_path, spec)

    assert seconds is None
    record = rule.record(rows=spec.timing.rows, planned_rows=spec.timing.rows)
    assert (record["known"], record["objective"]) == (False, "inconclusive")


def test_while_a_replica_answers_nothing_no_recording_ends(tmp_path):
    spec = recorded(tmp_path, run(replicas=2, ttft_p99_ms=60))
    recorded(tmp_path, spec, seconds=25.0, replica=1)

    assert ended_at(tmp_path, spec)[0] is None


def test_all_looks_together_err_in_one_of_twenty_at_most():
    """At the limit itself, where neither outcome is true."""
    chance, times_s = np.random.default_rng(0), look_times(run(ttft_p99_ms=60).timing)
    wrong = 0
    for _ in range(300):
        missed = chance.random(round(50 * RECORD_S)) < 0.01
        for time_s in times_s:
            number = round(50 * time_s)
            at_ns = np.round(1e9 * (START_S + np.arange(number) / 50)).astype(np.int64)
            window = Window(START_S, START_S + time_s)
            low, high = share_interval(missed[:number], at_ns, window, looks=len(times_s))
            if not low <= 0.01 <= high:
                wrong += 1
                break
    assert wrong <= 0.05 * 300
    assert fewest_requests(0.01, len(times_s)) > 2 * fewest_requests(0.01)
    assert fewest_requests(0.01) == 381


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"timing": {"stop_when_known": {"metrics": ["objective"]}}}, "give the `slo`"),
        (
            {
                "timing": {"stop_when_known": {"metrics": ["objective"]}},
                "slo": {"latency_p99_ms": 5},
                "backend": "kubernetes",
                "kubernetes": {},
            },
            "on a cluster",
        ),
        ({"repeats": {"until_known": {"compare": ["objective"]}}}, "decided within each run"),
    ],
)
def test_an_objective_that_nobody_can_wait_for_is_refused(changes, why):
    with pytest.raises(ValidationError, match=why):
        CampaignSpec.model_validate({"name": "n", "workloads": [{"name": "resnet50"}], "replicas": [1], **changes})


def test_the_last_look_is_a_second_behind(tmp_path):
    spec = recorded(tmp_path, run(ttft_p99_ms=60))
    rule = StopRule(spec, KNOWN, tmp_path, start_s=START_S)
    first_s = look_times(spec.timing)[0]
    assert not rule.due(int(first_s))
    assert rule.due(int(first_s + LOG_LAG_S) + 2)
