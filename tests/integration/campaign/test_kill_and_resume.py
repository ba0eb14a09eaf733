"""kill -9 at any moment, resume, and every experiment is done exactly once with no process left over."""

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.campaign.journal import read_events
from harness.campaign.verify import verify_campaign
from tests.support import forked
from tests.support.experiments import begun
from tests.support.processes import eventually, marked

pytestmark = [pytest.mark.integration, pytest.mark.long]

STEPS = ["preflight", "deploy", "stabilise", "record", "clean-up", "export", "verify", "cool-down"]
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


class Campaign:
    """A campaign in a folder, driven only by commands and signals."""

    def __init__(self, folder: Path, repeats: int) -> None:
        self.file = folder / "campaign.yaml"
        self.file.write_text(CAMPAIGN.format(repeats=repeats))
        self.results = folder / "results"
        self.experiments = 2 * repeats

    @property
    def path(self) -> Path | None:
        return next(self.results.glob("kill-*"), None) if self.results.is_dir() else None

    @property
    def state(self) -> Path:
        return self.path / "state.jsonl"

    @property
    def identity(self) -> str:
        return json.loads((self.path / "campaign.json").read_text())["campaign_id"]

    @property
    def words(self) -> list[str]:
        """Of the command that begins the campaign, or goes on with it."""
        if self.path:
            return ["resume", str(self.path), "--no-report"]
        return ["run", str(self.file), "--results", str(self.results), "--force", "--no-report"]

    def fork(self) -> forked.Command:
        """Begin the campaign, or go on with it, without waiting for Python to start."""
        return forked.commands().start(*self.words, log=self.file.with_name("said"))

    def start(self) -> subprocess.Popen:
        """Begin the campaign, or go on with it, as a user does."""
        return subprocess.Popen(
            [sys.executable, "-m", "harness", *self.words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def finish(self) -> None:
        """Resume to the end and check that everything is done, once, and nothing runs on."""
        self.check(process := self.fork(), process.end())

    def check(self, process: forked.Command | subprocess.Popen, said: str) -> None:
        """What has ended was the rest of the campaign: everything is done, once, and nothing runs on."""
        assert process.returncode == 0, said
        outcome = verify_campaign(self.path)
        assert outcome.ok, outcome.problems
        assert outcome.experiments == self.experiments
        assert marked(self.identity) == []

    def done(self) -> dict[str, int]:
        """Finished experiments, and when each was finished."""
        return (
            {path.parent.name: path.stat().st_mtime_ns for path in self.path.glob("*/manifest.json")}
            if self.path
            else {}
        )


@pytest.mark.parametrize("step", STEPS)
def test_killed_in_a_step(tmp_path, step):
    campaign = Campaign(tmp_path, repeats=1)
    process = campaign.fork()
    second = "tiny_r2_time-slicing_rep1"
    assert eventually(lambda: begun(campaign.path, step, second)), process.end(1)
    process.kill()
    assert eventually(lambda: not marked(campaign.identity)), marked(campaign.identity)
    done = campaign.done()
    assert "tiny_r1_time-slicing_rep1" in done

    campaign.finish()

    assert done.items() <= campaign.done().items()


@pytest.mark.timeout(900)
def test_killed_at_fifty_random_times(tmp_path):
    """Each kill hits the run that went on from the one before."""
    campaign = Campaign(tmp_path, repeats=12)
    moments = random.Random(20260101)
    done = {}
    for _ in range(50):
        process = campaign.fork()
        time.sleep(moments.uniform(0.0, 1.5))
        process.kill()
        if campaign.path is None:
            continue
        assert eventually(lambda: not marked(campaign.identity)), marked(campaign.identity)
        assert done.items() <= campaign.done().items(), "a finished experiment was touched"
        done = campaign.done()

    campaign.finish()

    assert done.items() <= campaign.done().items()
    attempts = {event["experiment"] for event in read_events(campaign.state) if event["event"] == "step-begins"}
    assert len(attempts) == campaign.experiments


def test_an_interrupted_campaign_says_how_to_go_on(tmp_path):
    campaign = Campaign(tmp_path, repeats=3)
    process = campaign.start()
    assert eventually(lambda: begun(campaign.path, "record"))

    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=280)

    assert process.returncode == 130, said
    assert f"harness resume {campaign.path}" in said
    assert marked(campaign.identity) == []
    campaign.check(again := campaign.start(), again.communicate(timeout=280)[0])


def test_a_hang_up_does_not_end_a_campaign_under_nohup(tmp_path):
    campaign = Campaign(tmp_path, repeats=1)
    command = ["nohup", sys.executable, "-m", "harness", "run", str(campaign.file), "--results", str(campaign.results)]
    process = subprocess.Popen(
        [*command, "--force", "--no-report"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert eventually(lambda: begun(campaign.path, "record"))

    process.send_signal(signal.SIGHUP)
    said, _ = process.communicate(timeout=280)

    # 4: ended as well, with experiments that a busy machine made INVALID.
    assert process.returncode in {0, 4}, said
    assert "results: " in said
