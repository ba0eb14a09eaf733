"""kill -9 of the harness, of a server, of the process that asks it or of that one's guard: nothing is left, and `resume` finishes.

SERVER_KILLS=50 scripts/pytest tests/integration/campaign/test_kill_servers.py: so many of each.
"""

import os
import random
import socket
import sys

import psutil
import pytest

from harness import supervisor
from tests.support.campaigns import Campaign
from tests.support.processes import eventually

pytestmark = pytest.mark.long

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
        campaign = Campaign(tmp_path / str(number), CAMPAIGN)
        command = campaign.started(chance.choice(STEPS) if victim == "harness" else "record")
        processes = campaign.processes()
        ports = ports_of(processes)
        if victim == "harness":
            command.kill()
        else:
            for each in chance.sample(processes, len(processes)):
                if runs(each, victim):
                    each.kill()
                    break
            command.end()
        assert eventually(lambda campaign=campaign: not campaign.processes()), campaign.processes()
        assert eventually(lambda ports=ports: not any(map(is_taken, ports))), ports

        campaign.run("--retry-invalid")
        assert campaign.verified().experiments == 1
