"""What preflight says of quotas and limits: what would refuse something that an experiment makes, with its numbers."""

import re

import pytest

from harness.backends.kubernetes import parts
from harness.backends.kubernetes.quota import check_quota
from harness.errors import Severity
from harness.spec import ConditionSpec, KubernetesSpec, LayerSpec, ScenarioSpec, Sharing, SharingBy, WorkloadSpec
from tests.support.experiments import experiment, neighbour

GPU = "nvidia.com/gpu"
IMAGE = "localhost/gpu-sharing-harness/workload:1.0"
SPEC = KubernetesSpec(image=IMAGE)


class Namespace:
    """An API server with quotas, limits and pods of the campaign."""

    def __init__(self, quotas, ranges, pods):
        self.items = {"resourcequotas": list(quotas), "limitranges": list(ranges), "pods": list(pods)}

    def list(self, path, *, labels=""):
        assert path.startswith("/api/v1/namespaces/inference/")
        assert labels == ("gpu-sharing-harness/campaign=mine" if path.endswith("/pods") else "")
        return self.items[path.rpartition("/")[2]]


def quota(**hard):
    return {"metadata": {"name": "q"}, "spec": {"hard": hard}, "status": {"used": {}}}


def _of_class(operator, *values):
    return {
        "scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": operator, "values": values}]}
    }


def limits(**default):
    return {"metadata": {"name": "l"}, "spec": {"limits": [{"type": "Container", "default": default}]}}


def quota_findings(*quotas, ranges=(), spec=SPEC, of=(), left=()):
    """What is found of one experiment of 8 replicas, or of some."""
    return [(one.severity, one.message) for one in checked(quotas, ranges, spec, of or [experiment(replicas=8)], left)]


def checked(quotas, ranges, spec, experiments, left):
    made = [[part.workload for part in parts.everything(one, spec, "mine")] for one in experiments]
    return check_quota(Namespace(quotas, ranges, left), "inference", lambda: made, "mine")


@pytest.mark.parametrize(
    ("hard", "words"),
    [
        ({f"requests.{GPU}": "4"}, "allows requests.nvidia.com/gpu: 4, of which 0 are used, and the campaign needs 8"),
        ({"pods": "7"}, "allows pods: 7"),
        ({"count/pods": "7"}, "allows count/pods: 7"),
        (
            {"count/deployments.apps": "0"},
            "allows count/deployments.apps: 0, of which 0 are used, and the campaign needs 1",
        ),
        ({"count/replicasets.apps": "0"}, "allows count/replicasets.apps: 0"),
        ({"limits.cpu": "64", "requests.memory": "1Ti"}, "counts limits.cpu, requests.memory, and so refuses pods"),
    ],
)
def test_a_quota_that_would_refuse_the_replicas(hard, words):
    [(severity, message)] = quota_findings(quota(**hard))
    assert severity is Severity.ERROR
    assert words in message
    scoped = {**quota(**hard), "spec": {"hard": hard, "scopes": ["Terminating"]}}
    assert quota_findings(scoped) == []


def test_what_is_not_made_is_not_counted():
    assert quota_findings(quota(**{"count/secrets": "0", "count/jobs.batch": "0", "count/configmaps": "0"})) == []
    assert quota_findings(quota(**{"requests.ephemeral-storage": "1Gi"})) == [], "pods need not state it"


def test_a_quota_has_to_allow_an_owner_for_each_workload_of_an_experiment():
    beside = ConditionSpec(name="beside", neighbours=[neighbour(replicas=3)])
    hard = {"count/deployments.apps": "1", "pods": "4", f"requests.{GPU}": "5"}
    found = quota_findings(quota(**hard), of=[experiment(replicas=2, condition=beside), experiment(replicas=4)])

    assert [message.partition(" allows ")[2] for _, message in found] == [
        "pods: 4, of which 0 are used, and the campaign needs 5.",
        "count/deployments.apps: 1, of which 0 are used, and the campaign needs 2.",
    ]


