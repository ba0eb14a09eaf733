"""Scenario http in a cluster: requests come from pods of it, whose logs become one."""

import pytest

from harness.campaign.folder import create
from harness.campaign.runner import CampaignRunner
from harness.campaign.verify import verify_campaign
from harness.config import WorkloadSpec
from harness.results.files import read_object
from harness.results.manifest import read_manifest
from harness.traffic.scenario_result import FILE_NAME
from tests.support.cluster_trial import Trial
from tests.support.experiments import FAST, TINY, campaign
from tests.support.fake_metrics import FakeGpus

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore:Unverified HTTPS request"),  # the test's API server signs for itself
]
RATE = 40


@pytest.fixture
def http(server, tmp_path):
    """A campaign of two replicas, and its folder."""
    scenario = {"kind": "http", "rate": RATE, "arrivals": "constant"}
    workload = WorkloadSpec(name="tiny", factory=f"{TINY}:steady", warmup_requests=1, scenario=scenario)
    spec = server.spec(load_generators=2)
    made = campaign(
        backend="kubernetes",
        kubernetes=spec.model_dump(),
        workloads=[workload],
        replicas=[2],
        timing=FAST | {"record_s": 2, "stabilise_s": 0.5},
        metrics=["throughput"],
    )
    return create(tmp_path / "results", made, text="text", source="shipped:test"), spec


def test_every_request_of_every_shard_is_in_the_result(http, driver):
    folder, spec = http
    assert CampaignRunner(folder, Trial(spec), gpus=FakeGpus).run().statuses

    (experiment,) = folder.path.glob("tiny_r2_*")
    manifest, result = read_manifest(experiment), read_object(experiment / FILE_NAME)
    assert result["results"]["intended_per_s"] == 2 * RATE
    assert result["results"]["offered_per_s"] == pytest.approx(2 * RATE, rel=0.25), "of both shards"
    assert set(result["results"]["statuses"]) == {"200"}
    assert all(replica["scenario"]["served"] for replica in manifest.replicas)
    assert verify_campaign(folder.path).ok
    assert driver.left() == [], "the pods that sent are gone, too"


def test_a_pod_that_cannot_send_any_more_is_said(http, driver, monkeypatch):
    folder, spec = http
    trial = Trial(spec)
    begin = trial.load_pods

    def begin_and_lose_one(*given, **named):
        load = begin(*given, **named)
        driver.kill(load._pods.replicas[0].pod)
        return load

    monkeypatch.setattr(trial, "load_pods", begin_and_lose_one)
    CampaignRunner(folder, trial, gpus=FakeGpus).run()

    manifest = read_manifest(next(folder.path.glob("tiny_r2_*")))
    assert any(
        "could not be fetched" in reason for reason in manifest.steps["clean-up"].reasons + manifest.verdict.reasons
    )
    result = read_object(next(folder.path.glob("tiny_r2_*")) / FILE_NAME)
    assert result["validity"]["valid"] is False
    assert result["results"]["offered_per_s"] == pytest.approx(RATE, rel=0.25), "of the other"
