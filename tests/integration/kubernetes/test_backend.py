"""The Kubernetes backend on an API server: what it makes, sees, says, fetches and leaves behind."""

import json
import re
import signal
import threading
import time
from pathlib import Path

import psutil
import pytest

from harness.backends.kubernetes import deployment as deployment_module
from harness.backends.kubernetes import objects, watch
from harness.backends.kubernetes.api import KubernetesApi
from harness.backends.kubernetes.backend import KubernetesBackend
from harness.errors import AwayError, BackendError, ImageError, ReasonCode, ReplicaDiedError
from harness.metrics.quality import Severity
from harness.results import layout
from harness.results.requests import LATENCY, records_of
from harness.sharing.node import withdrawn as lends_less
from harness.spec import ConditionSpec, LayerSpec, ScenarioSpec
from tests.support.cluster_driver import GPU, ClusterDriver
from tests.support.experiments import experiment
from tests.support.processes import DRAINED_S, eventually, wait_for

SEEN_WITHIN_S = 60.0
NO_IMAGE = ("ImagePullBackOff", 'Back-off pulling image "registry.example/workload:1": manifest unknown')
NO_REGISTRY = ("RegistryUnavailable", "pinging container registry registry.example: no such host")


def test_replicas_are_deployed_asked_and_ended_and_nothing_is_left(deploy, driver):
    deployment, folder = deploy(experiment(replicas=3))

    statuses = deployment.statuses()
    assert [status["replica"] for status in statuses] == [0, 1, 2]
    assert {status["phase"] for status in statuses} == {"serving"}
    assert [status["pod"] for status in statuses] == driver.names()
    assert {status["node"] for status in statuses} == {"node-a"}
    assert statuses[0]["image_id"].startswith("registry.example/workload@sha256:")
    assert deployment.provenance().host.hostname == "node-a"
    assert deployment.provenance().host.memory_bytes == 16 * 2**30

    assert list(deployment.stop(timeout_s=DRAINED_S)) == []
    assert list(deployment.stop(timeout_s=DRAINED_S)) == []
    assert driver.left() == []
    assert list(deployment.deaths) == []
    for index in range(3):
        requests = records_of(layout.replica_folder(folder, index) / layout.RAW_LATENCIES, LATENCY)
        assert len(requests) > 1
        assert (layout.replica_folder(folder, index) / "replica.json").is_file()
        assert "serving" in layout.replica_log(folder, index).read_text()


def test_what_replicas_reserve_and_may_use_is_in_their_pods_and_in_what_the_manifest_keeps(deploy, server):
    given = {"reserve": {"cpu": "100m"}, "limit": {"cpu": "2", "memory": "4Gi"}}
    deployment, _ = deploy(experiment(replicas=2), by=KubernetesBackend(server.spec(**given), "c0ffee"))

    completed = {"cpu": "100m", **({"memory": "4Gi"} if server.kind == "real" else {})}  # a limit is a request
    for status in deployment.statuses():
        assert (status["reserve"], status["limit"]) == (completed, given["limit"])
        assert status["qos_class"] == ("Burstable" if server.kind == "real" else "")
    assert list(deployment.stop(timeout_s=DRAINED_S)) == []


def test_what_loadgen_says_of_its_test_is_known_before_the_end_and_its_service_times_are_fetched(deploy):
    scenario = {"scenario": ScenarioSpec(kind="single-stream")}
    deployment, folder = deploy(experiment(replicas=1, workload=scenario, timing={"step_s": 0.1, "record_s": 0.5}))
    wait_for(lambda: "test" in deployment.statuses()[0]["scenario"]["rounds"], 60)

    assert deployment.statuses()[0]["pod"] == deployment.replicas[0].pod
    assert list(deployment.stop(timeout_s=DRAINED_S)) == []
    place = layout.replica_folder(folder, 0)
    assert all(len(records_of(place / name, LATENCY)) for name in (layout.RAW_LATENCIES, layout.SERVICES))


