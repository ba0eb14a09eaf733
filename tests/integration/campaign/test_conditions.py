"""A campaign of conditions with real processes: neighbours that fight for a device, kills, resume, and the answer."""

import json
import os
import signal

from harness.analysis.campaign import analyse
from harness.analysis.questions.condition_overhead import interference
from harness.analysis.statistics import Outcome
from harness.errors import ReasonCode
from tests.support.campaigns import Campaign

CAMPAIGN = """
name: crowd
workloads:
  - {{name: victim, factory: "tests.support.tiny_workload:crowded", options: {{device: {device}}}}}
replicas: [1]
repeats: 3
order: random
conditions:
  - name: alone
  - name: crowded
    neighbours:
      - workload: {{name: noisy, factory: "tests.support.tiny_workload:crowded", options: {{device: {device}}}}}
        replicas: 3
timing: {{step_s: 0.2, stabilise_s: 0, record_s: 1.2, cooldown_s: 0}}
metrics: [throughput, total_count, latency_p50]
"""


def test_a_crowded_device_is_a_fail_whoever_is_killed_on_the_way(tmp_path):
    campaign = Campaign(tmp_path, CAMPAIGN.format(device=tmp_path / "device"))
    campaign.kill(campaign.started("record", "crowded"))

    second = campaign.started("record", "crowded")
    bereft = campaign.events()[-1]["experiment"]
    place = max(campaign.path.glob(f"attempts/{bereft}-*/neighbours/noisy/replicas/replica-2/replica.json"))
    os.kill(json.loads(place.read_text())["pid"], signal.SIGKILL)
    campaign.check(second.wait(), campaign.log.read_text())

    verdict = campaign.manifest(bereft).verdict
    assert ReasonCode.NEIGHBOUR_DIED in verdict.codes
    assert any("replica 2 of the neighbour noisy was killed by signal 9" in reason for reason in verdict.reasons)
    campaign.measured("--retry-invalid")
    campaign.verified()
    found = interference(analyse(campaign.path))
    [by_measure] = found.overheads.values()
    assert by_measure["throughput"].outcome is Outcome.FAIL
    assert sorted(by_measure["throughput"].kept) == [1, 2, 3]
    assert by_measure["throughput"].percent.mean > 20
    [noisy] = found.neighbours
    assert noisy.estimates["throughput"].mean > 0
