"""Waiting for workloads and for what nodes advertise; and what is said when it does not come."""

import json

import pytest
import tree
from fake_module import Failed, FakeModule, ended

module = tree.shared("waiter")
objects = tree.module("kube_objects")


def daemon_set(ready, wanted=1, generation=1, observed=1, updated=None):
    counts = {"desiredNumberScheduled": wanted, "numberAvailable": ready}
    counts["updatedNumberScheduled"] = wanted if updated is None else updated
    metadata = {"name": "d", "generation": generation}
    return {"kind": "DaemonSet", "metadata": metadata, "status": {"observedGeneration": observed, **counts}}


def chosen(workload, app="x"):
    """A workload whose pods have a label."""
    return {**workload, "spec": {"selector": {"matchLabels": {"app": app}}}}


def deployment(**status):
    return {
        "kind": "Deployment",
        "metadata": {"name": "d", "generation": 1},
        "spec": {"replicas": 2},
        "status": {"observedGeneration": 1, **status},
    }


def job(*conditions):
    given = [{"type": kind, "status": "True", "message": message} for kind, message in conditions]
    return {"kind": "Job", "metadata": {"name": "j"}, "status": {"conditions": given}}


def node(**allocatable):
    return {"kind": "Node", "metadata": {"name": "n"}, "status": {"allocatable": allocatable}}


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        (daemon_set(1), ""),
        (daemon_set(0), "1 of 1 pods are of the present version, 0 are available"),
        (daemon_set(1, updated=0), "0 of 1 pods are of the present version"),
        (daemon_set(1, generation=2), "its controller has not looked"),
        (daemon_set(0, wanted=0), ""),
        (deployment(replicas=2, updatedReplicas=2, availableReplicas=2), ""),
        (deployment(replicas=3, updatedReplicas=2, availableReplicas=2), "1 pods of the last version"),
        (deployment(), "0 of 2 pods"),
        (job(("Complete", "")), ""),
        (job(), "it has not completed"),
        (job(("Failed", "BackoffLimitExceeded")), "it failed: BackoffLimitExceeded"),
    ],
)
def test_a_workload_is_whole_or_says_why_not(item, reason):
    assert module.unfinished(item).startswith(reason)
    assert bool(module.unfinished(item)) == bool(reason)


@pytest.mark.parametrize(
    ("found", "whole"),
    [
        ({"nvidia.com/gpu": "10", "cpu": "4"}, True),
        ({"nvidia.com/gpu": "10", "nvidia.com/mig-1g.5gb": "0"}, True),
        ({"nvidia.com/gpu": "1"}, False),
        ({"nvidia.com/gpu": "10", "nvidia.com/gpu.shared": "10"}, False),
        ({}, False),
    ],
)
def test_exactly_the_expected_slices_are_advertised_and_no_other(found, whole):
    assert (module.shortfall(node(**found), {"nvidia.com/gpu": 10}) == "") is whole


def test_a_node_without_gpus_is_not_asked_for_any():
    assert module.shortfall(node(cpu="4"), {}) == ""


def run(monkeypatch, answers, *, check_mode=False, **changed):
    """What the module exits with; answers by the words that name an object."""

    def answer(words):
        asked = " ".join(words[5:])
        for name, given in answers.items():
            if name in asked:
                return given if isinstance(given, tuple) else (0, json.dumps(given), "")
        return 1, "", f"Error from server (NotFound): {asked}"

    params = {"workloads": [], "allocatable": {}, "timeout_s": 0}
    params |= {"devices": {}, "conditions": {}, "src": [], "manifest": "", **changed}
    monkeypatch.setattr(module, "INTERVAL_S", 0.0)
    fake = FakeModule(answer, check_mode=check_mode, **params)
    return ended(monkeypatch, objects, fake)


def test_it_ends_when_everything_is_there(monkeypatch):
    answers = {"DaemonSet/d": daemon_set(1), "node/n": node(**{"nvidia.com/gpu": "4"})}
    found = run(monkeypatch, answers, workloads=["gpu-system/DaemonSet/d"], allocatable={"n": {"nvidia.com/gpu": 4}})
    assert found["changed"] is False


def test_it_says_how_many_replicas_a_workload_is_to_have(monkeypatch):
    paused = deployment()
    paused["spec"] = {"replicas": 0}
    found = run(monkeypatch, {"Deployment/d": paused}, workloads=["monitoring/Deployment/d"])
    assert found["replicas"] == {"monitoring/Deployment/d": 0}


