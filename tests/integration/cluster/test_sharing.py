"""The GPU stage and its switch, as playbooks, against a real API server; kubelet and plugin are played by the test."""

import json
from collections.abc import Iterator

import pytest
import yaml

from tests.integration.cluster.api_server import MISSING, WHY_NOT, Cluster
from tests.integration.cluster.gpu_node import NAMESPACE, NODE, GpuNode
from tests.integration.cluster.playbook import Run, play, possible
from tests.unit.ansible.tree import TEMPLATE_FILES, render

pytestmark = [
    pytest.mark.skipif(bool(MISSING), reason=WHY_NOT),
    pytest.mark.skipif(not possible(), reason="one folder cannot be laid over another here"),
]
GPUS = 2
MACHINE = {"node_gpu": "assumed", "device_plugin_gpus_assumed": GPUS, "device_plugin_timeout_s": 30}
HOLDER = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "holder", "namespace": "default"},
    "spec": {
        "containers": [
            {"name": "main", "image": "registry.example/image:1", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
        ]
    },
}


@pytest.fixture(scope="module")
def gpus(cluster: Cluster) -> Iterator[GpuNode]:
    assert "failed" not in cluster.apply(render(TEMPLATE_FILES["runtime-class.yaml.j2"]))
    with GpuNode(cluster, gpus=GPUS) as node:
        yield node


def switch(gpus: GpuNode, sharing: str, replicas: int = 10, **variables) -> Run:
    wanted = {"device_plugin_sharing": sharing, "device_plugin_replicas": replicas}
    return play(gpus.cluster, "playbooks/sharing.yml", **MACHINE | wanted | variables)


def config(gpus: GpuNode) -> dict:
    text = gpus.cluster.get("configmap", "device-plugin", "--namespace", NAMESPACE)["data"]["config.yaml"]
    return dict(yaml.safe_load(text))


def names(gpus: GpuNode, kind: str) -> set[str]:
    return {one["metadata"]["name"] for one in gpus.cluster.get(kind, "--namespace", NAMESPACE)["items"]}


@pytest.mark.timeout(600)
def test_every_way_of_sharing_is_reached_from_the_one_before(gpus):
    jobs = set()
    for sharing, replicas, advertised in (("time-slicing", 10, 20), ("mps", 4, 8), ("exclusive", 4, 2)):
        run = switch(gpus, sharing, replicas)
        assert run.status == 0, run.output
        assert (run.changed > 0, gpus.advertised()) == (True, str(advertised))
        daemons = {"device-plugin", *(["mps-control-daemon"] if sharing == "mps" else [])}
        assert names(gpus, "daemonsets") == daemons
        assert len(names(gpus, "jobs") - jobs) == len(names(gpus, "jobs")) == 1
        jobs |= names(gpus, "jobs")
    again = switch(gpus, "exclusive", 4)
    assert (again.status, again.changed) == (0, 0), again.output
    labels = gpus.cluster.get("node", NODE)["metadata"]["labels"]
    assert labels["nvidia.com/gpu.present"] == "true"
    assert "nvidia.com/mps.capable" not in labels
    assert gpus.errors == []


@pytest.mark.timeout(300)
def test_nobody_loses_a_gpu_unless_told(gpus):
    assert switch(gpus, "exclusive").status == 0
    gpus.create(HOLDER)
    try:
        same, refused = switch(gpus, "exclusive"), switch(gpus, "time-slicing")
        assert (same.status, same.changed) == (0, 0), same.output
        assert refused.status != 0
        assert "default/holder hold a GPU" in refused.output
        assert (gpus.advertised(), "sharing" in config(gpus)) == (str(GPUS), False)
        assert switch(gpus, "time-slicing", device_plugin_forced=True).status == 0
        assert gpus.advertised() == str(10 * GPUS)
    finally:
        gpus.cluster.kubectl("delete", "pod/holder", "--grace-period=0", "--force")


def test_the_labels_of_a_gpu_go_with_it_and_nobody_else_s_do(cluster):
    name, ours = "labelled", {"nvidia.com/gpu.present": "true"}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"theirs": "yes"}}}
    cluster.kubectl("create", "-f", "-", given=json.dumps(node))
    features = {
        "nvidia.com/gpu.product": "NVIDIA-H200",
        "nvidia.com/gpu.memory": "143771",
        "nvidia.com/mig.capable": "true",
    }

    def labels(told, resources=None):
        given = {name: {"nvidia.com/gpu": 1} if resources is None else resources}
        text = render(
            TEMPLATE_FILES["gpu/node-labels.yaml.j2"],
            gpu_nodes=given,
            gpu_features=told,
            device_plugin_sharing="exclusive",
        )
        changed = [cluster.apply(text)["changed"] for _ in range(2)]
        return changed, cluster.get("node", name)["metadata"]["labels"]

    assert labels({name: features}) == ([True, False], {"theirs": "yes", **ours, **features})
    assert labels({}) == ([True, False], {"theirs": "yes", **ours})  # lent by claims, or told by feature discovery
    assert labels({name: features}, {}) == ([True, False], {"theirs": "yes"})


def lend(gpus: GpuNode, state: str, *words: str, **variables) -> Run:
    wanted = {"dra_driver_state": state, "dra_driver_timeout_s": 30}
    return play(gpus.cluster, "playbooks/gpu.yml", *words, **MACHINE | wanted | variables)


