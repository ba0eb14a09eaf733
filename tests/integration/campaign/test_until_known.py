"""Repeats until something is known, on real processes, through kill -9 and resume."""

import json
import subprocess
import sys

import pytest

from harness.campaign.verify import verify_campaign
from tests.support import forked
from tests.support.experiments import begun
from tests.support.processes import eventually, marked

pytestmark = pytest.mark.integration

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


def harness(*words):
    done = forked.harness(*words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_killed_in_the_middle_of_a_block_it_goes_on_until_the_answer_is_there(tmp_path):
    file = tmp_path / "campaign.yaml"
    file.write_text(CAMPAIGN)
    plan = harness("plan", str(file))
    assert "At least 6 experiments" in plan
    assert "At most 8 experiments" in plan
    run = ["run", str(file), "--results", str(tmp_path), "--force", "--no-report"]
    process = forked.commands().start(*run, log=tmp_path / "said")

    def folder():
        return next(tmp_path.glob("known-*"), None)

    assert eventually(lambda: begun(folder(), "record", "tiny_r1_time-slicing_slowed_rep2"))
    process.kill()
    identity = json.loads((folder() / "campaign.json").read_text())["campaign_id"]
    assert eventually(lambda: not marked(identity))
    first = (folder() / "tiny_r1_time-slicing_alone_rep1" / "manifest.json").stat().st_mtime_ns
    assert "Whole blocks of repeats: 1; questions: 1 open." in harness("status", str(folder()))

    answer = json.loads(harness("resume", str(folder()), "--json"))

    assert (folder() / "tiny_r1_time-slicing_alone_rep1" / "manifest.json").stat().st_mtime_ns == first
    told = answer["until_known"]
    assert "slowed against time-slicing alone: throughput is" in told[0]
    repeats = {name.rpartition("rep")[2] for name in answer["experiments"]}
    assert repeats in ({"1", "2", "3"}, {"1", "2", "3", "4"})
    assert verify_campaign(folder()).ok
    command = [sys.executable, "-m", "harness", "status", str(folder()), "--json"]
    status = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    assert (status["done"], status["answers"]) == (len(status["experiments"]), told)
    page = (folder() / "report.md").read_text()
    assert told[0] in page
    assert "followed from the results" in page
