"""A campaign of scenarios from file to verified results: LoadGen and HTTP replicas, held and unheld rates."""

import json

import pytest

from harness.analysis.client_result import read_scenarios
from harness.backends.local import LocalBackend
from harness.campaign.events import RowsRecorded
from harness.campaign.folder import create
from harness.campaign.runner import CampaignRunner
from harness.campaign.verify import verify_campaign
from harness.errors import ReasonCode
from harness.results.manifest import Status, read_manifest
from harness.spec import WorkloadSpec
from tests.support.campaigns import BUSY
from tests.support.experiments import FAST, TINY, campaign
from tests.support.processes import marked

pytestmark = pytest.mark.long


def workload(name, factory="steady", **wishes):
    return WorkloadSpec(name=name, factory=f"{TINY}:{factory}", warmup_requests=1, **wishes)


@pytest.fixture
def run(tmp_path):
    """Run a campaign of these workloads on real processes; returns its folder, and checks that nothing is left."""
    folders = []

    def run_campaign(*workloads, replicas=1, listener=None):
        spec = campaign(
            workloads=list(workloads),
            replicas=[replicas],
            timing=FAST | {"step_s": 0.25, "stabilise_s": 0.5, "record_s": 2.0},
            limits={"retries": 0},
        )
        folders.append(create(tmp_path / "results", spec, text="x", source="shipped:test"))
        CampaignRunner(
            folders[-1], LocalBackend(folders[-1].campaign_id), listener=listener or (lambda _event: None)
        ).run()
        return folders[-1].path

    yield run_campaign
    for folder in folders:
        assert marked(folder.campaign_id) == []


def manifests(folder):
    return {path.parent.name.partition("_")[0]: read_manifest(path.parent) for path in folder.glob("*/manifest.json")}


def test_http_and_loadgen_replicas_are_loaded_recorded_judged_and_verified(run):
    folder = run(
        workload("http", batch_size=4, scenario={"kind": "http", "rate": 80, "latency_limit_ms": 2000}),
        workload("server", scenario={"kind": "server", "rate": 80, "latency_limit_ms": 2000}),
        replicas=2,
    )

    assert verify_campaign(folder).ok
    found = {each["scenario"]: each for each in read_scenarios(folder)}
    codes = {
        name: {one["code"] for one in manifest.findings} | set(manifest.verdict.codes)
        for name, manifest in manifests(folder).items()
    }
    for kind, each in found.items():
        results = each["results"]
        assert results["intended_per_s"] == 160, kind
        assert 0 < results["achieved_per_s"] < 1.4 * 160, kind  # a busy machine achieves less
        assert results["latency_ms"]["p50"] >= results["service_ms"]["p50"] >= 2, kind
        assert results["limit_met"] or ReasonCode.LATENCY_LIMIT in codes[kind], kind
        assert each["gpu_name"] is None or each["gpu_memory_bytes"], kind
    assert found["http"]["results"]["statuses"]["200"] > 0
    assert found["server"]["loadgen"][0]["validity"] in {"VALID", "INVALID"}
    assert any("MLPerf's rules ask for 600" in reason for reason in found["server"]["validity"]["reasons"])

    for name, manifest in manifests(folder).items():
        assert set(manifest.verdict.codes) <= BUSY, manifest.verdict.reasons
        assert "scenario.json" in manifest.files
        assert "replicas/replica-1/services.bin" in manifest.files
        assert manifest.rows == 9, name
    assert "requests.parquet" in manifests(folder)["http"].files


def test_a_rate_that_no_server_can_hold_degrades_with_what_was_intended_and_answered(run):
    folder = run(
        workload("server", scenario={"kind": "server", "rate": 2000}),
        workload("http", scenario={"kind": "http", "rate": 2000, "max_queue": 8}),
    )

    for name, manifest in manifests(folder).items():
        assert ReasonCode.RATE_NOT_HELD in manifest.verdict.codes
        reasons = " ".join(manifest.verdict.reasons)
        assert "The rate cannot be held: " in reasons, name
        assert "answered" in reasons
    assert {each["validity"]["valid"] for each in read_scenarios(folder)} == {False}


def test_a_limit_below_one_service_time_ends_before_anything_is_recorded(run):
    folder = run(workload("hopeless", scenario={"kind": "http", "rate": 5, "latency_limit_ms": 1}))

    [manifest] = manifests(folder).values()
    assert manifest.verdict.status is Status.INVALID
    assert "latency_limit_ms 1 is below one service time" in manifest.verdict.reasons[0]
    assert not (folder / manifest.experiment_id / "scenario.json").exists()


def test_a_server_that_dies_is_said_and_its_load_ends(run, tmp_path):
    told = tmp_path / "told"

    def tell(event):
        if isinstance(event, RowsRecorded) and event.rows == 2:
            told.touch()

    dying = workload(
        "dying", "dies_when_told", scenario={"kind": "http", "rate": 50}, options={"told": str(told), "replica": 1}
    )
    folder = run(dying, replicas=2, listener=tell)

    [manifest] = manifests(folder).values()
    assert ReasonCode.REPLICA_DIED in manifest.verdict.codes
    assert any("replica 1 exited with 7" in reason for reason in manifest.verdict.reasons)
    scenario = json.loads((folder / manifest.experiment_id / "scenario.json").read_text())
    assert scenario["results"]["statuses"]["0"] > 0
    assert scenario["results"]["statuses"]["200"] > 0