def test_jobs_and_the_pods_that_send_requests_count():
    http = {"scenario": ScenarioSpec(kind="http", rate=4)}
    spec = KubernetesSpec(image=IMAGE, kind="job", load_generators=3)
    hard = {"count/jobs.batch": "1", "pods": "7", f"requests.{GPU}": "4"}
    found = quota_findings(quota(**hard), spec=spec, of=[experiment(replicas=4, workload=http)])

    assert found == [
        (Severity.ERROR, "the quota q allows count/jobs.batch: 1, of which 0 are used, and the campaign needs 2.")
    ]
    for less in ({"pods": "6"}, {f"requests.{GPU}": "3"}):
        assert len(quota_findings(quota(**less), spec=spec, of=[experiment(replicas=4, workload=http)])) == 1


def served(tmp_path, **changes):
    """Two replicas of a server that is asked what a file says."""
    lines = tmp_path / "prompts.jsonl"
    lines.write_text('{"prompt": "a"}\n')
    server = {"image": "x/y:1", "args": ["{port}"], "requests": {"file": str(lines)}, **changes}
    return experiment(replicas=2).model_copy(update={"workload": WorkloadSpec(name="mine", server=server)})


def test_files_of_a_server_and_what_it_reserves_count(tmp_path):
    asked = served(tmp_path, reserve={"cpu": "1500m", "memory": "16Gi"})
    hard = {"count/configmaps": "0", "configmaps": "0", "requests.cpu": "2", "memory": "20Gi"}
    found = quota_findings(quota(**hard), of=[asked], ranges=[limits()])

    assert [message.partition(" allows ")[2] for _, message in found if " allows " in message] == [
        "requests.cpu: 2, of which 0 are used, and the campaign needs 3.",
        "memory: 20Gi, of which 0 are used, and the campaign needs 32Gi.",
        "configmaps: 0, of which 0 are used, and the campaign needs 1.",
        "count/configmaps: 0, of which 0 are used, and the campaign needs 1.",
    ]
    assert any("counts memory, requests.cpu, and so refuses pods without" in message for _, message in found), (
        "its client"
    )


def test_claims_and_their_devices_count():
    spec = SPEC.model_copy(update={"sharing_by": SharingBy.DRA})
    devices = "gpu.nvidia.com.deviceclass.resource.k8s.io/devices"
    hard = {devices: "1", "count/resourceclaims.resource.k8s.io": "1"}
    assert quota_findings(quota(**hard), spec=spec) == [], "replicas that share a GPU share a claim"
    alone = [experiment(replicas=2, sharing=Sharing.EXCLUSIVE)]
    assert [message.partition(" allows ")[2].partition(":")[0] for _, message in quota_findings(
        quota(**hard, **{"count/resourceclaimtemplates.resource.k8s.io": "1"}), spec=spec, of=alone
    )] == [devices, "count/resourceclaims.resource.k8s.io"]  # fmt: skip


def test_each_of_several_shared_gpus_counts_with_its_owner():
    spec = SPEC.model_copy(update={"sharing_by": SharingBy.DRA})
    beside = ConditionSpec(name="beside", neighbours=[neighbour(replicas=2)])
    two = [experiment(replicas=3, gpus=2, condition=beside)]
    hard = {
        "gpu.nvidia.com.deviceclass.resource.k8s.io/devices": "2",
        "count/resourceclaims.resource.k8s.io": "2",
        "count/deployments.apps": "4",
        "pods": "5",
    }
    assert quota_findings(quota(**hard), spec=spec, of=two) == []
    for key, most in hard.items():
        [(_, message)] = quota_findings(quota(**hard | {key: str(int(most) - 1)}), spec=spec, of=two)
        assert f"allows {key}: {int(most) - 1}, of which 0 are used, and the campaign needs {most}." in message


