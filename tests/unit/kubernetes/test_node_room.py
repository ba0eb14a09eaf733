"""Preflight counts what pods reserve against what the nodes have free, and refuses only what cannot be placed."""

import pytest

from harness.backends.kubernetes import objects
from harness.backends.kubernetes.admission import PlannedPods
from harness.backends.kubernetes.nodes import check_room
from harness.errors import IssueLevel
from harness.spec import ConditionSpec, KubernetesSpec, ScenarioSpec, WorkloadSpec
from tests.support.experiments import experiment, neighbour

HALF = KubernetesSpec(reserve={"cpu": "500m", "memory": "1Gi"})
ENDED = {"phase": "Succeeded"}


def node(name="n1", cpu="4", memory="16Gi", **labels):
    return {"metadata": {"name": name, "labels": labels}, "status": {"allocatable": {"cpu": cpu, "memory": memory}}}


def pod(cpu, where="n1", *, status=None, campaign="", before=None, sidecar=False, overhead=None):
    def container(asked):
        return {"name": "a", "resources": {"requests": {"cpu": asked}}}

    early = [{**container(before), **({"restartPolicy": "Always"} if sidecar else {})}] if before else []
    return {
        "metadata": {"name": "p", "namespace": "team", "labels": {"gpu-sharing-harness/campaign": campaign}},
        "spec": {
            "nodeName": where, "containers": [container(cpu)], "initContainers": early,
            **({"overhead": {"cpu": overhead}} if overhead else {}),
        },
        "status": status or {"phase": "Running"},
    }  # fmt: skip


def found(nodes, pods=(), *, of=None, spec=HALF):
    groups = [objects.all_pods(one, spec, "mine") for one in of or [experiment(replicas=8)]]
    made = [[PlannedPods(one, one.body["spec"]["template"]) for one in each] for each in groups]
    return list(check_room(nodes, lambda: pods, made, "mine"))


def test_what_has_room_gets_no_remark():
    assert found([node()]) == []
    assert found([node(cpu="2"), node("n2", cpu="2500m")]) == []
    assert found([node(cpu="1m", memory="1Mi")], spec=KubernetesSpec()) == [], "what states nothing fits everywhere"


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        ([node(cpu="3999m")], "8 pods reserve 0.5 of cpu and 1Gi of memory each (tiny), and there is room for 7: n1 has 3.999 of cpu"),
        ([node(memory="8191Mi")], "there is room for 7: n1 has 4 of cpu, of which others hold 0 and 8191Mi of memory"),
        ([node(cpu="1750m"), node("n2", cpu="2250m")], "there is room for 7: n1 has 1.75 of cpu"),
        ([{**node(), "status": {"allocatable": {"cpu": "9"}}}], "there is room for 0"),
    ],
)  # fmt: skip
def test_what_does_not_fit_even_into_empty_nodes_is_refused(nodes, said):
    [one] = found(nodes)
    assert (one.severity, one.check, one.away) == (IssueLevel.ERROR, "room", False)
    assert said in one.message
    assert "Reserve less" in one.advice


@pytest.mark.parametrize(
    ("other", "room"),
    [
        (pod("500m"), 7),
        (pod("100m"), 7),
        (pod("500m", where="n2"), 8),
        (pod("500m", status=ENDED), 8),
        (pod("500m", campaign="mine"), 8),
        (pod("100m", before="1"), 6),
        (pod("500m", before="500m", sidecar=True), 6),
        (pod("500m", overhead="250m"), 6),
    ],
)
def test_what_others_hold_is_refused_and_may_end(other, room):
    said = found([node(), node("n2", cpu="0")], [other])
    if room == 8:
        assert said == []
        return
    [one] = said
    assert (one.severity, one.away) == (IssueLevel.ERROR, True)
    assert f"and there is room for {room}" in one.message
    assert "End what holds it" in one.advice


def test_only_nodes_that_the_selector_takes_count():
    spec = HALF.model_copy(update={"node_selector": {"pool": "gpu"}})
    [one] = found([node(), node("n2", cpu="1", pool="gpu")], spec=spec)
    assert "room for 2: n2 has 1 of cpu" in one.message


def test_the_largest_experiment_decides_and_is_said_once():
    several = [experiment(replicas=count) for count in (1, 9, 3, 10)]
    [one] = found([node()], of=several)
    assert one.message.startswith("10 pods reserve")


def test_neighbours_and_what_sends_requests_count():
    beside = ConditionSpec(name="beside", neighbours=[neighbour(replicas=7)])
    [one] = found([node()], of=[experiment(replicas=2, condition=beside)])
    assert one.message.startswith("9 pods reserve 0.5 of cpu and 1Gi of memory each (tiny, noisy)")

    sends = HALF.model_copy(update={"client_reserve": {"cpu": "2"}})
    http = experiment(replicas=6, workload={"scenario": ScenarioSpec(kind="http", rate=4)})
    [one] = found([node()], of=[http], spec=sends)
    assert "all pods of an experiment reserve 5 of cpu, and the nodes have 4, of which others hold 0" in one.message
    assert found([node(), node("n2", cpu="2")], of=[http], spec=sends) == []
    assert found([node(cpu="5")], [pod("100m")], of=[http], spec=sends)[0].away


def test_a_server_counts_with_its_client():
    server = {"image": "x/y:1", "args": ["{port}"], "reserve": {"cpu": "1"}}
    served = experiment(replicas=2).model_copy(update={"workload": WorkloadSpec(name="mine", server=server)})
    spec = KubernetesSpec(client_reserve={"cpu": "500m"})
    assert found([node(cpu="3")], of=[served], spec=spec) == []
    [one] = found([node(cpu="2999m")], of=[served], spec=spec)
    assert "2 pods reserve 1.5 of cpu each (mine), and there is room for 1" in one.message
