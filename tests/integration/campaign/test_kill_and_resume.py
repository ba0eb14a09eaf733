"""kill -9 at any moment, resume, and every experiment is done exactly once with no process left over.

KILLS=10 scripts/pytest tests/integration/campaign/test_kill_and_resume.py: fewer at random times.
"""

import os
import random
import signal
import subprocess
import sys
import time

import pytest

from tests.support.campaigns import Campaign
from tests.support.processes import eventually

pytestmark = pytest.mark.long

KILLS = int(os.environ.get("KILLS", "50"))
STEPS = ["cool-down", "preflight", "deploy", "stabilise", "record", "clean-up", "export", "verify"]
CAMPAIGN = """
name: kill
workloads:
  - name: tiny
    factory: tests.support.tiny_workload:steady
    warmup_requests: 1
replicas: [1, 2]
repeats: {repeats}
timing: {{step_s: 0.1, stabilise_s: 0.2, record_s: 0.4, cooldown_s: 0.1}}
metrics: [latency_p50, throughput, cpu_usage]
"""


def campaign_of(folder, repeats):
    return Campaign(folder, CAMPAIGN.format(repeats=repeats))


def as_a_user(campaign, *before) -> subprocess.Popen:
    """Begin the campaign, or go on with it, by a Python of its own."""
    command = [*before, sys.executable, "-m", "harness", *map(str, campaign.words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(campaign, experiments):
    """Go on to the end: everything is done, once, and nothing runs on."""
    campaign.run()
    assert campaign.verified().experiments == experiments


def done(campaign) -> dict[str, int]:
    """Finished experiments, and when each was finished."""
    if not campaign.begun:
        return {}
    return {path.parent.name: path.stat().st_mtime_ns for path in campaign.path.glob("*/manifest.json")}


def test_killed_in_each_step(tmp_path):
    campaign = campaign_of(tmp_path, repeats=2)
    before = {}
    for step in STEPS:
        campaign.kill(campaign.started(step))
        assert before.items() <= done(campaign).items(), "a finished experiment was touched"
        before = done(campaign)
    assert before

    finish(campaign, experiments=4)

    assert before.items() <= done(campaign).items()


@pytest.mark.timeout(120 + 15 * KILLS)
def test_killed_at_random_times(tmp_path):
    """Each kill hits the run that went on from the one before; every sixth comes after one more experiment was finished."""
    moments = random.Random(20260101)
    campaign, before = campaign_of(tmp_path / "0", repeats=2), {}
    for number in range(KILLS):
        command = campaign.start()
        if number % 6 == 5:
            assert eventually(lambda before=before, campaign=campaign: len(done(campaign)) > len(before))
        time.sleep(moments.uniform(0.0, 1.5))
        campaign.kill(command)
        assert before.items() <= done(campaign).items(), "a finished experiment was touched"
        before = done(campaign)
        if len(before) == 4 or number == KILLS - 1:
            finish(campaign, experiments=4)
            assert before.items() <= done(campaign).items()
            attempts = {event["experiment"] for event in campaign.events() if event["event"] == "step-begins"}
            assert len(attempts) == 4
            campaign, before = campaign_of(tmp_path / str(number + 1), repeats=2), {}


@pytest.mark.parametrize(
    ("before", "number", "code"),
    [((), signal.SIGINT, 130), (("nohup",), signal.SIGHUP, 0)],
    ids=["interrupted", "hang-up under nohup"],
)
def test_a_signal_ends_a_campaign_that_then_says_how_to_go_on_but_no_hang_up_one_under_nohup(
    tmp_path, before, number, code
):
    campaign = campaign_of(tmp_path, repeats=1)
    process = as_a_user(campaign, *before)
    assert eventually(lambda: campaign.begun and campaign.in_step("record"))

    process.send_signal(number)
    said, _ = process.communicate(timeout=280)

    campaign.check(process.returncode, said, code=code)
    assert (f"harness resume {campaign.path}" in said) is bool(code)
    assert ("results: " in said) is not bool(code)
    assert campaign.processes() == []
    if code:
        finish(campaign, experiments=2)
