"""What preflight says of namespaces, classes, quotas and limits: what would refuse something that an experiment makes."""

import pytest

from harness.backends.kubernetes import preflight
from harness.backends.kubernetes.api import KubernetesApi
from harness.errors import IssueLevel
from harness.spec import (
    ConditionSpec,
    KubernetesSpec,
    LayerSpec,
    ScenarioSpec,
    Sharing,
    SharingBy,
    WorkloadKind,
    WorkloadSpec,
)
from tests.support.experiments import experiment, neighbour
from tests.support.fake_admission import furnish
from tests.support.fake_cluster import FakeCluster, Review
from tests.support.fake_cluster_store import Refusal, Store, Target

GPU = "nvidia.com/gpu"
PLACE = "/api/v1/namespaces/inference"
SPEC = KubernetesSpec(image="localhost/gpu-sharing-harness/workload:1.0")
STATED = SPEC.model_copy(
    update={
        "reserve": {"cpu": "500m", "memory": "2Gi"},
        "limit": {"cpu": "2", "memory": "4Gi"},
        "client_reserve": {"cpu": "250m", "memory": "256Mi"},
        "client_limit": {"cpu": "1", "memory": "256Mi"},
        "load_generators": 2,
    }
)
ENOUGH = {"requests.cpu": "4", "requests.memory": "16Gi", "limits.cpu": "16", "limits.memory": "32Gi", "cpu": "4"}
LAYER = LayerSpec(preload="/opt/lib/hook.so", preload_image="registry.example/hook:1")
BESIDE = ConditionSpec(name="beside", neighbours=[neighbour(replicas=3)])
HTTP = {"scenario": ScenarioSpec(kind="http", rate=4)}
EIGHT = [experiment(replicas=8)]


@pytest.fixture(scope="module")
def running():
    with FakeCluster() as cluster:
        yield cluster


@pytest.fixture
def cluster(running):
    running.store, running.denied = Store(), set()
    furnish(running.store)
    return running


@pytest.fixture
def checked(cluster, tmp_path):
    """What is found of experiments in a namespace with these quotas and limits, as (check, severity, message, away)."""
    kubeconfig = str(cluster.write_kubeconfig(tmp_path / "kubeconfig"))

    def checking(hard=(), limits=(), of=EIGHT, spec=SPEC, used=(), **quota):
        api = KubernetesApi(KubernetesSpec(kubeconfig=kubeconfig))
        made = [("resourcequotas/q", {"hard": dict(hard), **quota})] * bool(hard)
        for path, its in [*made, *([("limitranges/l", {"limits": list(limits)})] * bool(limits))]:
            api.apply(f"{PLACE}/{path}", {"metadata": {"name": path[-1]}, "spec": its})
        if used:
            api.patch(f"{PLACE}/resourcequotas/q/status", {"status": {"used": dict(used)}})
        _, found = preflight.Preflight(api, spec, of, "mine").admitted()
        for path in ("resourcequotas/q", "limitranges/l"):
            api.delete(f"{PLACE}/{path}")
        return [(each.check, each.severity, each.message, each.away) for each in found]

    return checking


def needs(found):
    """Keys and needed amounts of the quotas that are too small."""
    told = [message.partition(" allows ")[2] for *_, message, _ in found if " allows " in message]
    return {one.partition(":")[0]: one.rpartition(" ")[2].removesuffix(".") for one in told}


def served(tmp_path, **changes):
    """Two replicas of a server that is asked what a file says."""
    lines = tmp_path / "prompts.jsonl"
    lines.write_text('{"prompt": "a"}\n')
    server = {"image": "x/y:1", "args": ["{port}"], "requests": {"file": str(lines)}, **changes}
    return experiment(replicas=2).model_copy(update={"workload": WorkloadSpec(name="mine", server=server)})


def test_where_nothing_is_in_the_way_nothing_is_said(checked):
    assert checked() == []
    assert checked({"pods": "8", "count/jobs.batch": "0", f"requests.{GPU}": "8"}) == []
    assert checked({"count/secrets": "0", "count/configmaps": "0", "requests.ephemeral-storage": "1Gi"}) == []
    assert checked({f"requests.{GPU}": "0"}, spec=SPEC.model_copy(update={"gpus_per_replica": 0})) == []


