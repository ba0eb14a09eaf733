"""The load raised on real processes until something breaks, through kill -9 and resume."""

import json

import pytest

from harness.analysis.format import markdown
from harness.campaign.journal import read_events
from harness.campaign.verify import verify_campaign
from tests.support import forked
from tests.support.experiments import begun
from tests.support.processes import eventually, marked

pytestmark = [pytest.mark.integration, pytest.mark.long]

CAMPAIGN = """
name: stress
workloads:
  - {{name: tiny, factory: "tests.support.tiny_workload:{factory}", warmup_requests: 1, options: {options}}}
stress: {stress}
repeats: {repeats}
limits: {{retries: 0}}
timing: {{step_s: 0.25, stabilise_s: 0.2, record_s: 1.5, cooldown_s: 0, ready_timeout_s: 60}}
metrics: [latency_p50, throughput, total_count]
"""
SHARED = {"factory": "shared_device", "options": "{service_s: 0.01}", "repeats": 1}


def write(folder, **values):
    file = folder / "campaign.yaml"
    file.write_text(CAMPAIGN.format(**values))
    return ["stress", str(file), "--results", str(folder), "--force", "--json"]


def stress(folder, *, code=0, report=False, **values):
    done = forked.harness(*write(folder, **values), *([] if report else ["--no-report"]))
    assert done.returncode == code, done.stderr
    return next(folder.glob("stress-*")), json.loads(done.stdout)


def test_the_load_at_which_latency_breaks_is_found_reported_and_its_neighbour_measured_again(tmp_path):
    campaign, answer = stress(
        tmp_path,
        report=True,
        **SHARED | {"repeats": 2},
        stress="{most: 16, step: 3, latency_limit_ms: {p50: 60}, least_gain_percent: 0.001}",
    )

    (told,) = answer["stress"]
    assert "tiny under time-slicing breaks at 7 replicas (latency limit): p50 is 7" in told
    assert "The last good point is 4 replicas" in told
    assert "mean of 2 runs" in told
    assert list(answer["experiments"]) == [
        f"tiny_r{name}" for name in ("1_time-slicing_rep1", "4_time-slicing_rep1", "7_time-slicing_rep1", "4_time-slicing_rep2")
    ]  # fmt: skip
    assert verify_campaign(campaign).ok
    points = [
        event["experiment"] for event in read_events(campaign / "state.jsonl") if event["event"] == "stress-point"
    ]
    assert points == list(answer["experiments"])
    page = (campaign / "report.md").read_text()
    assert markdown(told) in page
    assert "plots/stress-tiny-time-slicing.png" in page
    assert (campaign / "plots" / "stress-tiny-time-slicing.png").stat().st_size > 5000


def test_the_memory_wall_is_an_answer_and_no_failure(tmp_path):
    _, answer = stress(
        tmp_path, factory="fills_memory", options="{room: 2}", repeats=1, stress="{most: 8, least_gain_percent: 0.001}"
    )

    assert "breaks at 4 replicas (memory wall)" in answer["stress"][0]
    assert "exited with 4" in answer["stress"][0]
    assert answer["experiments"]["tiny_r4_time-slicing_rep1"] == "INVALID"


def test_a_workload_that_never_lives_is_a_failure(tmp_path):
    _, answer = stress(tmp_path, code=4, factory="fills_memory", options="{room: 0}", repeats=1, stress="{most: 8}")

    assert "breaks at the first point, 1 replica" in answer["stress"][0]
    assert "There is no good point." in answer["stress"][0]


def test_killed_in_the_middle_it_goes_on_with_the_same_points(tmp_path):
    words = write(tmp_path, **SHARED, stress="{most: 8, latency_limit_ms: {p50: 35}, least_gain_percent: 0.001}")
    process = forked.commands().start(*words, "--no-report", log=tmp_path / "said")

    def folder():
        return next(tmp_path.glob("stress-*"), None)

    assert eventually(lambda: begun(folder(), "record", "tiny_r2_time-slicing_rep1"))
    process.kill()
    identity = json.loads((folder() / "campaign.json").read_text())["campaign_id"]
    assert eventually(lambda: not marked(identity))
    first = (folder() / "tiny_r1_time-slicing_rep1" / "manifest.json").stat().st_mtime_ns

    done = forked.harness("resume", folder(), "--no-report", "--json")

    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert list(answer["experiments"]) == [f"tiny_r{replicas}_time-slicing_rep1" for replicas in (1, 2, 4)]
    assert "breaks at 4 replicas (latency limit)" in answer["stress"][0]
    assert (folder() / "tiny_r1_time-slicing_rep1" / "manifest.json").stat().st_mtime_ns == first
    events = list(read_events(folder() / "state.jsonl"))
    assert [event["experiment"] for event in events if event["event"] == "stress-point"] == list(answer["experiments"])
    found = json.loads(forked.harness("status", folder(), "--json").stdout)
    assert (found["done"], len(found["experiments"])) == (3, 3)


def test_a_file_without_the_section_is_refused(tmp_path):
    done = forked.harness("stress", "smoke", "--results", tmp_path)

    assert done.returncode == 2
    assert "smoke has no section `stress`" in done.stderr