def test_what_others_use_is_refused_and_may_end_and_what_is_enough_is_nothing():
    used = {**quota(pods="10"), "status": {"used": {"pods": "3"}}}
    [found] = checked([used], [], SPEC, [experiment(replicas=8)], [])
    assert (found.severity, found.away) == (Severity.ERROR, True)
    assert "allows pods: 10, of which 3 are used, and the campaign needs 8" in found.message
    left = [severity for severity, _ in quota_findings(used, left=[{"metadata": {"name": "of-a-killed-harness"}}])]
    assert left == [Severity.WARNING], "they are deleted before anything is made"
    assert quota_findings(quota(pods="8", **{"count/jobs.batch": "0", f"requests.{GPU}": "8"})) == []
    assert quota_findings(quota(**{f"requests.{GPU}": "0"}), spec=KubernetesSpec(gpus_per_replica=0)) == []


@pytest.mark.parametrize(
    ("scope", "counts"),
    [
        ({"scopes": ["BestEffort"]}, True),
        ({"scopes": ["NotBestEffort"]}, False),
        ({"scopes": ["NotTerminating", "BestEffort"]}, True),
        ({"scopes": ["CrossNamespacePodAffinity"]}, False),
        ({"scopes": ["PriorityClass"]}, True),
        (_of_class("In", "research"), True),
        (_of_class("In", "system-node-critical"), False),
        (_of_class("NotIn", "research"), False),
        (_of_class("DoesNotExist"), False),
    ],
)
def test_a_quota_counts_for_the_pods_in_its_scope(scope, counts):
    scoped = {**quota(pods="1"), "spec": {"hard": {"pods": "1"}, **scope}}
    assert bool(quota_findings(scoped, spec=KubernetesSpec(image=IMAGE, priority_class="research"))) is counts


STATED = KubernetesSpec(
    image=IMAGE,
    reserve={"cpu": "500m", "memory": "2Gi"},
    limit={"cpu": "2", "memory": "4Gi"},
    client_reserve={"cpu": "250m", "memory": "256Mi"},
    client_limit={"cpu": "1", "memory": "256Mi"},
    load_generators=2,
)


def test_what_replicas_state_lets_them_into_a_quota_that_counts_it():
    enough = {"requests.cpu": "4", "requests.memory": "16Gi", "limits.cpu": "16", "limits.memory": "32Gi", "cpu": "4"}
    assert quota_findings(quota(**enough), spec=STATED) == []
    for key, less, needed in [
        ("requests.cpu", "3999m", "4"), ("cpu", "3999m", "4"), ("requests.memory", "15Gi", "16Gi"),
        ("limits.cpu", "15", "16"), ("limits.memory", "31Gi", "32Gi"),
    ]:  # fmt: skip
        [(severity, message)] = quota_findings(quota(**{**enough, key: less}), spec=STATED)
        assert severity is Severity.ERROR
        assert message == f"the quota q allows {key}: {less}, of which 0 are used, and the campaign needs {needed}."


def test_what_is_copied_before_a_replica_starts_counts_no_second_time():
    layer = LayerSpec(preload="/opt/lib/hook.so", preload_image="registry.example/hook:1")
    layered = experiment(replicas=8, condition=ConditionSpec(name="hooked", layer=layer))
    assert quota_findings(quota(**{"requests.cpu": "4", "limits.memory": "32Gi"}), spec=STATED, of=[layered]) == []


def test_neighbours_count_as_replicas_do_and_what_sends_requests_as_it_says():
    beside = ConditionSpec(name="beside", neighbours=[neighbour(replicas=3)])
    [(_, message)] = quota_findings(quota(**{"requests.cpu": "2"}), spec=STATED, of=[experiment(condition=beside)])
    assert "the campaign needs 2.5" in message
    http = experiment(replicas=4, workload={"scenario": ScenarioSpec(kind="http", rate=4)})
    [(_, message)] = quota_findings(quota(**{"requests.cpu": "2"}), spec=STATED, of=[http])
    assert "the campaign needs 2.5" in message


def test_who_states_nothing_is_named_with_the_field_that_lacks():
    http = experiment(workload={"scenario": ScenarioSpec(kind="http", rate=4)})
    silent = STATED.model_copy(update={"client_limit": {}})
    [found] = checked([quota(**{"limits.cpu": "64", "requests.cpu": "64"})], [], silent, [http], [])
    assert (
        "counts limits.cpu, and so refuses pods without: the container replica of load-tiny has none." in found.message
    )
    assert "`kubernetes.limit` (`client_limit` of what sends requests, a server's own `limit`)" in found.advice
    assert "reserve" not in found.advice

    stated_as_limit = STATED.model_copy(update={"reserve": {}, "client_reserve": {}})
    assert quota_findings(quota(**{"requests.cpu": "64"}), spec=stated_as_limit, of=[http]) == [], (
        "a limit is a request"
    )