@pytest.mark.parametrize(
    ("gone", "check"),
    [
        (("namespaces", "", "inference"), "namespace"),
        (("runtimeclasses", "", "nvidia"), "runtime class"),
        (("serviceaccounts", "inference", "replica"), "admission"),
    ],
)
@pytest.mark.parametrize("of", [EIGHT, []], ids=["planned", "none planned"])
def test_what_pods_need_and_is_not_there_is_refused(checked, cluster, gone, check, of):
    del cluster.store._objects[gone]
    assert [each[:2] for each in checked(of=of)] == [(check, IssueLevel.ERROR)]


def test_a_namespace_that_is_going_and_a_class_that_is_not_there(checked, cluster):
    night = SPEC.model_copy(update={"priority_class": "night"})
    assert [each[:2] for each in checked(spec=night)] == [("priority class", IssueLevel.ERROR)]
    cluster.store._objects["namespaces", "", "inference"]["status"] = {"phase": "Terminating"}
    assert [each[:2] for each in checked()] == [("namespace", IssueLevel.ERROR)]


@pytest.mark.parametrize(("refused", "severity"), [("deployments", IssueLevel.ERROR), ("pods", IssueLevel.WARNING)])
def test_a_policy_of_the_cluster_is_told_in_its_own_words(checked, cluster, refused, severity):
    def refuse(verb, target):
        if (verb, target.resource) == ("create", refused):
            raise Refusal(403, "Forbidden", 'admission webhook "policy.example" denied the request: no team label')

    cluster.before = refuse
    [found] = checked()
    cluster.before = lambda *_: None
    assert found[:2] == ("admission", severity), "of pods it may be meant for those without an owner"
    assert "no team label" in found[2]


def test_without_the_right_to_try_a_pod_quotas_are_counted_all_the_same(checked, cluster):
    cluster.denied.add(Review("create", "pods"))
    found = checked({"pods": "7"})
    assert [each[:2] for each in found] == [("quota", IssueLevel.WARNING), ("quota", IssueLevel.ERROR)]
    assert needs(found) == {"pods": "8"}


@pytest.mark.parametrize(
    ("hard", "needed"),
    [
        ({f"requests.{GPU}": "4"}, "8"),
        ({"pods": "7"}, "8"),
        ({"count/pods": "7"}, "8"),
        ({"count/deployments.apps": "0"}, "1"),
        ({"count/replicasets.apps": "0"}, "1"),
    ],
)
def test_a_quota_that_would_refuse_the_replicas(checked, hard, needed):
    found = checked(hard)
    assert [each[:2] for each in found] == [("quota", IssueLevel.ERROR)]
    assert needs(found) == dict.fromkeys(hard, needed)


def test_what_others_use_is_refused_and_may_end_and_what_is_left_of_the_campaign_is_deleted_first(checked, cluster):
    [(check, severity, _, away)] = checked({"pods": "10"}, used={"pods": "3"})
    assert (check, severity, away) == ("quota", IssueLevel.ERROR, True)
    labels = {"gpu-sharing-harness/campaign": "mine"}
    body = {"metadata": {"name": "left", "labels": labels}, "spec": {"containers": [{"image": "x"}]}}
    cluster.store.create(Target("api/v1", "inference", "pods"), body)
    assert [each[1] for each in checked({"pods": "10"}, used={"pods": "3"})] == [IssueLevel.WARNING]
    assert [each[1] for each in checked({"pods": "10"}, used={"pods": "10"})] == [IssueLevel.WARNING], "not even one"


