"""Two servers of different models beside each other, each held to its own objective, and with the sweep of a load."""

import json
import sys

from harness.analysis.campaign import analyse
from harness.analysis.questions.condition_overhead import interference
from tests.support.campaigns import Campaign


def fake(gap_ms):
    command = [
        sys.executable,
        "-m",
        "tests.support.fake_streaming_server",
        "--port",
        "{port}",
        "--gap-s",
        str(gap_ms / 1e3),
    ]
    return {"command": command, "protocol": "openai-chat", "requests": {"output_tokens": {"mean": 8}}}


CAMPAIGN = {
    "name": "two",
    "workloads": [{"name": "fast", "warmup_requests": 1, "server": fake(2)}],
    "replicas": [1],
    "slo": {"tpot_p50_ms": 500, "error_rate": 0.5},
    "sweep": {"concurrency": [1, 3]},
    "conditions": [
        {"name": "alone"},
        {
            "name": "beside",
            "neighbours": [
                {"workload": {"name": "slow", "warmup_requests": 1, "server": fake(20)}, "slo": {"itl_p50_ms": 10}}
            ],
        },
    ],
    "timing": {"step_s": 0.5, "stabilise_s": 0.5, "record_s": 4, "cooldown_s": 0},
    "metrics": ["throughput", "total_count"],
}  # fmt: skip


def test_each_of_two_models_on_one_machine_has_its_own_objective(tmp_path):
    campaign = Campaign(tmp_path, CAMPAIGN)
    campaign.measured()
    campaign.verified()

    judged = {}
    for name in campaign.manifests():
        slo = json.loads((campaign.path / name / "server.json").read_text())["slo"]
        judged[name] = {part: values["outcome"] for part, values in slo["parts"].items()}
        assert slo["outcome"] == ("fail" if "beside" in name else "pass")
    own = {"tpot_p50_ms": "pass", "error_rate": "pass"}
    assert judged == {
        f"fast-c{load}_r1_time-slicing_{where}_rep1": own | more
        for load in (1, 3)
        for where, more in (("alone", {}), ("beside", {"slow/itl_p50_ms": "fail"}))
    }
    analysis = analyse(campaign.path)
    served = {
        cell.load.value: cell.estimates["throughput"].mean for cell in analysis.cells if cell.condition == "alone"
    }
    assert served[3] > 2 * served[1], "three resident requests"
    assert [(cell.workload, cell.estimates["throughput"].mean > 0) for cell in interference(analysis).neighbours] == [
        ("slow", True),
        ("slow", True),
    ]
