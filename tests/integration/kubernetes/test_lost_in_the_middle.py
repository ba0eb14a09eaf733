"""What changes while a campaign runs on a cluster: said by name, nothing measured under a false one, and the nodes put back."""

import pytest

from harness.backends.kubernetes import collect
from harness.campaign.journal import read_events
from harness.errors import ReasonCode
from harness.metrics.quality import Severity
from harness.results.manifest import Status
from harness.sharing.node import CAMPAIGN_LABEL
from harness.spec import Sharing
from tests.integration.kubernetes.conftest import CONFIGS, Server
from tests.support.cluster_driver import CONFIG_LABEL, GPU
from tests.support.cluster_trial import Switching
from tests.support.experiments import experiment
from tests.support.fake_cluster import FakeCluster, Review
from tests.support.processes import DRAINED_S, eventually

OTHERS = "/api/v1/namespaces/others/pods"
PLUGIN = {"whole": (1, False), "sliced-3": (3, False), "mps-2": (2, True)}


@pytest.fixture
def cluster():
    with FakeCluster() as cluster:
        yield cluster


@pytest.fixture
def server(cluster, tmp_path):
    """The fake one alone: it is told what to refuse, and when."""
    kubeconfig = cluster.write_kubeconfig(tmp_path / "kubeconfig")
    return Server("fake", kubeconfig, kubeconfig)


@pytest.fixture
def through(server, lends, cluster):
    lends(PLUGIN)
    yield Switching(server.spec(device_plugin_configs=CONFIGS, switch_timeout_s=60))
    cluster.denied.clear()
    cluster.before = lambda _verb, _target: None


def after_the_first_experiment(cluster, change):
    """Have ``change`` made once, when the replicas of the first experiment are ended."""
    changes = [change]

    def before(verb, target):
        if (verb, target.resource) == ("delete", "deployments") and changes:
            changes.pop()()

    cluster.before = before


def label(driver):
    return driver.api.get(f"/api/v1/nodes/{driver.node}")["metadata"]["labels"].get(CONFIG_LABEL)


def heard(through, monkeypatch):
    """What the backend says at its end."""
    said = []
    close = through.close
    monkeypatch.setattr(through, "close", lambda: [*(said.extend(sentences := close()) or sentences)])
    return said


def test_a_right_that_is_taken_away_costs_the_modes_that_need_it_and_tells_how_to_put_the_nodes_back(
    through, cluster, driver, run_campaign, monkeypatch
):
    said = heard(through, monkeypatch)
    after_the_first_experiment(cluster, lambda: cluster.denied.add(Review("patch", "nodes")))

    _, manifests = run_campaign(
        through,
        sharing=[Sharing.TIME_SLICING, Sharing.MPS],
        replicas=[2],
        limits={"retries": 0},
        invalid=["tiny_r2_mps_rep1"],
    )

    sliced, mps = manifests["tiny_r2_time-slicing_rep1"], manifests["tiny_r2_mps_rep1"]
    assert {one["sharing"] for one in sliced.replicas} == {"time-slicing (sliced-3)"}
    assert mps.verdict.status is Status.INVALID
    assert 'cannot patch resource "nodes"' in " ".join(mps.verdict.reasons)
    assert mps.replicas == []
    assert label(driver) == "sliced-3"
    [sentence] = said
    assert f"kubectl label --overwrite node {driver.node} nvidia.com/device-plugin.config-" in sentence


def test_a_label_that_somebody_sets_between_two_experiments_is_told_and_put_back(
    through, cluster, driver, run_campaign, monkeypatch
):
    told, said = [], heard(through, monkeypatch)
    by_hand = {"metadata": {"labels": {CONFIG_LABEL: "whole"}}}
    after_the_first_experiment(cluster, lambda: driver.api.patch(f"/api/v1/nodes/{driver.node}", by_hand))
    switch = through._sharing.switch
    monkeypatch.setattr(
        type(through._sharing),
        "switch",
        lambda _self, api, of, abort, _notice: switch(api, of, abort, told.append),
    )

    folder, manifests = run_campaign(through, sharing=[Sharing.TIME_SLICING], replicas=[2], repeats=2)

    assert [{one["sharing"] for one in made.replicas} for made in manifests.values()] == [
        {"time-slicing (sliced-3)"}
    ] * 2
    switched = [told.pop(0), told.pop()]
    assert all(sentence.startswith("switched the nodes to sliced-3 in ") for sentence in switched)
    written = [event for event in read_events(folder.path / "state.jsonl") if event["event"] == "switched"]
    for number, manifest in enumerate(manifests.values()):
        assert manifest.switch.items() <= written[number].items()
        assert f"{manifest.switch['seconds']:.1f} s" in switched[number]
        assert 0 <= manifest.switch["plugin_seconds"] <= manifest.switch["seconds"]
        moments = [manifest.switch[f"{moment}_at"] for moment in ("begun", "written", "shown", "accepted")]
        assert moments == sorted(moments)
    assert told == [
        f"another user has set {CONFIG_LABEL}=whole on node {driver.node} since this campaign did: it is put back at the end."
    ]
    assert said == [f"node {driver.node} has the sharing mode again that was found."]
    assert label(driver) == "whole"


