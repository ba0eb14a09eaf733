"""Repeats until something is known, on real processes, through kill -9 and resume."""

import json

from tests.support import forked
from tests.support.campaigns import Campaign

CAMPAIGN = """
name: known
workloads:
  - {name: tiny, factory: "tests.support.tiny_workload:steady", warmup_requests: 1}
replicas: [1]
conditions:
  - {name: alone}
  - {name: slowed, neighbours: [{workload: {name: noisy, factory: "tests.support.tiny_workload:steady"}, replicas: 1}]}
repeats: {until_known: {compare: [throughput], within: 0.9, max: 4, budget: 10 min}}
timing: {step_s: 0.25, stabilise_s: 0, record_s: 1.5, cooldown_s: 0, ready_timeout_s: 120}
metrics: [throughput, total_count]
"""


def said(*words):
    done = forked.harness(*words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_killed_in_the_middle_of_a_block_it_goes_on_until_the_answer_is_there(tmp_path):
    campaign = Campaign(tmp_path, CAMPAIGN, options=())
    plan = said("plan", campaign.file)
    assert "At least 6 experiments" in plan
    assert "At most 8 experiments" in plan
    campaign.kill(campaign.started("record", "tiny_r1_time-slicing_slowed_rep2"))
    alone = campaign.path / "tiny_r1_time-slicing_alone_rep1" / "manifest.json"
    first = alone.stat().st_mtime_ns
    assert "Whole blocks of repeats: 1; questions: 1 open." in said("status", campaign.path)

    answer = json.loads(campaign.measured("--json").stdout)

    assert alone.stat().st_mtime_ns == first
    told = answer["until_known"]
    assert "slowed against alone: throughput is" in told[0]
    repeats = {name.rpartition("rep")[2] for name in answer["experiments"]}
    assert repeats in ({"1", "2", "3"}, {"1", "2", "3", "4"})
    campaign.verified()
    status = json.loads(said("status", campaign.path, "--json"))
    assert (status["done"], status["answers"]) == (len(status["experiments"]), told)
    page = (campaign.path / "report.md").read_text()
    assert told[0] in page
    assert "followed from the results" in page
