"""What pods and their owners say, read as people would: done, stuck, pending, ended."""

import copy
from decimal import Decimal

import pytest

from harness.backends.kubernetes import pods
from harness.backends.kubernetes.nodes import driver_denied, not_ready, pressures, provenance
from harness.results.manifest import Software
from harness.spec.pods import amount, quantity

READY = {"type": "Ready", "status": "True"}


def pod(name="a", *, phase="Running", ready=True, state=None, last=None, restarts=0, conditions=(), **status):
    container = {
        "name": "replica",
        "state": state or {"running": {}},
        "lastState": last or {},
        "restartCount": restarts,
    }
    return {
        "metadata": {"name": name, "namespace": "inference", "uid": name},
        "spec": {"containers": [{"name": "replica", "image": "x"}], "nodeName": "node-a"},
        "status": {
            "phase": phase,
            "conditions": [{**READY, "status": str(ready)}, *conditions],
            "containerStatuses": [container],
            **status,
        },
    }


def deleted(one):
    return {**one, "metadata": {**one["metadata"], "deletionTimestamp": "2026-01-31T00:00:00Z"}}


def deployment(count=2, **status):
    counts = dict.fromkeys(("replicas", "updatedReplicas", "readyReplicas", "availableReplicas"), count)
    return {
        "kind": "Deployment",
        "metadata": {"generation": 2},
        "status": {"observedGeneration": 2, **counts, **status},
    }


def test_done_when_every_count_agrees_and_no_pod_is_too_many():
    assert pods.rollout(deployment(), [pod("a"), pod("b")], 2).done
    assert pods.rollout({"kind": "Job", "status": {"active": 2, "ready": 2}}, [pod("a"), pod("b")], 2).done


def of_gpu(number, one, index=None):
    annotations = {} if index is None else {pods.INDEX_ANNOTATION: str(index)}
    return {**one, "metadata": {**one["metadata"], "labels": {pods.GPU_LABEL: number}, "annotations": annotations}}


def test_replicas_of_several_shared_gpus_are_numbered_one_of_each_in_turn():
    jobs = [of_gpu(gpu, pod(f"{gpu}-{index}"), index) for gpu in ("10", "2") for index in (0, 1, 10)]
    named = [of_gpu("0", pod("b")), of_gpu("0", pod("a")), of_gpu("1", pod("c"))]

    assert [pods.name(one) for one in pods.in_order(jobs)] == ["2-0", "10-0", "2-1", "10-1", "2-10", "10-10"]
    assert [pods.name(one) for one in pods.in_order(named)] == ["a", "c", "b"]


def test_several_rollouts_are_done_when_all_are_and_held_up_by_any():
    done, failed = pods.rollout(deployment(), [pod("a"), pod("b")], 2), {"type": "ReplicaFailure", "status": "True"}
    held = pods.rollout(deployment(conditions=[failed]), [], 2)

    assert pods.together([done, done]).done
    both = pods.together([done, held])
    assert not both.done
    assert both.hindrance is held.hindrance is not None
    assert both.waiting == held.waiting == "0 of 2 pods have been made"


def test_a_job_that_its_queue_holds_back_is_said_to_be_held_back():
    held = pods.rollout({"kind": "Job", "spec": {"suspend": True}}, [], 2)

    assert not held.done
    assert held.waiting == "the Job is suspended: its queue has not admitted it"


@pytest.mark.parametrize(
    ("owner", "found"),
    [
        (deployment(observedGeneration=1), [pod("a"), pod("b")]),
        (deployment(updatedReplicas=1), [pod("a"), pod("b")]),
        (deployment(availableReplicas=1), [pod("a"), pod("b")]),
        (deployment(replicas=3), [pod("a"), pod("b")]),
        (deployment(), [pod("a"), pod("b", ready=False)]),
        (deployment(), [pod("a"), pod("b"), deleted(pod("c"))]),
        (deployment(), [pod("a")]),
        ({"kind": "Deployment", "metadata": {"generation": 1}}, []),
        ({"kind": "Job", "status": {"active": 2, "ready": 1}}, [pod("a"), pod("b")]),
    ],
)
def test_not_done_otherwise(owner, found):
    progress = pods.rollout(owner, found, 2)

    assert not progress.done
    assert progress.waiting


@pytest.mark.parametrize("reason", sorted(pods.HOPELESS_WAITS))
def test_what_will_not_come_by_itself_is_stuck(reason):
    waiting = pod("b", phase="Pending", ready=False, state={"waiting": {"reason": reason, "message": "because."}})

    assert str(pods.rollout(deployment(), [pod("a"), waiting], 2).stuck) == f"{reason}: because"