def test_kernels_are_traced_once_the_recording_is_over_and_before_the_pod_goes(deploy, driver):
    deployment, folder = deploy(experiment(replicas=1, workload={"trace": True}))
    assert "trace" not in deployment.statuses()[0]

    assert list(deployment.stop(timeout_s=DRAINED_S)) == []

    kept = json.loads((layout.replica_folder(folder, 0) / "replica.json").read_text())
    assert "does not use torch" in deployment.statuses()[0]["trace"]["absent"]
    assert kept["trace"] == deployment.statuses()[0]["trace"]
    assert driver.left() == []


def test_a_job_is_bounded_and_its_replicas_have_an_order(deploy, server, driver):
    backend = KubernetesBackend(server.spec(kind="job"), "c0ffee")
    deployment, folder = deploy(experiment(replicas=2), by=backend)

    (job,) = deployment_objects(server, "batch/v1", "jobs")
    assert job["spec"]["completionMode"] == "Indexed"
    assert job["spec"]["activeDeadlineSeconds"] > 3600
    assert [json.loads((driver.folder / one["pod"] / "replica.json").read_text())["replica"] for one in
            deployment.statuses()] == [0, 1]  # fmt: skip
    assert list(deployment.stop(timeout_s=DRAINED_S)) == []
    assert driver.left() == []
    assert len(records_of(layout.replica_folder(folder, 1) / layout.RAW_LATENCIES, LATENCY)) > 1


def test_a_jobs_replica_that_dies_takes_no_other_along(deploy, server, driver, deaths):
    deployment, folder = deploy(experiment(replicas=3), by=KubernetesBackend(server.spec(kind="job"), "c0ffee"))
    victim, *others = [status["pod"] for status in deployment.statuses()]

    driver.kill(victim, reason="OOMKilled")
    wait_for(lambda: job_status(server).get("failed"))  # its controller has seen it, and does what it does about it
    served = [served_by(driver, pod) for pod in others]
    wait_for(
        lambda: all(served_by(driver, pod) > before for pod, before in zip(others, served, strict=True)), SEEN_WITHIN_S
    )

    assert [death.replica for death in deaths] == [0]
    assert job_status(server)["active"] == 2
    assert list(deployment.stop(timeout_s=DRAINED_S)) == []
    for index in (1, 2):
        assert len(records_of(layout.replica_folder(folder, index) / layout.RAW_LATENCIES, LATENCY)) > 1
    assert "serving" in layout.replica_log(folder, 0).read_text()
    assert driver.left() == []


def job_status(server):
    return deployment_objects(server, "batch/v1", "jobs")[0].get("status") or {}


def served_by(driver, pod):
    return (driver.folder / pod / layout.RAW_LATENCIES).stat().st_size


def deployment_objects(server, version, resource):
    spec = server.spec()
    return KubernetesApi(spec).list(f"/apis/{version}/namespaces/{spec.namespace}/{resource}")


def test_a_killed_replica_is_noticed_with_its_code_and_last_words_and_the_rest_is_kept(deploy, driver, deaths):
    deployment, folder = deploy(experiment(replicas=2))
    victim = deployment.statuses()[1]["pod"]

    began_s = time.monotonic()
    driver.kill(victim, reason="OOMKilled")
    wait_for(lambda: deaths)

    assert time.monotonic() - began_s < SEEN_WITHIN_S
    assert (deaths[0].replica, deaths[0].exit_code, deaths[0].reason) == (1, 137, "OOMKilled")
    assert any("serving" in line for line in deaths[0].last_lines)
    assert list(deployment.deaths) == deaths
    wait_for(lambda: driver.pods[victim].ready)  # the kubelet starts it again; that is no second death
    assert list(deployment.stop(timeout_s=DRAINED_S)) == []
    assert len(deaths) == 1
    assert driver.left() == []
    assert "serving" in layout.replica_log(folder, 1).read_text()
    assert (layout.replica_folder(folder, 0) / layout.RAW_LATENCIES).stat().st_size > 0