@pytest.mark.parametrize(
    ("spec", "of", "enough"),
    [
        (
            SPEC,
            [experiment(replicas=2, condition=BESIDE), experiment(replicas=4)],
            {"count/deployments.apps": "2", "pods": "5", f"requests.{GPU}": "5"},
        ),
        (
            SPEC.model_copy(update={"kind": WorkloadKind.JOB, "load_generators": 3}),
            [experiment(replicas=4, workload=HTTP)],
            {"count/jobs.batch": "2", "pods": "7", f"requests.{GPU}": "4"},
        ),
        (
            SPEC.model_copy(update={"sharing_by": SharingBy.DRA}),
            [experiment(replicas=2, sharing=Sharing.EXCLUSIVE)],
            {
                "gpu.nvidia.com.deviceclass.resource.k8s.io/devices": "2",
                "count/resourceclaims.resource.k8s.io": "2",
                "count/resourceclaimtemplates.resource.k8s.io": "1",
            },
        ),
        (
            SPEC.model_copy(update={"sharing_by": SharingBy.DRA}),
            [experiment(replicas=3, gpus=2, condition=ConditionSpec(name="b", neighbours=[neighbour(replicas=2)]))],
            {
                "gpu.nvidia.com.deviceclass.resource.k8s.io/devices": "2",
                "count/resourceclaims.resource.k8s.io": "2",
                "count/deployments.apps": "4",
                "pods": "5",
            },
        ),
        (STATED, EIGHT, ENOUGH),
        (STATED, [experiment(replicas=8, condition=ConditionSpec(name="h", layer=LAYER))], ENOUGH),
        (STATED, [experiment(replicas=2, condition=BESIDE)], {"requests.cpu": "2.5"}),
        (STATED, [experiment(replicas=4, workload=HTTP)], {"requests.cpu": "2.5"}),
    ],
)
def test_everything_of_an_experiment_counts_and_no_more(checked, spec, of, enough):
    assert checked(enough, spec=spec, of=of) == []
    for key, most in enough.items():
        less = f"{int(most[:-2]) - 1}Gi" if most.endswith("Gi") else f"{round(float(most) * 1000) - 1}m"
        assert needs(checked({**enough, key: less}, spec=spec, of=of)) == {key: most}


def test_files_of_a_server_and_what_it_reserves_count(checked, tmp_path):
    asked = served(tmp_path, reserve={"cpu": "1500m", "memory": "16Gi"})
    hard = {"count/configmaps": "0", "configmaps": "0", "requests.cpu": "2", "memory": "20Gi"}
    found = checked(hard, of=[asked], spec=SPEC.model_copy(update={"client_reserve": {"cpu": "0", "memory": "0"}}))
    assert needs(found) == {"requests.cpu": "3", "memory": "32Gi", "configmaps": "1", "count/configmaps": "1"}


@pytest.mark.parametrize(
    ("scope", "counts"),
    [
        ({"scopes": ["BestEffort"]}, True),
        ({"scopes": ["NotBestEffort"]}, False),
        ({"scopes": ["Terminating"]}, False),
        ({"scopes": ["NotTerminating", "BestEffort"]}, True),
        ({"scopes": ["PriorityClass"]}, True),
        *(
            ({"scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": operator, "values": values}]}}, counts)
            for operator, values, counts in [
                ("In", ["research"], True),
                ("In", ["system"], False),
                ("NotIn", ["research"], False),
                ("DoesNotExist", [], False),
            ]
        ),
    ],
)  # fmt: skip
def test_a_quota_counts_for_the_pods_in_its_scope(checked, cluster, scope, counts):
    furnish(cluster.store, priority="research")
    urgent = SPEC.model_copy(update={"priority_class": "research"})
    assert bool(checked({"pods": "1"}, spec=urgent, **scope)) is counts
    if scope.get("scopes") in (["BestEffort"], ["NotBestEffort"]):
        assert bool(checked({"pods": "1"}, spec=STATED, **scope)) is not counts


@pytest.mark.parametrize(
    ("spec", "refused"),
    [(SPEC, True), (STATED, False), (STATED.model_copy(update={"reserve": {}, "client_reserve": {}}), False)],
    ids=["nothing", "both", "a limit is a request"],
)
def test_a_quota_refuses_pods_that_do_not_state_what_it_counts(checked, spec, refused):
    found = checked({"limits.cpu": "64", "requests.memory": "1Ti"}, spec=spec, of=[experiment(workload=HTTP)])
    assert [each[:2] for each in found] == ([("quota", IssueLevel.ERROR)] * 2 if refused else []), "replicas and load"
    assert all("must specify limits.cpu for: replica" in message for *_, message, _ in found)


def test_default_limits_let_a_replica_in_and_throttle_it_and_count(checked):
    default = [{"type": "Container", "default": {"cpu": "2"}}]
    [(_, severity, message, _)] = checked({"limits.cpu": "64"}, limits=default)
    assert severity is IssueLevel.WARNING
    assert "(cpu 2)" in message
    assert needs(checked({"requests.cpu": "8"}, limits=default)) == {"requests.cpu": "16"}


def test_a_pod_of_each_kind_is_tried_and_nothing_is_made(checked, cluster):
    tried = []
    cluster.before = lambda verb, target: tried.append(target.resource) if verb == "create" else None
    checked(of=[experiment(replicas=count) for count in (1, 2, 4)])
    cluster.before = lambda *_: None
    assert tried == ["pods", "deployments"]
    assert not [key for key in cluster.store._objects if key[0] in tried]