def test_a_pod_without_a_node_and_a_controller_that_is_refused_hinder():
    conditions = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes."}]
    refused = {
        "conditions": [{"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": "quota"}]
    }

    placeless = pod("a", phase="Pending", ready=False, conditions=conditions)
    assert str(pods.rollout(deployment(), [placeless], 2).hindrance) == "Unschedulable: 0/1 nodes"
    assert str(pods.rollout(deployment(**refused), [], 2).hindrance) == "FailedCreate: quota"
    assert pods.rollout(deployment(), [pod("a")], 2).hindrance is None


def terminated(code, reason="Error"):
    return {"terminated": {"exitCode": code, "reason": reason}}


@pytest.mark.parametrize(
    ("one", "end"),
    [
        (pod(), None),
        (pod(ready=False), None),
        (pod(state=terminated(3)), pods.End(3, "")),
        (pod(state=terminated(137, "OOMKilled")), pods.End(137, "OOMKilled")),
        (pod(last=terminated(7), restarts=1), pods.End(7, "")),
        (pod(phase="Failed", reason="Evicted", message="low on memory."), pods.End(None, "Evicted: low on memory")),
        (pod(phase="Failed", state=terminated(137), reason="Evicted"), pods.End(137, "Evicted")),
        (deleted(pod()), pods.End(None, "the pod was deleted")),
        (
            deleted(
                pod(conditions=[{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}])
            ),
            pods.End(None, "PreemptionByScheduler"),
        ),
    ],
)
def test_how_a_pod_ended(one, end):
    assert pods.end_of(one) == end


def with_server(one, state=None, **status):
    """The same pod with the container of a server beside the replica's."""
    found = one["status"]["containerStatuses"]
    found.append({"name": "server", "state": state or {"running": {}}, "lastState": {}, "restartCount": 0, **status})
    return one


def test_a_server_that_ended_is_why_its_client_did():
    both = with_server(pod(state=terminated(1)), terminated(137, "OOMKilled"))
    assert pods.end_of(both) == pods.End(137, "OOMKilled", "server")
    assert [end.container for end in pods.ends_of(both)] == ["server", "replica"]
    assert pods.end_of(with_server(pod(state=terminated(1)))) == pods.End(1, "")
    again = with_server(pod(), restartCount=1, lastState=terminated(2))
    assert pods.end_of(again) == pods.End(2, "", "server")
    assert pods.end_of(with_server(pod())) is None
    assert pods.end_of(pod(last=terminated(7), restarts=1), restarts_before=1) is None, "from before it served"


# As CRI-O 1.37 was heard to say it of registries that were made for it, but where it is of containerd.
W = "registry.example/w:1"
PINGED = 'unable to pull image: initializing source docker://registry.example/w:1: pinging container registry registry.example: Get "https://registry.example/v2/": '
READ = "unable to pull image or OCI artifact: pull image err: initializing source docker://registry.example/w:1: reading manifest 1 in registry.example/w: "


@pytest.mark.parametrize(
    ("reason", "message", "image", "away"),
    [
        ("ErrImagePull", READ + "manifest unknown; artifact err: image reference", W, False),
        ("ImagePullBackOff", f"Back-off pulling image: ErrImagePull: {READ}name unknown", W, False),
        ("ErrImagePull", READ + "unauthorized", W, False),
        ("ErrImagePull", READ + 'StatusCode: 404, "nothing here"', W, False),
        ("ErrImagePull", PINGED + "tls: failed to verify certificate: x509: certificate signed by unknown", W, False),
        ("ErrImagePull", PINGED + "tls: first record does not look like a TLS handshake", W, False),
        ("ErrImagePull", "failed to resolve reference: registry.example/w:1: not found", W, False),  # containerd
        ("ErrImageNeverPull", "Container image is not present with pull policy of Never", W, False),
        ("SignatureValidationFailed", "Source image rejected: none of the signatures", W, False),
        ("InvalidImageName", "couldn't parse image name: invalid reference format", "registry.example/W:1", False),
        ("RegistryUnavailable", "dial tcp 127.0.0.1:443: connect: connection refused", "localhost/w:1", False),
        ("RegistryUnavailable", PINGED + "dial tcp 192.0.2.1:443: connect: connection refused", W, True),
        ("ErrImagePull", PINGED + "dial tcp: lookup registry.example on 192.0.2.53:53: no such host", W, True),
        ("ErrImagePull", READ + "received unexpected HTTP status: 503 Service Unavailable", W, True),
        ("ErrImagePull", READ + "toomanyrequests: You have reached your pull rate limit", W, True),
        ("ImagePullBackOff", "Back-off pulling image", W, True),
    ],
)
def test_an_image_that_will_not_come_is_told_from_a_registry_that_is_away(reason, message, image, away):
    one = with_server(
        pod(phase="Pending", ready=False), {"waiting": {"reason": reason, "message": message}}, image=image
    )

    found = pods.rollout(deployment(), [one], 2).stuck

    assert (found.of_an_image, found.away) == (True, away)
    crashed = with_server(pod(phase="Pending", ready=False), {"waiting": {"reason": "CrashLoopBackOff"}}, image=image)
    assert not pods.obstacle(crashed).of_an_image