@pytest.mark.parametrize(
    ("blow", "reason"),
    [
        (lambda driver, pod: driver.evict(pod), "Evicted: The node was low on resource: memory"),
        (lambda driver, pod: driver.drain(pod), "EvictionByEvictionAPI: Eviction API: evicting"),
        (lambda driver, pod: driver.api.delete(f"{driver.collection}/{pod}"), "the pod was deleted"),
    ],
    ids=["evicted", "drained", "deleted"],
)
def test_a_replica_taken_away_is_noticed_with_the_reason(deploy, driver, deaths, blow, reason):
    deployment, _ = deploy(experiment(replicas=2))

    blow(driver, deployment.statuses()[0]["pod"])
    wait_for(lambda: deaths, SEEN_WITHIN_S)

    assert (deaths[0].replica, deaths[0].reason) == (0, reason)
    deployment.stop(timeout_s=DRAINED_S)
    assert driver.left() == []


def test_a_node_that_falls_silent_takes_its_replicas_with_it(deploy, driver, deaths):
    deployment, _ = deploy(experiment(replicas=2))

    driver.fall_silent()
    wait_for(lambda: len(deaths) == 2, SEEN_WITHIN_S)

    assert str(deaths[0]).startswith("replica 0 is gone (node node-a is NotReady: NodeStatusUnknown: Kubelet stopped")
    driver.report()
    deployment.stop(timeout_s=DRAINED_S)


def test_a_node_called_silent_because_the_api_server_was_away_has_time_to_report(deploy, driver, deaths, monkeypatch):
    deployment, _ = deploy(experiment(replicas=1))
    watchman = deployment._monitor
    watchman._nodes.outages.append((time.time() - 60, time.time(), "connection refused"))

    driver.fall_silent()
    wait_for(lambda: watchman._doubted)
    driver.report()
    wait_for(lambda: not watchman._doubted)
    assert deaths == []

    monkeypatch.setattr(watchman, "_api_was_away", lambda: True)
    monkeypatch.setattr(watch, "NODE_RETURNS_S", 0.5)
    driver.fall_silent()
    wait_for(lambda: deaths, SEEN_WITHIN_S)
    assert "NodeStatusUnknown" in deaths[0].reason
    driver.report()
    deployment.stop(timeout_s=4)


def test_a_node_that_is_still_doubted_at_the_end_is_said_to_be(deploy, driver, deaths, monkeypatch):
    deployment, _ = deploy(experiment(replicas=2))
    watchman = deployment._monitor
    monkeypatch.setattr(watchman, "_api_was_away", lambda: True)

    driver.fall_silent()
    wait_for(lambda: watchman._doubted)
    (said,) = deployment.stop(timeout_s=DRAINED_S)
    driver.report()

    assert deaths == []
    assert said.startswith("node node-a is NotReady: NodeStatusUnknown: Kubelet stopped posting node status. So it was")
    assert said.endswith("that its replicas were gone is suspected, not proven.")


def test_pressure_on_the_node_is_said_and_no_death(deploy, driver, deaths):
    deployment, _ = deploy(experiment(replicas=1))

    driver.set_node("DiskPressure", "True", "KubeletHasDiskPressure", "kubelet has disk pressure")
    wait_for(lambda: deployment._monitor._remarks)
    driver.set_node("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure")

    assert list(deployment.stop(timeout_s=DRAINED_S)) == [
        "node node-a was under DiskPressure while replicas ran (kubelet has disk pressure)."
    ]
    assert deaths == []


def test_a_label_by_which_gpus_are_shared_that_changes_is_said_and_no_death(deploy, driver, deaths):
    deployment, _ = deploy(experiment(replicas=1))

    def label(strategy):
        labels = {"nvidia.com/gpu.sharing-strategy": strategy}
        driver.api.patch(f"/api/v1/nodes/{driver.node}", {"metadata": {"labels": labels}})

    label("mps")
    wait_for(lambda: deployment._monitor._remarks)

    [said] = deployment.stop(timeout_s=DRAINED_S)
    label(None)  # the cluster is that of other tests, too
    assert "nvidia.com/gpu.sharing-strategy of node node-a was not there and became mps" in said
    assert deaths == []