def test_a_quota_for_pods_that_state_nothing_is_none_for_those_that_do():
    for scope, counts in (("BestEffort", False), ("NotBestEffort", True)):
        scoped = {**quota(pods="1"), "spec": {"hard": {"pods": "1"}, "scopes": [scope]}}
        assert bool(quota_findings(scoped, spec=STATED)) is counts


def test_default_limits_are_none_for_what_states_its_own():
    assert quota_findings(ranges=[limits(cpu="3", memory="8Gi")], spec=STATED) == []
    half = STATED.model_copy(update={"limit": {"cpu": "2"}})
    [(severity, message)] = quota_findings(ranges=[limits(cpu="3", memory="8Gi")], spec=half)
    assert severity is Severity.WARNING
    assert "limits every replica (memory 8Gi)" in message


@pytest.mark.parametrize(
    ("bounds", "why"),
    [
        (
            {"maxLimitRequestRatio": {"cpu": "3"}},
            "it allows 3 times the cpu that is asked for as limit, and 2 are the limit of 0.5",
        ),
        ({"maxLimitRequestRatio": {"ephemeral-storage": "2"}}, "and nothing is stated"),
        ({"max": {"memory": "3Gi"}}, "it allows at most 3Gi of memory, and 4Gi are asked for"),
        ({"min": {"cpu": "1"}}, "it wants at least 1 of cpu, and 0.5 are asked for"),
    ],
)
@pytest.mark.parametrize("kind", ["Pod", "Container"])
def test_a_limit_range_that_refuses_what_replicas_state(kind, bounds, why):
    found = quota_findings(ranges=[_range(kind, **bounds)], spec=STATED, of=[experiment(replicas=1)])
    assert [message for severity, message in found if severity is Severity.ERROR and why in message]
    fits = {"maxLimitRequestRatio": {"cpu": "4", "memory": "2"}, "max": {"cpu": "2"}, "min": {"memory": "2Gi"}}
    assert not [one for one, _ in quota_findings(ranges=[_range(kind, **fits)], spec=STATED) if one is Severity.ERROR]


def test_default_limits_let_a_replica_in_and_throttle_it():
    [(severity, message)] = quota_findings(quota(**{"limits.cpu": "64"}), ranges=[limits(cpu="2")])
    assert severity is Severity.WARNING
    assert "the LimitRange l limits every replica (cpu 2)" in message
    assert "and the campaign needs 16" in quota_findings(quota(**{"requests.cpu": "8"}), ranges=[limits(cpu="2")])[1][1]


def _range(kind, **bounds):
    return {"metadata": {"name": "l"}, "spec": {"limits": [{"type": kind, **bounds}]}}


@pytest.mark.parametrize(
    ("bounds", "why"),
    [
        (
            _range("Pod", max={"memory": "8Gi"}),
            "pod of mine: it allows at most 8Gi of memory, and no limit is stated",
        ),
        (_range("Pod", min={"cpu": "3"}), "pod of mine: it wants at least 3 of cpu, and 2 are asked for"),
        (
            _range("Container", max={GPU: "0"}),
            "container server of mine: it allows at most 0 of nvidia.com/gpu, and 1 are",
        ),
        (
            _range("Container", default={"memory": "8Gi"}),
            "container server of mine: it limits memory to 8Gi, and 16Gi are",
        ),
    ],
)
def test_a_limit_range_that_refuses_what_a_server_reserves(tmp_path, bounds, why):
    found = quota_findings(ranges=[bounds], of=[served(tmp_path, reserve={"cpu": "2", "memory": "16Gi"})])
    refused = [message for severity, message in found if severity is Severity.ERROR]
    assert re.search(f"the LimitRange l refuses the {why}", "\n".join(refused))
