"""One campaign over two sharing modes: the nodes are switched, the pods show it, and everything is put back."""

import threading

import pytest

from harness.analysis.report import mps_limits
from harness.backends.kubernetes.api import KubernetesApi
from harness.errors import BackendError
from harness.spec import ConditionSpec, MpsLimits, Sharing
from tests.integration.kubernetes.conftest import CONFIGS
from tests.support.cluster_driver import CONFIG_LABEL
from tests.support.cluster_trial import Switching
from tests.support.experiments import experiment, neighbour
from tests.support.processes import DRAINED_S, eventually

PLUGIN = {"whole": (1, False), "sliced-3": (3, False), "mps-2": (2, True)}


@pytest.fixture
def spec(server, lends):
    lends(PLUGIN)
    return server.spec(device_plugin_configs=CONFIGS, switch_timeout_s=120)


def label(driver):
    return driver.api.get(f"/api/v1/nodes/{driver.node}")["metadata"]["labels"].get(CONFIG_LABEL)


def test_a_campaign_switches_the_nodes_and_puts_back_what_a_killed_one_found(spec, driver, tmp_path, run_campaign):
    killed = Switching(spec)
    of_mps = experiment(sharing=Sharing.MPS, replicas=1)
    left = killed.deploy(of_mps, tmp_path, abort=threading.Event(), on_death=lambda _death: None)
    assert label(driver) == "mps-2"  # and nobody ends it

    _, manifests = run_campaign(Switching(spec), sharing=[Sharing.TIME_SLICING, Sharing.MPS], replicas=[2])

    assert len(manifests) == 2
    for manifest in manifests.values():
        under = manifest.experiment.sharing is Sharing.MPS
        assert {one["sharing"] for one in manifest.replicas} == {"mps (mps-2)" if under else "time-slicing (sliced-3)"}
        assert {bool(one["mps_pipe_directory"]) for one in manifest.replicas} == {under}
        assert mps_limits([manifest]) == (
            ["50% of the multiprocessors and 1/2 of the memory, from the device plugin"] if under else []
        )
    assert driver.heeded[:3] == ["whole", "mps-2", "sliced-3"]
    assert label(driver) is None
    assert eventually(lambda: driver.left() == [])
    left.stop(timeout_s=DRAINED_S)


def test_a_share_of_mps_reaches_the_pods_and_more_than_a_slice_has_is_refused(spec, driver, tmp_path, monkeypatch):
    monkeypatch.setattr(driver, "gpus", ["GPU-a"])
    beside = ConditionSpec(name="beside", neighbours=[neighbour("on_lent_gpu")])
    limited = experiment(
        factory="on_lent_gpu",
        sharing=Sharing.MPS,
        replicas=1,
        mps=MpsLimits(share="1/N", pinned_memory_gb=2),
        condition=beside,
    )
    backend = Switching(spec)
    deployment = backend.deploy(limited, tmp_path, abort=threading.Event(), on_death=lambda _death: None)

    seen = [*deployment.statuses(), *deployment.neighbour_statuses()["noisy"]]
    deployment.stop(timeout_s=DRAINED_S)
    asked = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=2000M"}
    assert [(one["mps_limits"], one["gpu_slices"]) for one in seen] == [(asked, 2)] * 2

    whole = limited.model_copy(update={"mps": MpsLimits()})
    with pytest.raises(BackendError, match=r"100% of a GPU's multiprocessors each, .* each of 2 slices of node .* 50%"):
        backend.deploy(whole, tmp_path / "more", abort=threading.Event(), on_death=lambda _death: None)
    assert list(backend.close()) == [f"node {driver.node} has the sharing mode again that was found."]


def test_pods_that_were_not_given_the_mode_are_refused(spec, driver, tmp_path):
    driver.plugin = PLUGIN | {"sliced-3": (3, True)}  # it lends as many slices as it should, by another mode
    backend = Switching(spec)

    with pytest.raises(BackendError, match=r"replica 0 \(pod .*\) runs under MPS, and it was to be under time-slicing"):
        backend.deploy(experiment(replicas=1), tmp_path, abort=threading.Event(), on_death=lambda _death: None)

    assert list(backend.close()) == [f"node {driver.node} has the sharing mode again that was found."]
    assert KubernetesApi(spec).list("/apis/apps/v1/namespaces/inference/deployments") == []