SEEN_BY = {
    "by-handler": {"runtimeClassName": "nvidia"},
    "by-variable": {"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]},
    "by-file": {"volumes": [{"name": "gpu", "hostPath": {"path": "/dev/nvidia0"}}]},
}
UNSEEING = {
    "told-none": {"runtimeClassName": "nvidia", "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]},
    "exporter": {"runtimeClassName": "nvidia", "owner": "DaemonSet"},
    "web": {},
}


@pytest.fixture
def come(driver):
    """Has pods of somebody else come to the node, none of which asks for a GPU; they are gone afterwards."""
    place = "/api/v1/namespaces/others"
    driver.api.apply("/api/v1/namespaces/others", named("v1", "Namespace", "others"))
    driver.api.apply(f"{place}/serviceaccounts/default", named("v1", "ServiceAccount", "default"))
    handler = named("node.k8s.io/v1", "RuntimeClass", "nvidia") | {"handler": "nvidia"}
    driver.api.apply("/apis/node.k8s.io/v1/runtimeclasses/nvidia", handler)

    def coming():
        for name, how in (SEEN_BY | UNSEEING).items():
            driver.api.create(f"{place}/pods", somebodys(driver.node, name, **how))

    yield coming
    for name in (*SEEN_BY, *UNSEEING):
        driver.api.delete(f"{place}/pods/{name}", grace_s=0)


def named(version, kind, name):
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}}


def somebodys(node, name, *, env=(), owner="", **spec):
    made = named("v1", "Pod", name)
    container = {"name": "main", "image": "registry.example/other:1", "env": list(env)}
    made["spec"] = {"nodeName": node, "automountServiceAccountToken": False, "containers": [container], **spec}
    uid = "11111111-1111-1111-1111-111111111111"
    owned = {"apiVersion": "apps/v1", "kind": owner, "name": "exporter", "uid": uid}
    made["metadata"]["ownerReferences"] = [owned] if owner else []
    return made


@pytest.mark.parametrize("before", [True, False], ids=["before", "meanwhile"])
def test_a_pod_that_asks_for_no_gpu_and_sees_all_of_them_is_named(deploy, come, before):
    if before:
        come()
    deployment, folder = deploy(experiment(replicas=1))
    if not before:
        come()

    assert list(deployment.stop(timeout_s=DRAINED_S)) == []

    found = deployment.others_on_gpus(folder / "telemetry.csv")
    assert {(finding.severity, finding.code) for finding in found} == {(Severity.DEGRADED, ReasonCode.GPU_SHARED)}
    assert {re.search(r"the pod others/(\S+), which sees", finding.message)[1] for finding in found} == set(SEEN_BY)


def test_a_gpu_that_fails_is_said_at_once_and_no_death(deploy, driver, deaths):
    deployment, _ = deploy(experiment(replicas=2))
    notices = []
    deployment._monitor.tell(notices.append)

    driver.fail_device(deployment.statuses()[1]["pod"], "GPU-5b0c::2")
    wait_for(lambda: notices, SEEN_WITHIN_S)

    held = "replica 1 held nvidia.com/gpu GPU-5b0c::2 when its plugin called it unhealthy."
    assert notices == [held]
    wait_for(lambda: any(lends_less(node, GPU) for node in deployment._monitor._nodes.objects), SEEN_WITHIN_S)
    withdrawn = (
        f"node node-a advertises {driver.slices - 1} of its {driver.slices} nvidia.com/gpu: the device plugin calls"
    )
    assert [one[: len(withdrawn)] for one in deployment.stop(timeout_s=DRAINED_S)] == [
        held[: len(withdrawn)],
        withdrawn,
    ]
    assert deaths == []


def test_a_replica_that_does_not_drain_is_killed_and_said(deploy, driver):
    deployment, _ = deploy(experiment(replicas=1))
    driver.last_signal = signal.SIGKILL

    assert "replica 0 ended with 137 when it was told to stop" in "".join(deployment.stop(timeout_s=2))
    assert driver.left() == []


