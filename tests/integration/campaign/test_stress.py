"""The load raised on real processes until something breaks, through kill -9 and resume."""

import json

import pytest

from harness.analysis.format import markdown
from tests.support import forked
from tests.support.campaigns import Campaign

pytestmark = pytest.mark.long

CAMPAIGN = """
name: stress
workloads:
  - {{name: tiny, factory: "tests.support.tiny_workload:{factory}", warmup_requests: 1, options: {options}}}
stress: {stress}
repeats: {repeats}
limits: {{retries: {retries}}}
timing: {{step_s: 0.25, stabilise_s: 0.2, record_s: 1.5, cooldown_s: 0, ready_timeout_s: 60}}
metrics: [latency_p50, throughput, total_count]
"""
SHARED = {"factory": "shared_device", "options": "{service_s: 0.03}", "repeats": 1, "retries": 3}
"""So long a request that a busy machine, which is late to wake who sleeps, adds little to it."""


def campaign_of(folder, *, report=False, **values):
    options = ["--json"] if report else ["--json", "--no-report"]
    return Campaign(folder, CAMPAIGN.format(**values), options=options)


def points(campaign):
    return [event["experiment"] for event in campaign.events() if event["event"] == "stress-point"]


def test_the_load_at_which_latency_breaks_is_found_reported_and_its_neighbour_measured_again(tmp_path):
    campaign = campaign_of(
        tmp_path,
        report=True,
        **SHARED | {"repeats": 2},
        stress="{most: 16, step: 3, latency_limit_ms: {p50: 180}, least_gain_percent: 0.001}",
    )

    answer = json.loads(campaign.run().stdout)

    (told,) = answer["stress"]
    assert "tiny on the CPU breaks at 7 replicas (latency limit): p50 is " in told
    assert "The last good point is 4 replicas" in told
    assert "mean of 2 runs" in told
    assert list(answer["experiments"]) == [
        f"tiny_r{name}" for name in ("1_time-slicing_rep1", "4_time-slicing_rep1", "7_time-slicing_rep1", "4_time-slicing_rep2")
    ]  # fmt: skip
    campaign.verified()
    assert points(campaign) == list(answer["experiments"])
    page = (campaign.path / "report.md").read_text()
    assert markdown(told) in page
    assert "plots/stress-tiny-on-the-CPU.png" in page
    assert (campaign.path / "plots" / "stress-tiny-on-the-CPU.png").stat().st_size > 5000


@pytest.mark.parametrize(
    ("room", "code", "said", "invalid"),
    [
        (2, 0, ["breaks at 4 replicas (memory wall)", "exited with 4"], "tiny_r4_time-slicing_rep1"),
        (0, 4, ["breaks at the first point, 1 replica", "There is no good point."], "tiny_r1_time-slicing_rep1"),
    ],
    ids=["an answer", "never lives"],
)
def test_the_memory_wall_is_an_answer_and_no_failure_unless_nothing_ever_lives(tmp_path, room, code, said, invalid):
    stress = "{most: 8, least_gain_percent: 0.001}"
    campaign = campaign_of(
        tmp_path, factory="fills_memory", options=f"{{room: {room}}}", repeats=1, retries=0, stress=stress
    )

    answer = json.loads(campaign.run(code=code).stdout)

    assert all(words in answer["stress"][0] for words in said), answer
    assert answer["experiments"][invalid] == "INVALID"


def test_killed_in_the_middle_it_goes_on_with_the_same_points(tmp_path):
    stress = "{most: 8, latency_limit_ms: {p50: 100}, least_gain_percent: 0.001}"
    campaign = campaign_of(tmp_path, **SHARED, stress=stress)
    campaign.kill(campaign.started("record", "tiny_r2_time-slicing_rep1"))
    first = (campaign.path / "tiny_r1_time-slicing_rep1" / "manifest.json").stat().st_mtime_ns

    answer = json.loads(campaign.run().stdout)

    assert list(answer["experiments"]) == [f"tiny_r{replicas}_time-slicing_rep1" for replicas in (1, 2, 4)]
    assert "breaks at 4 replicas (latency limit)" in answer["stress"][0]
    assert (campaign.path / "tiny_r1_time-slicing_rep1" / "manifest.json").stat().st_mtime_ns == first
    assert points(campaign) == list(answer["experiments"])
    found = json.loads(forked.harness("status", campaign.path, "--json").stdout)
    assert (found["done"], len(found["experiments"])) == (3, 3)
