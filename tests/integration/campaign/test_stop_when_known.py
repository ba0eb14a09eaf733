"""Recordings of real replicas that end when enough is known, or do not."""

import json

import pytest

from harness.analysis.campaign import analyse
from harness.analysis.narrative import remarks
from harness.results.layout import metric_files
from tests.support.campaigns import BUSY, Campaign

CAMPAIGN = """
name: known
workloads:
  - {{name: tiny, factory: "tests.support.tiny_workload:steady", warmup_requests: 1}}
replicas: [{replicas}]
timing: {{step_s: {step_s}, stabilise_s: 0.2, record_s: {record_s}, cooldown_s: 0, stop_when_known: {{{known}}}}}
metrics: [latency_p50, throughput, total_count]
"""


def run(folder, *, step_s=0.1, **values):
    campaign = Campaign(folder, CAMPAIGN.format(step_s=step_s, **values))
    campaign.measured()
    [(name, manifest)] = campaign.manifests().items()
    return campaign, campaign.path / name, manifest


def test_a_recording_ends_on_the_grid_when_its_figures_are_known(tmp_path):
    campaign, experiment, manifest = run(
        tmp_path,
        step_s=0.25,
        replicas=2,
        record_s=60,
        known="min_s: 1, relative_half_width: 0.6, metrics: [throughput, latency_p50_exact]",
    )

    assert set(manifest.verdict.codes) <= BUSY, manifest.verdict
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
        series = {line.split(",")[2] for line in file.read_text().splitlines()[1:]}
        assert len(file.read_text().splitlines()) == 1 + len(series) * manifest.rows
    campaign.verified()
    analysis = analyse(campaign.path)
    assert analysis.unfinished == []
    known = manifest.stopping["figures"]["throughput"]["figure"]
    assert analysis.cells[0].estimates["throughput"].mean == pytest.approx(known, rel=0.6)
    assert manifest.stopping["why"] in remarks(analysis.experiments[0])


def test_what_stays_unknown_is_recorded_to_the_end_and_says_what(tmp_path):
    _, experiment, manifest = run(tmp_path, replicas=1, record_s=2, known="min_s: 1, relative_half_width: 0.000001")

    assert manifest.rows == 21
    assert not manifest.stopping["known"]
    assert manifest.stopping["why"].startswith("Recorded to the end (2 s): throughput (")
    assert "0.0001%" in manifest.stopping["why"]
    assert (
        json.loads((experiment / "manifest.json").read_text())["stopping"]["figures"]["latency_p99_exact"]["high"]
        is None
    )


def test_a_recording_ends_when_its_objective_is_decided(tmp_path):
    with_objective = CAMPAIGN + "slo: {{latency_p50_ms: 60000, error_rate: 0.5}}\n"
    known = "min_s: 1, metrics: [objective]"
    campaign = Campaign(tmp_path, with_objective.format(step_s=0.25, replicas=1, record_s=60, known=known))
    campaign.measured()
    [(name, manifest)] = campaign.manifests().items()

    assert (manifest.stopping["known"], manifest.stopping["objective"]) == (True, "pass")
    assert manifest.stopping["recorded_s"] < 60
    slo = json.loads((campaign.path / name / "slo.json").read_text())["slo"]
    assert (slo["outcome"], slo["looks"]) == ("pass", 19)