def test_replicas_that_the_cluster_is_late_to_tell_are_not_removed_by_force_while_they_run(deploy, driver, monkeypatch):
    if driver.controlled:
        pytest.skip("the real garbage collector is late when it likes")
    monkeypatch.setattr(deployment_module, "FORCE_AFTER_S", 0.5)
    deployment, _ = deploy(experiment(replicas=2, timing={"drain_timeout_s": 0.5}))
    driver.collects = False
    begun_s = time.monotonic()
    telling = threading.Timer(3.0, setattr, (driver, "collects", True))
    telling.start()

    assert list(deployment.stop(timeout_s=0.5)) == []

    assert time.monotonic() - begun_s >= 3.0
    assert len(list(driver.folder.glob("tiny-*"))) == 2, "none was made in place of one that was taken away"
    assert driver.left() == []


@pytest.mark.parametrize(
    ("trouble", "said"),
    [
        (lambda driver: setattr(driver, "pull", NO_IMAGE), f"replicas cannot start: {NO_IMAGE[0]}: {NO_IMAGE[1]}"),
        (lambda driver: setattr(driver, "pull", NO_REGISTRY), f"cannot start: {NO_REGISTRY[0]}: {NO_REGISTRY[1]}"),
        (lambda driver: driver.lend(1), "Unschedulable: 0/1 nodes are available: 1 Insufficient nvidia.com/gpu"),
        (ClusterDriver.forbid_pods, "FailedCreate: pods .* quota: gpus"),
    ],
    ids=["image", "registry", "slices", "quota"],
)
def test_replicas_that_cannot_start_are_said_with_the_objects_own_reason(deploy, driver, trouble, said):
    trouble(driver)

    began_s = time.monotonic()
    with pytest.raises(BackendError, match=said) as caught:
        deploy(experiment(replicas=2))

    assert isinstance(caught.value, ImageError) == (NO_IMAGE[0] in said)
    assert isinstance(caught.value, AwayError) == (NO_REGISTRY[0] in said)
    assert time.monotonic() - began_s < 2 * SEEN_WITHIN_S
    assert driver.left() == []


def hooked(**layer):
    return experiment(replicas=1, condition=ConditionSpec(name="hooked", layer=LayerSpec(**layer)))


@pytest.mark.parametrize(
    ("of", "error", "said"),
    [
        (
            experiment(factory="no_such_module:make", replicas=2),
            ReplicaDiedError,
            r"exited with 3; last lines: .*there is no module",
        ),
        (
            experiment(factory="slow_to_load", load_s=300, replicas=1, timing={"ready_timeout_s": 6}),
            BackendError,
            r"not every replica served within 6 s: 0 of 1 serve; .*not serving yet",
        ),
        (
            hooked(preload="/opt/no-such.so"),
            BackendError,
            r"replica 0 .* runs without the layer's library /opt/no-such\.so",
        ),
        (
            hooked(prefix=["env", "no-such-hypervisor"]),
            ReplicaDiedError,
            r"replica 0 exited with 127; last lines: .*no-such-hypervisor",
        ),
    ],
    ids=["ends", "late", "library", "prefix"],
)
def test_a_replica_that_does_not_come_to_serve_is_said_with_its_last_words(deploy, driver, of, error, said):
    with pytest.raises(error, match=said):
        deploy(of)

    assert driver.left() == []


def test_an_abort_ends_a_deployment_that_has_begun(deploy, driver):
    abort = threading.Event()
    threading.Timer(0.5, abort.set).start()

    with pytest.raises(BackendError, match="stopped before every replica had served"):
        deploy(experiment(factory="slow_to_load", load_s=30, replicas=1), abort=abort)

    assert driver.left() == []