def test_a_plugin_that_starts_anew_while_replicas_run_costs_nothing(deploy, driver, deaths):
    deployment, _ = deploy(experiment(replicas=2))
    lent, driver.withdrawn = driver.withdrawn, driver.slices
    driver.report()  # the kubelet says 0 until the plugin is back
    assert eventually(lambda: lends(deployment) == 0)
    driver.withdrawn = lent
    driver.report()
    assert eventually(lambda: lends(deployment) == driver.slices)

    assert list(deployment.stop(timeout_s=DRAINED_S)) == []
    assert deaths == []


def lends(deployment):
    [node] = deployment._monitor._nodes.objects
    return int(node["status"]["allocatable"][GPU])


@pytest.mark.parametrize("gone", [False, True], ids=["it stays", "it has ended"])
def test_a_pod_of_somebody_else_that_comes_onto_the_gpu_is_named(deploy, driver, deaths, gone):
    driver.api.create(OTHERS, pod(driver, "before"))
    deployment, folder = deploy(experiment(replicas=1))
    driver.api.create(OTHERS, pod(driver, "trainer"))
    driver.api.create(OTHERS, pod(driver, "web", resources={}))
    driver.api.create(OTHERS, pod(driver, "ours", campaign="c0ffee"))
    if gone:
        driver.api.patch(f"{OTHERS}/trainer/status", {"status": {"phase": "Succeeded"}})

    sentences = deployment.stop(timeout_s=DRAINED_S)

    for name in ("before", "trainer", "web", "ours"):
        driver.api.delete(f"{OTHERS}/{name}", grace_s=0)
    [finding] = deployment.others_on_gpus(folder / "telemetry.csv")
    assert (finding.severity, finding.code) == (Severity.DEGRADED, ReasonCode.GPU_SHARED)
    assert finding.message == (
        f"the pod others/trainer came onto a GPU of node {driver.node} while replicas ran: whatever it did there was measured, too."
    )
    assert sentences == deaths == []


@pytest.mark.parametrize(
    ("last", "named"),
    [({}, True), ({"gpu_reserved_most_bytes": 900 * 2**20}, False), ({"gpu_reserved_most_bytes": None}, False)],
    ids=["it is not ours", "it is ours", "nobody tells"],
)
def test_memory_that_is_not_the_replicas_is_told_with_who_came(deploy, driver, monkeypatch, last, named):
    ask, facts = collect.status, {"device": "cuda", "gpu_reserved_bytes": 2**27, "gpu_reserved_most_bytes": 2**27}
    monkeypatch.setattr(collect, "status", lambda *asked, **how: {**ask(*asked, **how), **facts})
    deployment, folder = deploy(experiment(replicas=1))
    driver.api.create(OTHERS, pod(driver, "by-its-image", resources={}))
    facts |= last
    deployment.statuses()
    deployment.stop(timeout_s=DRAINED_S)

    driver.api.delete(f"{OTHERS}/by-its-image", grace_s=0)
    used = [2738880512.0] * 9 + [3536846848.0] * 5
    rows = "".join(f"2026-11-28T19:21:{second},{second}.4,{value}\n" for second, value in enumerate(used))
    (folder / "telemetry.csv").write_text(f"timestamp,elapsed_s,gpu0_memory_bytes\n{rows}")
    found = deployment.others_on_gpus(folder / "telemetry.csv")
    assert [finding.code for finding in found] == [ReasonCode.GPU_SHARED] * named
    for finding in found:
        assert "gpu-0 held 761 MiB that are not the replicas' from second 9 " in finding.message
        assert "others/by-its-image" in finding.message


def pod(driver, name, *, resources=None, campaign=""):
    limits = {GPU: "1"} if resources is None else resources
    container = {"name": "main", "image": "registry.example/other:1", "resources": {"limits": limits}}
    metadata = {"name": name, "labels": {CAMPAIGN_LABEL: campaign} if campaign else {}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"nodeName": driver.node, "containers": [container]},
    }


def test_a_driver_that_the_labels_do_not_know_is_named_and_kept(deploy, driver, monkeypatch):
    labels = {"nvidia.com/cuda.driver-version.full": "570.86.15"}
    driver.api.patch(f"/api/v1/nodes/{driver.node}", {"metadata": {"labels": labels}})
    ask = collect.status
    gpu = {"device_uuid": "GPU-a", "gpu": {"driver": "580.159.04"}}
    monkeypatch.setattr(collect, "status", lambda *asked, **how: {**ask(*asked, **how), **gpu})

    deployment, _ = deploy(experiment(replicas=1))

    [status] = deployment.statuses()
    assert "say driver 570.86.15, and its GPU runs 580.159.04" in status["labels_denied"]
    assert deployment.provenance().gpus[0].driver == "580.159.04"