def with_layer(one, state, last=None):
    """The same pod with the init container of a layer's library."""
    one["spec"]["initContainers"] = [
        {"name": "layer", "image": "hook:1", "command": ["cp", "/opt/a.so", "/layer/a.so"]}
    ]
    copy = {"name": "layer", "state": state, "lastState": last or {}, "restartCount": int(last is not None)}
    one["status"]["initContainerStatuses"] = [copy]
    return one


FAILED_COPY = {"terminated": {"exitCode": 1, "reason": "Error", "message": "cp: cannot stat '/opt/a.so'\n"}}
COPY_BEGINS_AGAIN = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}
NO_CP = {"waiting": {"reason": "CreateContainerError", "message": "executable file `cp` not found in $PATH"}}


@pytest.mark.parametrize(
    ("one", "why"),
    [
        (with_layer(pod(phase="Pending", ready=False), FAILED_COPY), "cp: cannot stat '/opt/a.so'"),
        (with_layer(pod(phase="Failed", ready=False), FAILED_COPY), "cp: cannot stat '/opt/a.so'"),
        (with_layer(pod(phase="Pending"), COPY_BEGINS_AGAIN, FAILED_COPY), "cp: cannot stat '/opt/a.so'"),
        (with_layer(pod(phase="Pending"), NO_CP), "executable file `cp` not found in $PATH"),
        (with_layer(pod(phase="Pending"), terminated(137)), "Error"),
    ],
)
def test_a_library_that_is_not_copied_is_said_before_the_end_that_it_causes(one, why):
    stuck = pods.rollout(deployment(), [one], 2).stuck

    assert str(stuck) == f"the layer's library /opt/a.so could not be copied out of hook:1: {why}"


def test_a_library_that_is_copied_or_has_no_image_yet():
    assert pods.not_copied(with_layer(pod(), terminated(0, "Completed"), FAILED_COPY)) is None
    assert pods.not_copied(pod()) is None
    waiting = {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}
    assert str(pods.rollout(deployment(), [with_layer(pod(), waiting)], 2).stuck) == "ErrImagePull: no such image"


def test_a_node_says_why_it_cannot():
    ready = {"metadata": {"name": "n"}, "status": {"conditions": [copy.copy(READY)]}}
    silent = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "message": "Kubelet stopped."}
    full = {"type": "DiskPressure", "status": "True", "message": "full"}

    assert not_ready(ready) == ""
    assert pressures(ready) == {}
    assert not_ready({**ready, "status": {"conditions": [silent, full]}}) == (
        "node n is NotReady: NodeStatusUnknown: Kubelet stopped"
    )
    assert pressures({**ready, "status": {"conditions": [silent, full]}}) == {"DiskPressure": "full"}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("16Gi", 2**34),
        ("24684096Ki", 24684096 * 1024),
        ("4", 4),
        ("3900m", Decimal("3.9")),
        ("1e3", 1000),
        ("1.5E", Decimal("1.5e18")),
        ("", None),
        (None, None),
        ("4 cores", None),
    ],
)
def test_quantities(text, value):
    assert amount(text) == value


@pytest.mark.parametrize(("value", "text"), [(2**35, "32Gi"), (3 * 2**20, "3Mi"), (1000, "1000"), (0, "0")])
def test_bytes_are_told_in_the_largest_unit_that_divides_them(value, text):
    assert quantity(Decimal(value), of_bytes=True) == text
    assert quantity(Decimal(value), of_bytes=False) == str(value)


SOFTWARE = Software(harness="0", git_commit=None, python="3", packages={})
SEEN = {
    "cpu_model": "A CPU",
    "cpus": 4,
    "memory_bytes": 100,
    "psi": True,
    "cgroup_version": 2,
    "kernel": "6",
    "architecture": "x",
}


def status(node, uuid="", **host):
    return {"node": node, "device_uuid": uuid, "device_name": "A GPU" if uuid else "", "host": {**SEEN, **host}}


