"""Recordings of real replicas that end when enough is known, or do not."""

import json

import pytest

from harness.analysis.campaign import analyse
from harness.analysis.narrative import remarks
from harness.campaign.verify import verify_campaign
from harness.results.layout import metric_files
from harness.results.manifest import read_manifest
from tests.support import forked

pytestmark = pytest.mark.integration

CAMPAIGN = """
name: known
workloads:
  - {{name: tiny, factory: "tests.support.tiny_workload:steady", warmup_requests: 1}}
replicas: [{replicas}]
timing: {{step_s: {step_s}, stabilise_s: 0.2, record_s: {record_s}, cooldown_s: 0, stop_when_known: {{{known}}}}}
metrics: [latency_p50, throughput, total_count]
"""


def run(folder, *, step_s=0.1, **values):
    file = folder / "campaign.yaml"
    file.write_text(CAMPAIGN.format(step_s=step_s, **values))
    done = forked.harness("run", file, "--results", folder, "--no-report")
    assert done.returncode == 0, done.stderr
    campaign = next(folder.glob("known-*"))
    return campaign, next(path for path in campaign.glob("tiny_*") if path.is_dir())


def test_a_recording_ends_on_the_grid_when_its_figures_are_known(tmp_path):
    campaign, experiment = run(
        tmp_path,
        step_s=0.25,
        replicas=2,
        record_s=60,
        known="min_s: 1, relative_half_width: 0.6, metrics: [throughput, latency_p50_exact]",
    )

    manifest = read_manifest(experiment)
    # Other tests may take the CPU for a step or more; nothing else may be wrong.
    starved = ("Throughput was not steady", "no answer in time", "no replica could be read")
    assert [reason for reason in manifest.verdict.reasons if not any(sign in reason for sign in starved)] == []
    # What infer() returned counts, whatever batch the campaign names.
    assert all(each["requests"] == each["inputs"] > 0 for each in manifest.replicas)
    assert manifest.inputs_per_request == 1
    assert manifest.stopping["known"]
    assert manifest.stopping["planned_s"] == 60
    assert 2 <= manifest.stopping["recorded_s"] < 60
    assert manifest.stopping["recorded_s"] == pytest.approx((manifest.rows - 1) * 0.25)
    assert manifest.stopping["figures"]["throughput"]["low"] > 0
    assert f"Recorded {manifest.stopping['recorded_s']:g} of at most 60 s" in manifest.stopping["why"]
    for file in metric_files(experiment).values():
        series = {line.split(",")[2] for line in file.path.read_text().splitlines()[1:]}
        assert len(file.path.read_text().splitlines()) == 1 + len(series) * manifest.rows
    assert verify_campaign(campaign).ok
    analysis = analyse(campaign)
    assert analysis.unfinished == []
    known = manifest.stopping["figures"]["throughput"]["figure"]
    assert analysis.cells[0].estimates["throughput"].mean == pytest.approx(known, rel=0.6)
    assert manifest.stopping["why"] in remarks(analysis.experiments[0])


def test_what_stays_unknown_is_recorded_to_the_end_and_says_what(tmp_path):
    _, experiment = run(tmp_path, replicas=1, record_s=2, known="min_s: 1, relative_half_width: 0.000001")

    manifest = read_manifest(experiment)
    assert manifest.rows == 21
    assert not manifest.stopping["known"]
    assert manifest.stopping["why"].startswith("Recorded to the end (2 s): throughput (")
    assert "0.0001 %" in manifest.stopping["why"]
    assert (
        json.loads((experiment / "manifest.json").read_text())["stopping"]["figures"]["latency_p99_exact"]["high"]
        is None
    )
