"""The rate at which servers with a planted limit break their objective, found by real processes and halved up to a precision."""

import json
import sys

import pytest

from harness.spec import StressSpec
from tests.support.campaigns import Campaign

pytestmark = pytest.mark.long

ROOM, SERVICE_S = 16, 0.2
CAPACITY = ROOM / SERVICE_S
"""Requests per second that a server has room for; all others are refused with 429."""
FAKE = [sys.executable, "-m", "tests.support.fake_streaming_server", "--port", "{port}", "--room", str(ROOM)]
SERVER = {
    "command": [*FAKE, "--first-s", str(SERVICE_S)],
    "protocol": "openai-chat",
    "requests": {"output_tokens": {"mean": 1}},
    "rate": 1,
    "arrivals": "constant",
}
CAMPAIGN = {
    "name": "fits",
    "workloads": [{"name": "llm", "warmup_requests": 1, "server": SERVER}],
    "replicas": [2],
    "slo": {"error_rate": 0.3},
    "stress": {"load": "rate", "first": 8, "most": 256, "factor": 8, "precision": 1, "price_per_gpu_hour": 3.6},
    "timing": {"step_s": 0.5, "stabilise_s": 0.5, "record_s": 4, "cooldown_s": 0},
    "metrics": ["throughput", "output_tokens_per_second"],
}


def test_the_highest_goodput_of_servers_with_a_planted_limit_is_found_and_told_everywhere(tmp_path):
    campaign = Campaign(tmp_path, CAMPAIGN, options=["--json"])

    answer = json.loads(campaign.run().stdout)

    (best,) = answer["goodput"]
    loads = StressSpec.model_validate(CAMPAIGN["stress"], strict=False).grid()
    assert best["rate_each"] in [load for load in loads if load < 256], (
        "a busy machine may hold less, and none holds 256"
    )
    assert (best["workload"], best["sharing"], best["servers"]) == ("llm", "time-slicing", 2)
    assert best["goodput_per_s"]["mean"] < 2 * CAPACITY * 1.1
    assert best["limited_by"] in {"objective", "no more throughput"}
    assert best["cost_per_million_tokens"]["mean"] == pytest.approx(
        3.6e6 / 3600 / best["goodput_per_s"]["mean"], rel=0.3
    )
    assert any("llm-rate-64_" in name for name in answer["experiments"])
    assert len(answer["stress"]) == 2, answer["stress"]
    ladder, overall = answer["stress"]
    assert ladder.startswith("llm on the CPU breaks at")
    assert overall.startswith("llm: the highest goodput within the objective is ")
    assert "of 2 servers on the CPU" in overall
    campaign.verified()
    assert json.loads((campaign.path / "summary.json").read_text())["goodput"] == answer["goodput"]
    for page in ("report.md", "report.html"):
        assert "Highest goodput" in (campaign.path / page).read_text()
        assert overall in (campaign.path / page).read_text()
