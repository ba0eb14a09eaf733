"""Sessions as a replica asks them of a server of known times, and what is kept of them."""

import itertools

import numpy as np
import pytest

from harness.results import requests
from harness.results.manifest import read_manifest
from harness.spec import WorkloadSpec
from harness.traffic.records import OK
from tests.support.campaigns import Campaign
from tests.support.fake_streaming_server import Server, running
from tests.support.generated_load import wait_for_requests

pytestmark = pytest.mark.long

FIRST_S, GAP_S, DELAY_S = 0.02, 0.01, 0.05
TIMING = {"step_s": 0.5, "stabilise_s": 1, "record_s": 2, "cooldown_s": 0, "ready_timeout_s": 60}


def sessions(url, **server):
    lengths = {"input_tokens": {"mean": 4}, "output_tokens": {"mean": 3}}
    given = {"sessions": {"turns": 3, "delay_s": DELAY_S}}
    asked = {"url": [url], "protocol": "openai-chat", "model": "m", "rate": 20, "requests": lengths | given, **server}
    return WorkloadSpec.model_validate({"name": "llm", "warmup_requests": 1, "server": asked})


def test_each_turn_comes_a_delay_after_the_answer_before_it(deploy, tmp_path):
    with running(Server(first_s=FIRST_S, gap_s=GAP_S)) as (url,):
        deployment = deploy(workload=sessions(url), replicas=1, timing={"ready_timeout_s": 60})
        wait_for_requests(60, tmp_path / "replicas" / "replica-0" / "requests.bin")
        assert deployment.stop(timeout_s=60) == []
    rows = np.sort(requests.read(tmp_path).rows, order=["session", "turn"])
    assert set(rows["status"]) == {OK}
    whole = [list(group) for _, group in itertools.groupby(rows, key=lambda row: row["session"])]
    whole = [session for session in whole if len(session) == 3]
    assert len(whole) >= 10
    for before, turn in itertools.chain.from_iterable(map(itertools.pairwise, whole)):
        assert (before["turn"] + 1, turn["intended_ns"] - before["end_ns"]) == (turn["turn"], DELAY_S * 1e9)
        assert turn["sent_ns"] >= turn["intended_ns"]
        assert turn["first_token_ns"] - turn["sent_ns"] >= FIRST_S * 0.9e9


def test_the_manifest_keeps_what_the_file_held(tmp_path):
    file = tmp_path / "trace.csv"
    file.write_text("Timestamp,Request tokens,Response tokens\n5,3,2\n6,3,0\n15,4,2\n")
    with running(Server()) as (url,):
        workload = sessions(url, rate=None, requests={}, trace={"file": str(file), "factor": 100})
        spec = {"name": "traced", "workloads": [workload.model_dump(mode="json")], "replicas": [1], "timing": TIMING}
        campaign = Campaign(tmp_path, spec)
        campaign.run()
    (folder,) = [path.parent for path in campaign.results.glob("*/*/manifest.json")]
    load = read_manifest(folder).loads["llm"]
    assert load == load | {
        "file": "trace.csv", "requests": 2, "dropped": {"failed": 1}, "unit": "s", "length_s": 0.1, "mean_per_s": 10.0,
    }  # fmt: skip
    assert len(load["sha256"]) == 64
