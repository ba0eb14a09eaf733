"""Servers that are started once for all loads of a sweep: counted, killed with the harness, and dead by themselves in the middle."""

import os
import signal
import sys
from itertools import groupby

import pytest

from tests.support.campaigns import Campaign
from tests.support.processes import eventually

pytestmark = pytest.mark.long

SERVER = {
    "command": [sys.executable, "-m", "tests.support.fake_streaming_server", "--port", "{port}", "--gap-s", "0.005"],
    "protocol": "openai-chat",
    "requests": {"output_tokens": {"mean": 4}},
}
CAMPAIGN = {
    "name": "loads",
    "workloads": [{"name": "llm", "warmup_requests": 1, "server": SERVER}],
    "sweep": {"concurrency": [4, 8, 16, 32], "per": "gpu", "one_start": True},
    "replicas": [2],
    "timing": {"step_s": 0.1, "stabilise_s": 0.2, "record_s": 1, "cooldown_s": 0},
    "limits": {"retries": 0},
    "metrics": ["throughput", "latency_p50"],
}


def starts(campaign):
    return [event for event in campaign.events() if event["event"] == "start-begins"]


def pids(manifest):
    return [replica["server_pid"] for replica in manifest.replicas]


def served(campaign):
    """The manifests in the order in which they were measured."""
    return sorted(campaign.manifests().values(), key=lambda manifest: manifest.start_s)


def test_three_repeats_of_four_loads_are_three_starts_of_each_server(tmp_path):
    campaign = Campaign(tmp_path, {**CAMPAIGN, "repeats": 3})

    campaign.run()

    assert campaign.verified().experiments == 12
    by_start = [list(group) for _, group in groupby(served(campaign), key=lambda manifest: manifest.start["name"])]
    assert [len(group) for group in by_start] == [4, 4, 4]
    for group, event in zip(by_start, starts(campaign), strict=True):
        assert [manifest.experiment_id for manifest in group] == event["experiments"] == group[0].start["order"]
        assert [manifest.start["place"] for manifest in group] == [1, 2, 3, 4]
        assert len({tuple(pids(manifest)) for manifest in group}) == 1, "the same processes"
        assert all(replica["load"]["idle"] for manifest in group[:-1] for replica in manifest.replicas)
    assert len({pid for group in by_start for pid in pids(group[0])}) == 6
    for manifest in campaign.manifests().values():
        asked = manifest.experiment.workload.server.concurrency
        assert asked == manifest.experiment.load.value / 2
        counted = sum(replica["requests"] for replica in manifest.replicas)
        folder = campaign.path / manifest.experiment_id
        assert manifest.files["requests.parquet"].rows > 0
        assert counted < 4 * manifest.files["requests.parquet"].rows, "of this load alone"
        assert (folder / "replicas" / "replica-1" / "server.log").read_text().startswith("Application startup")


def test_killed_in_the_middle_only_the_rest_is_run_again_in_a_new_start_that_says_so(tmp_path):
    campaign = Campaign(tmp_path, CAMPAIGN)
    command = campaign.start()
    assert eventually(lambda: campaign.begun and len(campaign.manifests()) == 2)
    [first] = starts(campaign)
    assert eventually(lambda: campaign.in_step("record", first["experiments"][2]))
    before = {name: manifest.digest for name, manifest in campaign.manifests().items()}

    campaign.kill(command)
    campaign.run()

    assert campaign.verified().experiments == 4
    manifests = campaign.manifests()
    assert before == {name: manifests[name].digest for name in before}
    assert set(before) == set(first["experiments"][:2])
    assert [event["experiments"] for event in starts(campaign)] == [first["experiments"], first["experiments"][2:]]
    for place, name in enumerate(first["experiments"][2:], start=1):
        told = manifests[name].start
        assert (told["name"][-6:], told["before"], told["place"]) == ("start2", first["start"], place)
        assert told["because"] == "the harness ended in the middle of it"


def test_a_server_that_dies_ends_its_start_and_the_rest_has_another_one(tmp_path):
    campaign = Campaign(tmp_path, {**CAMPAIGN, "limits": {"retries": 0, "on_replica_death": "retry"}})
    command = campaign.start()
    assert eventually(lambda: campaign.begun and starts(campaign))
    [first] = starts(campaign)
    assert eventually(lambda: campaign.in_step("record", first["experiments"][1]))
    done = campaign.manifests()[first["experiments"][0]]

    os.kill(pids(done)[1], signal.SIGKILL)
    said = command.end()

    assert command.returncode == 4, said
    manifests = campaign.manifests()
    assert manifests[first["experiments"][1]].verdict.status.value == "INVALID"
    assert campaign.verified().experiments == 4
    assert [event["experiments"] for event in starts(campaign)] == [first["experiments"], first["experiments"][2:]]
    rest = [manifests[name] for name in first["experiments"][2:]]
    assert all("replica 1" in manifest.start["because"] for manifest in rest)
    assert set(pids(rest[0])).isdisjoint(pids(done))

    campaign.run("--retry-invalid")
    assert campaign.manifests()[first["experiments"][1]].start["name"].endswith("start3")