def test_a_layer_is_on_the_replica(deploy, driver):
    library = next(region.path for region in psutil.Process().memory_maps() if "libc.so" in region.path)
    layer = hooked(prefix=["nice", "-n", "1"], environment={"HOOK_LOG": "off"}, preload=library)
    deployment, _ = deploy(layer)
    (status,) = deployment.statuses()

    replica = psutil.Process(driver.pods[status["pod"]].process.pid)
    assert replica.nice() == min(psutil.Process().nice() + 1, 19)
    assert (replica.environ()["HOOK_LOG"], replica.environ()["LD_PRELOAD"]) == ("off", library)
    assert status["preloaded"] == [library]


def test_a_layers_library_is_copied_out_of_another_image_and_is_on_the_replica(deploy, driver, tmp_path, monkeypatch):
    monkeypatch.setattr(objects, "LAYER_DIR", str(tmp_path / "layer"))
    library = next(region.path for region in psutil.Process().memory_maps() if "libc.so" in region.path)
    deployment, _ = deploy(hooked(preload=library, preload_image="registry.example/hook:1"))
    (status,) = deployment.statuses()

    copied = str(tmp_path / "layer" / Path(library).name)
    assert status["preloaded"] == [copied]
    assert copied in {one.path for one in psutil.Process(driver.pods[status["pod"]].process.pid).memory_maps()}
    assert status["layer_image_id"].startswith("registry.example/workload@sha256:")  # the driver knows one image


@pytest.mark.parametrize("kind", ["deployment", "job"])
def test_a_library_that_its_image_does_not_have_is_said(deploy, server, driver, tmp_path, monkeypatch, kind):
    monkeypatch.setattr(objects, "LAYER_DIR", str(tmp_path / "layer"))
    missing = hooked(preload="/opt/no-such.so", preload_image="registry.example/hook:1")
    with pytest.raises(
        BackendError, match=r"/opt/no-such\.so could not be copied out of registry\.example/hook:1: .*No such file"
    ) as caught:
        deploy(missing, by=KubernetesBackend(server.spec(kind=kind), "c0ffee"))

    assert "Fix `preload` or `preload_image`" in caught.value.advice
    assert driver.left() == []


@pytest.mark.parametrize("kind", ["deployment", "job"])
def test_an_attempt_of_before_that_has_its_pods_ended_and_is_not_gone_yet_is_waited_for(
    deploy, server, driver, tmp_path, kind
):
    spec = server.spec(kind=kind)
    left = objects.workload(experiment(replicas=1), tmp_path / "attempt-0", spec, "c0ffee")
    left.body["metadata"]["finalizers"] = ["example.com/held"]
    left.body["spec"]["suspend" if kind == "job" else "paused"] = True  # its controller makes no pod of it
    before = driver.api.create(left.collection, left.body)
    driver.api.delete(left.owners[0].path, propagation="Foreground")
    wait_for(lambda: not driver.names())
    free = {"metadata": {"finalizers": None}}
    letting_go = threading.Timer(2.0, lambda: driver.api.patch(left.owners[0].path, free))
    letting_go.start()

    deployment, _ = deploy(experiment(replicas=1), by=KubernetesBackend(spec, "c0ffee"))

    letting_go.join()
    assert driver.api.get(left.owners[0].path)["metadata"]["uid"] != before["metadata"]["uid"]
    assert list(deployment.stop(timeout_s=DRAINED_S)) == []
    assert driver.left() == []


def test_what_a_killed_harness_left_is_swept_by_its_label_alone(deploy, server, driver):
    deploy(experiment(replicas=2))
    other = KubernetesBackend(server.spec(), "another")
    kept, _ = deploy(experiment(replicas=1), by=other)

    swept = KubernetesBackend(server.spec(), "c0ffee").sweep()

    assert len(swept) == 1
    assert swept[0].startswith("deleted Deployment tiny-r2-")
    # A deployment outlives its pods for as long as the cluster's garbage collector takes.
    assert eventually(lambda: not [name for name in driver.left() if name.startswith("tiny-r2")])
    assert driver.names() == [kept.statuses()[0]["pod"]]
    assert KubernetesBackend(server.spec(), "c0ffee").sweep() == []
