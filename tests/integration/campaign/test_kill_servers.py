"""kill -9 of the harness, of a server, of the process that asks it or of that one's guard: nothing is left, and `resume` finishes.

SERVER_KILLS=50 scripts/pytest tests/integration/campaign/test_kill_servers.py: so many of each.
"""

import json
import os
import random
import socket
import sys

import psutil
import pytest

from harness import supervisor
from harness.campaign.verify import verify_campaign
from tests.support import forked
from tests.support.experiments import begun
from tests.support.processes import eventually, marked

pytestmark = [pytest.mark.integration, pytest.mark.long]

KILLS = int(os.environ.get("SERVER_KILLS", "1"))
STEPS = ["deploy", "stabilise", "record", "clean-up"]
SERVER = {
    "command": [sys.executable, "-m", "tests.support.fake_streaming_server", "--port", "{port}"],
    "env": {"CHILDREN": "1"},
    "protocol": "openai-chat",
    "requests": {"output_tokens": {"mean": 3}},
    "rate": 20,
}
CAMPAIGN = {
    "name": "kill",
    "workloads": [{"name": "llm", "warmup_requests": 1, "server": SERVER}],
    "replicas": [2],
    "timing": {"step_s": 0.1, "stabilise_s": 0.2, "record_s": 1, "cooldown_s": 0.1},
    "limits": {"on_replica_death": "retry", "retries": 0},
    "metrics": ["throughput", "latency_p50"],
}


class Campaign:
    """A campaign in a folder."""

    def __init__(self, folder):
        folder.mkdir()
        self.file, self.results = folder / "campaign.yaml", folder / "results"
        self.file.write_text(json.dumps(CAMPAIGN))

    @property
    def path(self):
        return next(self.results.glob("kill-*"), None) if self.results.is_dir() else None

    @property
    def words(self):
        """Of the command that begins it, or goes on with it."""
        if self.path:
            return ["resume", self.path, "--no-report", "--retry-invalid"]
        return ["run", self.file, "--results", self.results, "--force", "--no-report"]

    def processes(self):
        return marked(json.loads((self.path / "campaign.json").read_text())["campaign_id"])


def runs(process, what):
    """It is still there, and a module, or the guard, whose command goes on with what it guards."""
    try:
        words = process.cmdline()
    except psutil.Error:
        return False
    return what in words and (what == supervisor.__file__) == (supervisor.__file__ in words)


def ports_of(processes):
    found = set()
    for each in processes:
        try:
            found |= {one.laddr.port for one in each.net_connections("tcp") if one.status == psutil.CONN_LISTEN}
        except psutil.Error:
            continue  # it has just ended
    return found


def is_taken(port):
    with socket.socket() as asked:
        return asked.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.timeout(120 + 60 * KILLS)
@pytest.mark.parametrize(
    "victim",
    ["harness", "tests.support.fake_streaming_server", "harness.replica", supervisor.__file__],
    ids=["harness", "server", "load", "guard"],
)
def test_a_kill_leaves_nothing_and_resume_finishes(tmp_path, victim):
    chance = random.Random(1)
    for number in range(KILLS):
        campaign = Campaign(tmp_path / str(number))
        process = forked.commands().start(*campaign.words, log=tmp_path / "said")
        step = chance.choice(STEPS) if victim == "harness" else "record"
        assert eventually(lambda campaign=campaign, step=step: begun(campaign.path, step)), process.end()
        processes = campaign.processes()
        ports = ports_of(processes)
        if victim == "harness":
            process.kill()
        else:
            for each in chance.sample(processes, len(processes)):
                if runs(each, victim):
                    each.kill()
                    break
            process.end()
        assert eventually(lambda campaign=campaign: not campaign.processes()), campaign.processes()
        assert eventually(lambda ports=ports: not any(map(is_taken, ports))), ports

        process = forked.commands().start(*campaign.words, log=tmp_path / "said")
        said = process.end()
        assert process.returncode in {0, 4}, said  # 4: a busy machine made it INVALID
        outcome = verify_campaign(campaign.path)
        assert outcome.ok, outcome.problems
        assert outcome.experiments == 1
        assert campaign.processes() == []
