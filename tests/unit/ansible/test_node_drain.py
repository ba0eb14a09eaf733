"""A node that is emptied before its packages change: who stops that, what is named, and whose cordon is taken away."""

import json

import pytest
import tree
from fake_module import Failed, FakeModule, ended

module = tree.module("node_drain")
READY = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
STARTING = {"phase": "Running", "conditions": [{"type": "Ready", "status": "False"}]}


def pod(name, *, owner="ReplicaSet", status=READY, volumes=(), mirror=False, **metadata):
    owners = [{"kind": owner, "controller": True}] if owner else []
    annotations = {module.MIRROR: "0a"} if mirror else {}
    about = {"name": name, "namespace": "web", "labels": {"app": "a"}, "ownerReferences": owners}
    about |= {"annotations": annotations, **metadata}
    return {"metadata": about, "spec": {"volumes": list(volumes)}, "status": status}


def budget(allowed, *, healthy=1, expected=1, wanted=1, selector=None, name="keep", **spec):
    status = {
        "disruptionsAllowed": allowed,
        "currentHealthy": healthy,
        "expectedPods": expected,
        "desiredHealthy": wanted,
    }
    selector = {"matchLabels": {"app": "a"}} if selector is None else selector
    return {"metadata": {"name": name, "namespace": "web"}, "spec": {"selector": selector, **spec}, "status": status}


class Cluster:
    """Nodes, pods of the first one, budgets; what kubectl is told of it."""

    def __init__(self, *pods, budgets=(), nodes=1, cordoned=False, marked=False, stuck=False):
        self.pods, self.budgets, self.stuck = list(pods), list(budgets), stuck
        self.nodes = [{"metadata": {"name": f"n{at}"}, "spec": {}, "status": READY} for at in range(nodes)]
        self.nodes[0]["spec"] |= {"unschedulable": True} if cordoned else {}
        self.nodes[0]["metadata"]["annotations"] = {module.MARK: "true"} if marked else {}
        self.calls, self.refusals = [], 0

    def __call__(self, command):
        words = [word for word in command[3:] if word not in ("--request-timeout", "20s")]
        if self.refusals:
            self.refusals -= 1
            return 1, "", "connection refused"
        if words[0] == "get":
            return 0, json.dumps({"items": getattr(self, words[1].removeprefix("poddisruption"))}), ""
        self.calls.append(words)
        if words[0] == "patch":
            change = json.loads(words[-1])
            self.nodes[0]["spec"] = change["spec"] if change["spec"]["unschedulable"] else {}
            self.nodes[0]["metadata"]["annotations"] = {k: v for k, v in change["metadata"]["annotations"].items() if v}
        if words[0] == "drain":
            if self.stuck:
                self.pods[0]["metadata"] |= {"deletionTimestamp": "now", "deletionGracePeriodSeconds": 3600}
                return 1, "", "error: timed out"
            self.pods = [one for one in self.pods if not module.leaves(one)]
        return 0, "", ""

    @property
    def is_marked(self):
        node = self.nodes[0]
        return node["spec"].get("unschedulable", False), module.MARK in node["metadata"].get("annotations", {})

    @property
    def verbs(self):
        return [words[0] for words in self.calls]


def run(monkeypatch, cluster, state="drained", *, check_mode=False, **options):
    given = {
        "node": "n0",
        "emptydir": True,
        "bare_pods": False,
        "version": "",
        "timeout_s": 0,
    }
    fake = FakeModule(cluster, check_mode=check_mode, state=state, **given | options)
    monkeypatch.setattr(module, "RETRY_S", 0)
    return ended(monkeypatch, module, fake)


def refused(monkeypatch, cluster, state="judged", **options):
    with pytest.raises(Failed) as failed:
        run(monkeypatch, cluster, state, **options)
    return str(failed.value)


