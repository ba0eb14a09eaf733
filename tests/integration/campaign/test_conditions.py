"""A campaign of conditions with real processes: neighbours that fight for a device, kills, resume, and the answer."""

import json
import os
import signal
from pathlib import Path

import pytest

from harness.analysis.campaign import analyse
from harness.analysis.contrasts.outcome import Outcome
from harness.analysis.questions.condition_overhead import interference
from harness.campaign.journal import read_events
from harness.campaign.verify import verify_campaign
from harness.results.manifest import Status, read_manifest
from tests.support import forked
from tests.support.processes import eventually, marked

pytestmark = pytest.mark.integration

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


@pytest.fixture
def results(tmp_path):
    (tmp_path / "crowd.yaml").write_text(CAMPAIGN.format(device=tmp_path / "device"))
    return tmp_path


def harness(results: Path, *words) -> forked.Command:
    return forked.commands().start(*words, "--no-report", log=results / "said")


def campaign_of(results: Path) -> Path | None:
    return next(results.glob("crowd-*"), None)


def recording(results: Path, *, after: int = 0) -> str | None:
    """The crowded experiment that is being recorded, in the events after the first ``after``."""
    folder = campaign_of(results)
    if folder is None:
        return None
    events = list(read_events(folder / "state.jsonl"))[after:]
    last = next((event for event in reversed(events) if event["event"] == "step-begins"), {})
    name = str(last.get("experiment", ""))
    return name if last.get("step") == "record" and "crowded" in name else None


def test_a_crowded_device_is_a_fail_whoever_is_killed_on_the_way(results):
    first = harness(results, "run", results / "crowd.yaml", "--results", results, "--force")
    assert eventually(lambda: recording(results)), first.end(1)
    first.kill()
    folder = campaign_of(results)
    identity = json.loads((folder / "campaign.json").read_text())["campaign_id"]
    assert eventually(lambda: not marked(identity)), "replicas or neighbours outlived the harness"

    known = len(list(read_events(folder / "state.jsonl")))
    second = harness(results, "resume", folder)
    assert eventually(lambda: recording(results, after=known)), second.end(1)
    bereft = recording(results, after=known)
    assert bereft is not None
    place = max(folder.glob(f"attempts/{bereft}-*/neighbours/noisy/replicas/replica-2/replica.json"))
    os.kill(json.loads(place.read_text())["pid"], signal.SIGKILL)
    said = second.end()

    assert second.returncode == 0, said
    assert verify_campaign(folder).ok
    verdict = read_manifest(folder / bereft).verdict
    assert verdict.status is Status.DEGRADED
    assert any("replica 2 of the neighbour noisy was killed by signal 9" in reason for reason in verdict.reasons)
    found = interference(analyse(folder))
    [by_measure] = found.overheads.values()
    assert by_measure["throughput"].outcome is Outcome.FAIL
    assert sorted(by_measure["throughput"].kept) == [1, 2, 3]
    assert by_measure["throughput"].percent.mean > 20
    [noisy] = found.neighbours
    assert noisy.estimates["throughput"].mean > 0
