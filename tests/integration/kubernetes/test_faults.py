"""A campaign through an API server that fails all the time, restarts, or forgets: nothing is lost, nothing is left."""

import json
import re
import threading
import time

import pytest
import yaml

from harness.campaign.verify import verify_campaign
from harness.results import layout
from harness.results.requests import read
from harness.sharing.cluster import SWITCHED
from harness.spec import Sharing
from tests.integration.kubernetes.conftest import CONFIGS
from tests.support.cluster_driver import CONFIG_LABEL
from tests.support.cluster_trial import Switching
from tests.support.experiments import FAST, experiment
from tests.support.faulty_proxy import FaultyProxy
from tests.support.processes import DRAINED_S, eventually

pytestmark = pytest.mark.long
FAULTS = 500
PLUGIN = {"whole": (1, False), "sliced-3": (3, False), "mps-3": (3, True)}
LOST = re.compile(r"could not be fetched|replica \d+ (is gone|exited|was killed|ended)|by force|still there|API server")


@pytest.fixture
def proxy(server):
    config = yaml.safe_load(server.kubeconfig.read_text())
    upstream, token = config["clusters"][0]["cluster"]["server"], config["users"][0]["user"]["token"]
    with FaultyProxy(upstream, token) as faulty:
        yield faulty


@pytest.fixture
def through(server, proxy, tmp_path):
    """A backend that speaks through the proxy; a stall of 30 s against a timeout of 10 s, forty times as fast, pauses too."""
    config = proxy.write_kubeconfig(tmp_path / "faulty")
    spec = server.spec(
        kubeconfig=str(config),
        api_timeout_s=0.25,
        outage_s=200.0,
        pending_s=30.0,
        device_plugin_configs=CONFIGS,
        switch_timeout_s=300,
    )
    backend = Switching(spec)
    backend.api.longest_pause_s = 0.05
    return backend


def test_a_campaign_under_500_faults_loses_nothing_leaves_nothing_and_restores_the_mode(
    through, proxy, driver, lends, run_campaign
):
    lends(PLUGIN)
    proxy.faults, proxy.share, proxy.stall_s = FAULTS, 0.85, 0.75
    timing = {**FAST, "record_s": 1.0, "ready_timeout_s": 60, "drain_timeout_s": 30}

    folder, manifests = run_campaign(
        through,
        sharing=[Sharing.TIME_SLICING, Sharing.MPS],
        replicas=[2],
        repeats=3,
        timing=timing,
        metrics=["throughput", "latency_p50", "total_count"],
        limits={"retries": 0},
    )

    assert proxy.injected.total() == FAULTS, f"more experiments are needed: {proxy.injected}"
    assert len(proxy.injected) == 8, proxy.injected
    assert driver.heeded[1:5] == ["sliced-3", "mps-3", "sliced-3", "mps-3"]
    node = driver.api.get(f"/api/v1/nodes/{driver.node}")["metadata"]
    assert CONFIG_LABEL not in node["labels"]
    assert SWITCHED not in (node.get("annotations") or {})
    assert eventually(lambda: driver.heeded[-1] == "whole"), "the plugin's own daemon goes when it heeds the label"
    assert driver.left() == []
    assert verify_campaign(folder.path).ok
    for identity, manifest in manifests.items():
        under = manifest.experiment.sharing is Sharing.MPS
        assert {bool(one["mps_pipe_directory"]) for one in manifest.replicas} == {under}
        assert not [reason for reason in manifest.verdict.reasons if LOST.search(reason)], manifest.verdict
        table = read(folder.final_folder(identity))
        assert len(table.replicas) == len(manifest.replicas)
        assert all(len(table.of(replica)) > 100 for replica in table.replicas)


def test_an_api_server_that_is_away_while_a_replica_dies_hides_nothing(through, proxy, driver, lends, tmp_path):
    lends(PLUGIN)
    deaths = []
    deployment = through.deploy(experiment(replicas=2), tmp_path, abort=threading.Event(), on_death=deaths.append)
    victim = deployment.statuses()[0]["pod"]

    proxy.away.set()
    time.sleep(0.5)
    driver.kill(victim, reason="OOMKilled")
    time.sleep(1.5)
    assert deaths == []
    proxy.away.clear()
    assert eventually(lambda: deaths)
    assert [(death.replica, death.reason) for death in deaths] == [(0, "OOMKilled")]
    assert list(deployment.stop(timeout_s=DRAINED_S)) == []
    assert driver.left() == []
    assert json.loads((layout.replica_folder(tmp_path, 1) / "replica.json").read_text())["phase"] == "serving"
