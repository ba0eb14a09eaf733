"""Neighbours that crash and that take all memory, with real processes: the verdict says what became of whom."""

from harness.errors import ReasonCode
from harness.results.manifest import Status
from tests.support.campaigns import Campaign

CAMPAIGN = """
name: hostile
workloads:
  - {name: victim, factory: "tests.support.tiny_workload:steady"}
replicas: [1]
conditions:
  - name: beside-crash
    neighbours: [{workload: {name: crash, device: cpu, options: {after_s: 4}}}]
  - name: beside-memory-hog
    neighbours: [{workload: {name: memory-hog, device: cpu, options: {after_s: 0, limit_gb: 0.01, megabytes: 4}}}]
timing: {step_s: 0.5, stabilise_s: 0, record_s: 6, cooldown_s: 0}
metrics: [throughput, total_count, latency_p50]
"""


def test_the_verdict_says_who_survived_and_who_ran_out_of_memory(tmp_path):
    campaign = Campaign(tmp_path, CAMPAIGN)

    done = campaign.measured()

    campaign.verified()
    crash, hog = (campaign.manifest(f"victim_r1_time-slicing_beside-{name}_rep1") for name in ("crash", "memory-hog"))
    [survived] = [each["message"] for each in crash.findings if each["code"] == ReasonCode.VICTIM_SURVIVED]
    assert survived.startswith("The victim survived, and served ")
    assert "replica 0 of the neighbour crash exited with 1; last lines: " in survived
    assert ReasonCode.NEIGHBOUR_DIED not in crash.verdict.codes
    [short] = [each["message"] for each in hog.findings if each["code"] == ReasonCode.OUT_OF_MEMORY]
    assert "held at most; of the measured replicas none" in short
    assert hog.neighbours["memory-hog"][0]["held_bytes_most"] == 8 * 2**20
    assert {crash.verdict.status, hog.verdict.status} <= {Status.VALID, Status.DEGRADED}
    assert survived in done.stderr + done.stdout