def node(title, cpus):
    return {
        "metadata": {"name": title},
        "status": {"capacity": {"cpu": cpus, "memory": "1Gi"}, "nodeInfo": {"osImage": "Ubuntu"}},
    }


def test_the_nodes_together_are_the_host_and_each_gpu_counts_once():
    statuses = [status("a", "GPU-1"), status("a", "GPU-1"), status("b", "GPU-2")]
    found = provenance([node("a", "8"), node("b", "16")], statuses, SOFTWARE)

    assert (found.host.hostname, found.host.cpus, found.host.memory_bytes, found.host.os) == (
        "a, b",
        24,
        2**31,
        "Ubuntu",
    )
    assert (found.host.cpu_model, found.host.psi, found.host.cgroup_version) == ("A CPU", True, 2)
    assert [gpu.uuid for gpu in found.gpus] == ["GPU-1", "GPU-2"]


LABELS = {"cuda.driver-version.full": "580.95.05", "cuda.runtime-version.full": "13.0", "gpu.memory": "143771"}
OLD = {f"cuda.driver.{key}": value for key, value in (("major", "535"), ("minor", "104"), ("rev", "05"))}


@pytest.mark.parametrize(
    ("marks", "said", "facts"),
    [
        ({}, {}, (None, None, None)),
        (LABELS, {}, ("580.95.05", "13.0", 143_771 * 2**20)),
        (OLD, {}, ("535.104.05", None, None)),
        (LABELS, {"driver": "580.159.04", "cuda": "13.0", "memory_bytes": 1}, ("580.159.04", "13.0", 1)),
    ],
)
def test_driver_and_memory_are_what_the_replica_says_else_what_labels_say(marks, said, facts):
    there = node("a", "8")
    there["metadata"]["labels"] = {f"nvidia.com/{key}": value for key, value in marks.items()}
    [gpu] = provenance([there], [status("a", "GPU-1") | {"gpu": said}], SOFTWARE).gpus
    assert (gpu.driver, gpu.cuda, gpu.memory_bytes) == facts


@pytest.mark.parametrize(
    ("marks", "runs", "denied"),
    [
        (LABELS, "580.159.04", "say driver 580.95.05, and its GPU runs 580.159.04"),
        (LABELS, "580.95.05", ""),
        (OLD, "580.159.04", "say driver 535.104.05"),
        ({"cuda.driver.major": "580"}, "580.159.04", ""),
        (LABELS, "", ""),
        ({}, "580.159.04", ""),
    ],
)
def test_labels_that_say_another_driver_than_the_gpu_runs_are_named(marks, runs, denied):
    there = node("a", "8")
    there["metadata"]["labels"] = {f"nvidia.com/{key}": value for key, value in marks.items()}
    said = driver_denied(there, {"gpu": {"driver": runs}})
    assert bool(said) == bool(denied)
    assert denied in said
    assert driver_denied(None, {"gpu": {"driver": runs}}) == ""


def test_nodes_that_may_not_be_read_are_what_their_replicas_see():
    found = provenance([], [status("a"), status("a"), status("b")], SOFTWARE)

    assert (found.host.cpus, found.host.memory_bytes, found.host.os) == (8, 200, "unknown")
    assert found.gpus_absent == "no replica sees a GPU"


def test_what_nobody_tells_is_missing_and_not_false():
    found = provenance([], [{"node": "a"}], SOFTWARE)

    assert (found.host.psi, found.host.cgroup_version, found.host.memory_bytes) == (None, None, None)


@pytest.mark.parametrize(
    ("containers", "reserve", "limit"),
    [
        ({"replica": {}}, {}, {}),
        (
            {
                "replica": {
                    "requests": {"cpu": "500m", "nvidia.com/gpu": "1"},
                    "limits": {"memory": "1Gi", "nvidia.com/gpu": "1"},
                }
            },
            {"cpu": "500m"},
            {"memory": "1Gi"},
        ),
        ({"replica": {"requests": {"cpu": "250m"}}, "server": {"requests": {"cpu": "4"}}}, {"cpu": "4"}, {}),
    ],
)
def test_what_the_manifest_says_of_a_replica_is_what_its_pod_was_given(containers, reserve, limit):
    one = pod(qosClass="Burstable")
    one["metadata"] |= {
        "annotations": {"prometheus.io/port": "8000"},
        "labels": {"gpu-sharing-harness/experiment": "e"},
    }
    one["spec"]["containers"] = [
        {"name": name, "image": "x", "resources": resources} for name, resources in containers.items()
    ]
    facts = pods.as_replica(one, 0).facts
    assert (facts["reserve"], facts["limit"], facts["qos_class"]) == (reserve, limit, "Burstable")