def test_it_explains_by_the_pods_that_are_not_ready_and_their_logs(monkeypatch):
    waiting = {"reason": "CrashLoopBackOff", "message": "back-off 10s"}
    status = {"phase": "Running", "containerStatuses": [{"name": "c", "state": {"waiting": waiting}}]}
    pods = {"items": [{"metadata": {"name": "p"}, "status": status}]}
    answers = {"node/n": node(), "get pods": pods, "logs p": (0, "one\ntwo\nno devices found\n", "")}
    answers["DaemonSet/d"] = chosen(daemon_set(1))
    with pytest.raises(Failed) as failed:
        run(monkeypatch, answers, workloads=["gpu-system/DaemonSet/d"], allocatable={"n": {"nvidia.com/gpu": 4}})
    said = str(failed.value)
    assert "node n: it advertises none of them and should advertise nvidia.com/gpu: 4" in said
    assert "pod p Running c: CrashLoopBackOff: back-off 10s" in said
    assert said.endswith("no devices found")


def test_it_says_when_no_node_fits_and_when_there_is_no_such_workload(monkeypatch):
    answers = {
        "DaemonSet/d": chosen(daemon_set(0)),
        "DaemonSet/whole": chosen(daemon_set(1), "y"),
        "get pods": {"items": []},
    }
    names = [f"gpu-system/DaemonSet/{name}" for name in ("d", "whole", "none")]
    with pytest.raises(Failed, match=r"NotFound.*\nthere is no pod app=x in gpu-system: no node fits it$"):
        run(monkeypatch, answers, workloads=names)


def listing(node, devices, generation, *, driver="gpu.nvidia.com", pool="a"):
    return {
        "spec": {
            "driver": driver,
            "nodeName": node,
            "pool": {"name": pool, "generation": generation},
            "devices": devices,
        }
    }


def test_devices_are_those_that_the_driver_lists_now(monkeypatch):
    slices = [listing("n", [{}, {}], 2), listing("n", [{}], 1), listing("n", [{}], 1, pool="b"), listing("m", [{}], 9)]
    answers = {"resourceslices": {"items": [*slices, listing("n", [{}], 9, driver="other")]}}
    assert run(monkeypatch, answers, devices={"n": 3, "m": 1, "none": 0})["changed"] is False
    with pytest.raises(Failed, match=r"node n: gpu.nvidia.com lists 3 devices and should list 0$"):
        run(monkeypatch, answers, devices={"n": 0, "m": 1})
    # What a node advertises is said beside what is listed for it.
    answers |= {"node/n": node(**{"nvidia.com/gpu": "1"})}
    with pytest.raises(Failed, match=r"node n: it advertises .* 1 and .* 2; node n: gpu.nvidia.com lists 3 devices"):
        run(monkeypatch, answers, allocatable={"n": {"nvidia.com/gpu": 2}}, devices={"n": 0})


@pytest.mark.parametrize("has", [{}, {"nvidia.com/gpu": "0"}])
def test_a_resource_of_none_is_as_good_as_absent(monkeypatch, has):
    assert run(monkeypatch, {"node/n": node(**has)}, allocatable={"n": {"nvidia.com/gpu": 0}})["changed"] is False
    with pytest.raises(Failed, match=r"advertises nvidia.com/gpu: 8 and should advertise nvidia.com/gpu: 0"):
        run(monkeypatch, {"node/n": node(**{"nvidia.com/gpu": "8"})}, allocatable={"n": {"nvidia.com/gpu": 0}})


def test_a_failed_job_is_not_waited_for(monkeypatch):
    with pytest.raises(Failed, match="after 0 s: Job/j: it failed: DeadlineExceeded"):
        run(monkeypatch, {"Job/j": job(("Failed", "DeadlineExceeded"))}, workloads=["gpu-system/Job/j"], timeout_s=3600)


def test_check_mode_waits_for_nothing(monkeypatch):
    found = run(monkeypatch, {}, workloads=["gpu-system/DaemonSet/d"], check_mode=True)
    assert found == {"changed": False, "replicas": {}}


def test_an_unschedulable_pod_says_why():
    condition = {"type": "PodScheduled", "status": "False", "message": "0/1 nodes: 1 Insufficient nvidia.com/gpu"}
    pod = {"metadata": {"name": "p"}, "status": {"phase": "Pending", "conditions": [condition]}}
    assert module.pod_state(pod) == "pod p Pending PodScheduled: 0/1 nodes: 1 Insufficient nvidia.com/gpu"


def true(condition):
    return {"metadata": {"name": condition.lower()}, "status": {"conditions": [{"type": condition, "status": "True"}]}}


def test_all_of_what_is_asked_for_has_its_condition(monkeypatch):
    answers = {"tigerastatus/calico": true("Available"), "nodes": {"items": [true("Ready"), true("Ready")]}}
    wanted = {"tigerastatus/calico": "Available", "nodes": "Ready"}
    assert run(monkeypatch, answers, conditions=wanted)["changed"] is False
    answers |= {"nodes": {"items": [true("Ready"), true("MemoryPressure")]}}
    with pytest.raises(Failed, match=r"after 0 s: nodes: memorypressure not Ready$"):
        run(monkeypatch, answers, conditions=wanted)
    with pytest.raises(Failed, match=r"tigerastatus/calico: .*NotFound.*; nodes: there is none$"):
        run(monkeypatch, {"nodes": {"items": []}}, conditions=wanted)