KEPT = {"name": "scratch", "emptyDir": {}}
# What goes on, and what is named: pods, the rest of the cluster, the settings, words of the refusal.
CASES = {
    "nothing": ([], {}, {}, None),
    "daemon sets, the control plane and what has ended stay": (
        [
            pod("a", owner="DaemonSet"),
            pod("b", owner="", mirror=True),
            pod("c", owner="", status={"phase": "Succeeded"}),
        ],
        {"budgets": [budget(1)]},
        {},
        None,
    ),
    "bare": ([pod("a", owner="")], {}, {}, "web/a: nothing makes this pod again"),
    "bare, allowed": ([pod("a", owner="")], {}, {"bare_pods": True}, None),
    "emptyDir": ([pod("a", volumes=[KEPT])], {}, {"emptydir": False}, "web/a: its emptyDir scratch would be lost"),
    "emptyDir, allowed": ([pod("a", volumes=[KEPT])], {}, {}, None),
    "budget": (
        [pod("a")],
        {"budgets": [budget(0)]},
        {},
        "web/a: the disruption budget web/keep allows 0 to end, not 1",
    ),
    "a budget of other pods": ([pod("a")], {"budgets": [budget(0, selector={"matchLabels": {"app": "b"}})]}, {}, None),
    "a budget that chooses none": ([pod("a")], {"budgets": [budget(0) | {"spec": {}}]}, {}, None),
    "a budget of everything": ([pod("a")], {"budgets": [budget(0, selector={})]}, {}, "web/keep allows 0"),
    "a budget by expressions": (
        [pod("a")],
        {"budgets": [budget(0, selector={"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["a"]}]})]},
        {},
        None,
    ),
    "one after another": ([pod("a"), pod("b")], {"budgets": [budget(1)], "nodes": 2}, {}, None),
    "nowhere to come back to": ([pod("a"), pod("b")], {"budgets": [budget(1)]}, {}, "allows 1 to end, not 2"),
    "two budgets": (
        [pod("a")],
        {"budgets": [budget(1), budget(1, name="more")], "nodes": 2},
        {},
        "several disruption budgets choose it (web/keep, web/more)",
    ),
    "not ready, and enough others are": ([pod("a", status=STARTING)], {"budgets": [budget(0)]}, {}, None),
    "not ready, and too few others are": (
        [pod("a", status=STARTING)],
        {"budgets": [budget(0, healthy=0)]},
        {},
        "allows 0",
    ),
    "not ready, and that is allowed": (
        [pod("a", status=STARTING)],
        {"budgets": [budget(0, healthy=0, unhealthyPodEvictionPolicy="AlwaysAllow")]},
        {},
        None,
    ),
    "pending": ([pod("a", status={"phase": "Pending"})], {"budgets": [budget(0)]}, {}, None),
}


@pytest.mark.parametrize("name", CASES)
def test_what_cannot_leave_is_named_and_nothing_is_touched(name, monkeypatch):
    pods, rest, options, words = CASES[name]
    cluster = Cluster(*pods, **rest)
    if words is None:
        assert run(monkeypatch, cluster, "judged", **options)["changed"] is False
    else:
        said = refused(monkeypatch, cluster, **options)
        assert words in said
        assert said.startswith("Nothing was changed.")
    assert cluster.calls == []


def test_a_budget_that_is_short_while_pods_start_is_waited_for(monkeypatch):
    cluster = Cluster(pod("a"), budgets=[budget(0, healthy=1, expected=2)], nodes=2)

    def answer(command):
        said = cluster(command)
        if "poddisruptionbudgets" in command:
            cluster.budgets = [budget(1, healthy=2, expected=2)]
        return said

    assert run(monkeypatch, answer, "judged", timeout_s=60)["evicted"] == ["web/a"]


def test_a_node_is_marked_emptied_and_released_and_that_is_all(monkeypatch):
    cluster = Cluster(pod("a"), pod("b", owner="DaemonSet"))
    result = run(monkeypatch, cluster, bare_pods=True)
    assert (result["changed"], result["evicted"], cluster.is_marked) == (True, ["web/a"], (True, True))
    assert cluster.calls[1] == [
        *("drain", "n0", "--ignore-daemonsets", "--timeout=0s", "--delete-emptydir-data", "--force")
    ]
    assert run(monkeypatch, cluster)["changed"] is False  # killed here, and run again
    assert run(monkeypatch, cluster, "released")["changed"] is True
    assert cluster.is_marked == (False, False)
    assert run(monkeypatch, cluster, "released")["changed"] is False
    assert cluster.verbs == ["patch", "drain", "patch"]


def test_somebody_elses_cordon_stays(monkeypatch):
    cluster = Cluster(pod("a"), cordoned=True)
    assert run(monkeypatch, cluster)["changed"] is True
    assert run(monkeypatch, cluster, "released")["changed"] is False
    assert (cluster.is_marked, cluster.verbs) == ((True, False), ["drain"])


@pytest.mark.parametrize("before", [False, True])
def test_a_node_that_does_not_get_empty_is_left_as_it_was(monkeypatch, before):
    cluster = Cluster(pod("a"), stuck=True, cordoned=before)
    said = refused(monkeypatch, cluster, "drained")
    assert "web/a (it is ending, for which it has 3600 s)" in said
    assert ("is schedulable again" in said) is not before
    assert cluster.is_marked == (before, False)


def test_check_mode_says_and_changes_nothing(monkeypatch):
    cluster = Cluster(pod("a"))
    assert run(monkeypatch, cluster, check_mode=True)["changed"] is True
    assert run(monkeypatch, Cluster(marked=True, cordoned=True), "released", check_mode=True)["changed"] is True
    assert cluster.calls == []


def test_a_machine_that_never_joined_has_nothing_to_lose(monkeypatch):
    assert run(monkeypatch, Cluster(pod("a", owner="")), node="other")["changed"] is False


def test_an_api_server_that_restarts_is_waited_for(monkeypatch):
    cluster = Cluster(marked=True, cordoned=True)
    cluster.refusals = 3
    assert run(monkeypatch, cluster, "released", timeout_s=60)["changed"] is True
    cluster.refusals = 3
    assert "does not answer: connection refused" in refused(monkeypatch, cluster, "released")


INSTALLED = {
    "cri-o": "1.35.6-1.1",
    "kubelet": "1.35.8-1.1",
    "kubeadm": "1.35.8-1.1",
    "kubernetes-cni": "1.8.0-1.1",
    "conntrack": "1.4",
}


@pytest.mark.parametrize(
    ("changed", "given", "outdated"),
    [
        ({}, {}, False),
        ({"kubelet": "1.35.7-1.1"}, {}, True),
        ({"cri-o": "1.35.60-1.1"}, {}, True),
        ({"nvidia-container-toolkit": "1.19.0-1"}, {}, True),
        ({"kubelet": None}, {}, False),
        ({}, {"crio_version": "1.35.5"}, True),
        ({}, {"kubernetes_packages_version": "1.35.8-1.1"}, False),
        ({}, {"nvidia_driver_state": "managed"}, True),
        ({}, {"nvidia_driver_state": "managed", "nvidia_driver_version": "570.1"}, False),
    ],
)
def test_only_a_machine_with_something_to_change_is_drained(changed, given, outdated):
    names = tree.load(tree.ROOT / "roles/kubernetes_packages/vars/main.yml")
    packages = {
        name: {"installed": version is not None, "version": version} for name, version in (INSTALLED | changed).items()
    }
    facts = {"node": {"gpu": {"pci_devices": 1, "driver": "570.1"}}}
    plain = {name: value for name, value in tree.variables().items() if not name.startswith(("crio_", "nvidia_"))}
    known = plain | {"__preflight_probe": {"probe": {"packages": packages}}, "ansible_facts": facts} | given
    wanted = {name: names[name] for name in names if name.endswith(("wanted", "found", "outdated"))}
    assert tree.template(wanted, known)["__kubernetes_packages_outdated"] is outdated


@pytest.mark.parametrize(
    ("status", "released"),
    [
        ({**READY, "nodeInfo": {"kubeletVersion": "v1.36.4"}}, True),
        ({**READY, "nodeInfo": {"kubeletVersion": "v1.35.8"}}, False),
        ({**STARTING, "nodeInfo": {"kubeletVersion": "v1.36.4"}}, False),
    ],
)
def test_a_node_is_released_when_its_new_kubelet_is_ready_and_not_before(monkeypatch, status, released):
    cluster = Cluster(cordoned=True, marked=True)
    cluster.nodes[0]["status"] = status
    if released:
        assert run(monkeypatch, cluster, "released", version="1.36.4")["changed"]
    else:
        assert "n0 stays cordoned" in refused(monkeypatch, cluster, "released", version="1.36.4")
    assert cluster.is_marked == (not released, not released)
    assert run(monkeypatch, Cluster(), "released", version="9")["changed"] is False