@pytest.mark.timeout(900)
def test_the_dra_driver_takes_the_place_of_the_plugin_and_gives_it_back(gpus):
    first = switch(gpus, "mps", 4)
    assert first.status == 0, first.output
    gpus.create(HOLDER)
    refused = lend(gpus, "present")
    gpus.cluster.kubectl("delete", "pod/holder", "--grace-period=0", "--force")
    assert "default/holder hold a GPU" in refused.output
    assert names(gpus, "daemonsets") == {"device-plugin", "mps-control-daemon"}
    assert lend(gpus, "present", "--check").status == 0
    assert names(gpus, "daemonsets") == {"device-plugin", "mps-control-daemon"}

    run, again = lend(gpus, "present"), lend(gpus, "present")
    assert (run.status, run.changed > 0) == (0, True), run.output
    assert (again.status, again.changed) == (0, 0), again.output
    assert (names(gpus, "daemonsets"), gpus.advertised()) == ({"dra-driver"}, "0")
    (job,) = gpus.cluster.get("jobs", "--namespace", NAMESPACE)["items"]
    assert job["spec"]["template"]["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] == job["metadata"]["name"]
    assert "nvidia.com/mps.capable" not in gpus.cluster.get("node", NODE)["metadata"]["labels"]
    switched = switch(gpus, "mps", dra_driver_state="present")
    assert "claims say how a GPU is shared" in switched.output

    claim_of_a_pod(gpus)
    held = lend(gpus, "absent")
    gpus.cluster.kubectl("delete", "resourceclaim/held")
    assert "Pods hold a GPU by the claims default/held" in held.output
    back = lend(gpus, "absent", device_plugin_sharing="time-slicing")
    assert back.status == 0, back.output
    assert (names(gpus, "daemonsets"), gpus.advertised()) == ({"device-plugin"}, str(10 * GPUS))
    assert gpus.cluster.get("deviceclasses")["items"] == gpus.cluster.get("resourceslices")["items"] == []
    assert gpus.errors == []


def claim_of_a_pod(gpus: GpuNode) -> None:
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}
    head = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "held", "namespace": "default"},
    }
    gpus.create({**head, "spec": {"devices": {"requests": [request]}}})
    given = {"request": "gpu", "driver": "gpu.nvidia.com", "pool": NODE, "device": "gpu-0"}
    reserved = [{"resource": "pods", "name": "holder", "uid": "8ba3"}]
    status = {"allocation": {"devices": {"results": [given]}}, "reservedFor": reserved}
    patch = ["--type=merge", "--subresource=status", "--patch", json.dumps({"status": status})]
    gpus.cluster.kubectl("patch", "resourceclaim/held", *patch)


@pytest.mark.timeout(300)
def test_gpus_that_somebody_else_lends_are_not_lent_twice(gpus):
    labels = {"app": "theirs"}
    container = {"name": "plugin", "image": "nvcr.io/nvidia/k8s-device-plugin:v0.17.0"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    spec = {"selector": {"matchLabels": labels}, "template": template}
    metadata = {"name": "theirs", "namespace": "default"}
    gpus.create({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": metadata, "spec": spec})
    try:
        run = lend(gpus, "present")
    finally:
        gpus.cluster.kubectl("delete", "daemonset/theirs", "--namespace", "default")
    assert "default/theirs manages GPUs as slices, and was not installed by these playbooks" in run.output
    assert "dra-driver" not in names(gpus, "daemonsets")


@pytest.mark.timeout(300)
def test_a_plugin_that_does_not_come_is_explained(gpus):
    gpus.broken = "Back-off pulling image"
    try:
        run = switch(gpus, "time-slicing", 3, device_plugin_timeout_s=5)
    finally:
        gpus.broken = ""
        gpus.cluster.kubectl(
            "delete", "pod/device-plugin-x", "-n", NAMESPACE, "--grace-period=0", "--force", check=False
        )
    assert run.status != 0
    assert "node controlplane: it advertises nvidia.com/gpu: 0 and should advertise nvidia.com/gpu: 6" in run.output
    assert "pod device-plugin-x Pending device-plugin: ImagePullBackOff: Back-off pulling image" in run.output


@pytest.mark.timeout(300)
def test_a_kernel_that_failed_is_tried_again(gpus):
    gpus.faulty = True
    try:
        failed = switch(gpus, "mps", 5)
    finally:
        gpus.faulty = False
    assert failed.status != 0
    assert "it failed: Job has reached the specified backoff limit" in failed.output
    assert switch(gpus, "mps", 5).status == 0
    (job,) = gpus.cluster.get("jobs", "--namespace", NAMESPACE)["items"]
    assert job["status"]["succeeded"] == 1


@pytest.mark.timeout(300)
def test_check_mode_changes_nothing_and_nonsense_is_refused(gpus):
    before = config(gpus)
    checked = play(gpus.cluster, "playbooks/gpu.yml", "--check", **MACHINE, device_plugin_sharing="mps")
    assert checked.status == 0, checked.output
    nonsense = switch(gpus, "mig")
    assert 'device_plugin_sharing is "mig"; it has to be one of exclusive, time-slicing, mps.' in nonsense.output
    assert "at least 2 slices" in switch(gpus, "mps", 1).output
    assert config(gpus) == before
