"""Scenario http in a cluster: requests come from pods of it, whose logs become one."""

import numpy as np
import pytest

from harness.analysis.client_result import SCENARIO
from harness.backends.kubernetes import backend
from harness.campaign import events, experiment_run
from harness.campaign.folder import create
from harness.campaign.runner import CampaignRunner
from harness.campaign.verify import verify_campaign
from harness.errors import BackendError
from harness.metrics.prometheus.client import PrometheusServer
from harness.metrics.promql import PrometheusSource
from harness.results import layout, requests
from harness.results.files import read_object
from harness.results.manifest import read_manifest
from harness.spec import WorkloadSpec
from tests.support.cluster_trial import Trial
from tests.support.experiments import FAST, TINY, campaign
from tests.support.fake_metrics import FakeGpus
from tests.support.ports import free_port
from tests.support.processes import eventually

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


def test_every_request_of_every_shard_is_in_the_result_though_a_registry_was_away(http, driver, monkeypatch):
    folder, spec = http
    trial, said = Trial(spec), []
    begin = trial.load_pods
    monkeypatch.setattr(experiment_run, "WAIT_POLL_S", {"preflight": 0.0, "deploy": 0.0})

    def begin_without_registry(*given, **named):
        if not said:
            driver.pull = ("RegistryUnavailable", "no such host")
        return begin(*given, **named)

    def hear(event):
        if isinstance(event, events.Notice) and "away" in event.message:
            said.append(event.message)
            driver.pull = None

    monkeypatch.setattr(trial, "load_pods", begin_without_registry)
    assert CampaignRunner(folder, trial, gpus=FakeGpus, listener=hear).run().statuses

    (experiment,) = folder.path.glob("tiny_r2_*")
    waits, goes_on = said
    assert "waits up to 3600 s for what is away: replicas cannot start: RegistryUnavailable: no such host" in waits
    assert "goes on: what was away is back after 0 s." in goes_on
    assert list((folder.path / layout.ATTEMPTS).iterdir()) == []
    manifest, result = read_manifest(experiment), read_object(experiment / SCENARIO)
    assert result["results"]["intended_per_s"] == 2 * RATE
    # A busy machine sends less, and more than one shard.
    assert 1.1 * RATE < result["results"]["offered_per_s"] < 2.5 * RATE, "of both shards"
    assert result["results"]["statuses"]["200"] > 0
    assert all(replica["scenario"]["served"] for replica in manifest.replicas)
    assert verify_campaign(folder.path).ok
    assert driver.left() == [], "the pods that sent are gone, too"


@pytest.fixture
def probed(monkeypatch):
    """In place of the Prometheus that a canary is looked at with: what looks; returns whether each connection is closed."""
    closed = {}

    class Closing(PrometheusServer):
        def close(self):
            closed[id(self)] = True
            super().close()

    def connect(*_):
        made = Closing(f"http://127.0.0.1:{free_port()}")
        closed[id(made)] = False
        return made

    monkeypatch.setattr(backend.monitoring, "server", connect)
    monkeypatch.setattr(backend.monitoring, "origin", lambda *_: PrometheusSource("", "inference", ()))

    def probing(look):
        monkeypatch.setattr(backend.probe.Rehearsal, "run", lambda *_, **__: look())
        return closed

    return probing


def rehearsing(spec):
    trial = Trial(spec)
    trial.rehearse = lambda *given, **named: backend.KubernetesBackend.rehearse(trial, *given, **named)
    return trial


def test_the_canary_is_sent_requests_too(http, driver, probed):
    folder, spec = http
    asked = []

    def look():
        names = driver.names()
        [pod] = [name for name in names if not name.startswith("load-")]
        log = driver.folder / pod / layout.RAW_LATENCIES
        asked.append((len(names), eventually(lambda: log.exists() and log.stat().st_size > 0)))
        return []

    closed = probed(look)
    assert CampaignRunner(folder, rehearsing(spec), gpus=FakeGpus).run().statuses

    assert asked == [(2, True)], "one replica, and what asks it"
    assert closed
    assert all(closed.values()), "the connections to Prometheus, too"
    assert read_manifest(next(folder.path.glob("tiny_r2_*"))).attempt == 1
    assert driver.left() == []


@pytest.mark.parametrize("fails", ["load", "Prometheus"])
def test_a_canary_that_cannot_be_asked_or_looked_at_is_ended_with_what_asks_it(
    http, driver, probed, monkeypatch, fails
):
    folder, spec = http
    probed(lambda: pytest.fail("nothing looks at it"))
    trial = rehearsing(spec)

    def refuse(*_given, **_named):
        raise BackendError("that does not start.")

    monkeypatch.setattr(*((trial, "load_pods") if fails == "load" else (backend.monitoring, "server")), refuse)
    CampaignRunner(folder, trial, gpus=FakeGpus).run()

    manifest = read_manifest(next(folder.path.glob("tiny_r2_*")))
    assert manifest.verdict.reasons[0] == "preflight: that does not start."
    assert driver.left() == []


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
    result = read_object(next(folder.path.glob("tiny_r2_*")) / SCENARIO)
    assert result["validity"]["valid"] is False
    assert 0 < result["results"]["offered_per_s"] <= 1.25 * RATE, "of the other, which a busy machine starts late"
    log = requests.read(next(folder.path.glob("tiny_r2_*"))).rows
    assert np.diff(np.sort(log["intended_ns"])) == pytest.approx(1e9 / RATE, rel=0.001), "and of the other every one"
