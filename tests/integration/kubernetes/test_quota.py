"""Preflight refuses by a quota or a limit what the real API server refuses, and nothing else."""

import contextlib

import pytest

from harness.backends.kubernetes import objects, preflight
from harness.backends.kubernetes.api import KubernetesApi
from harness.errors import ClusterError, IssueLevel
from harness.spec import WorkloadSpec
from tests.support.experiments import experiment
from tests.support.processes import eventually

PLACE = "/api/v1/namespaces/inference"
STATED = {
    "reserve": {"cpu": "500m", "memory": "2Gi"},
    "limit": {"cpu": "2", "memory": "4Gi"},
    "client_reserve": {"cpu": "250m", "memory": "256Mi"},
    "client_limit": {"cpu": "1", "memory": "256Mi"},
}
LIMITED = {"image": "x/y:1", "args": ["{port}"], "reserve": {"cpu": "2"}, "limit": {"cpu": "4", "memory": "16Gi"}}
RESERVED = {"image": "x/y:1", "args": ["{port}"], "reserve": {"cpu": "2", "memory": "16Gi"}}


@pytest.fixture
def api(server):
    admin = KubernetesApi(server.spec(kubeconfig=str(server.admin)))
    if server.kind == "fake":
        for path in (PLACE, f"{PLACE}/serviceaccounts/replica"):
            admin.apply(path, {"metadata": {"name": path.rpartition("/")[2]}})
    return admin


def quota(scopes=(), **hard):
    return "resourcequotas", {"hard": hard, **({"scopes": list(scopes)} if scopes else {})}


def limits(kind, **bounds):
    return "limitranges", {"limits": [{"type": kind, **bounds}]}


@contextlib.contextmanager
def in_force(api, kind, spec):
    """A quota or a limit as long as the block lasts, from when the API server heeds it: it heeds a later quota then, too."""
    last = ("resourcequotas", "last", {"hard": {"services": "0"}})
    with contextlib.ExitStack() as stack:
        for plural, name, its in [(kind, "test", spec), last]:
            path = f"{PLACE}/{plural}/{name}"
            stack.callback(api.delete, path)
            singular = {"resourcequotas": "ResourceQuota", "limitranges": "LimitRange"}[plural]
            api.apply(path, {"apiVersion": "v1", "kind": singular, "metadata": {"name": name}, "spec": its})
            if "hard" in its:  # what the controller of quotas does
                api.patch(f"{path}/status", {"status": {"hard": its["hard"], "used": dict.fromkeys(its["hard"], "0")}})
        service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}, "spec": {"ports": [{"port": 1}]}}
        stack.callback(api.delete, f"{PLACE}/services/a")
        assert eventually(
            lambda: _refusal(api, f"{PLACE}/services/a", service) or not api.delete(f"{PLACE}/services/a")
        )
        yield


def _refusal(api, path, body):
    try:
        api.apply(path, body)
    except ClusterError as error:
        if error.status not in {403, 422}:
            raise
        return error.message
    return ""


def refused(api, made):
    """What the API server says of an experiment's pod, its owner or what stands beside it, where it does not take one."""
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": made.name}}
    pod["spec"] = {**made.body["spec"]["template"]["spec"], "schedulingGates": [{"name": "test.example/never"}]}
    path = f"{objects.pods_path('inference')}/{made.name}"
    # The owner comes last: a controller may make a pod for it, which counts, too.
    wanted = {one.path: one.body for one in made.beside} | {path: pod, made.owners[0].path: made.body}
    with contextlib.ExitStack() as stack:
        for one in wanted:
            stack.callback(api.delete, one, grace_s=0)
        return "".join(_refusal(api, one, body) for one, body in wanted.items())


def agree(api, pods, kind, spec, server_asks):
    """Preflight refuses a quota or a limit where the API server does."""
    asked = experiment(replicas=1)
    if server_asks:
        asked = asked.model_copy(update={"workload": WorkloadSpec(name="mine", server=server_asks)})
    [group] = objects.all_pods(asked, pods, "c0ffee")
    with in_force(api, kind, spec):
        _, found = preflight.Preflight(api, pods, [asked], "c0ffee").admitted()
        said = refused(api, group)
    assert bool(said) is any(one.severity is IssueLevel.ERROR for one in found), (said, found)


@pytest.mark.parametrize(
    ("kind", "spec", "server_asks"),
    [
        (*quota(pods="0"), {}),
        (*quota(**{"count/pods": "0"}), {}),
        (*quota(pods="1"), {}),
        (*quota(**{"requests.nvidia.com/gpu": "0"}), {}),
        (*quota(**{"requests.nvidia.com/gpu": "1"}), {}),
        (*quota(**{"count/deployments.apps": "0"}), {}),
        (*quota(**{"count/secrets": "0", "count/jobs.batch": "0"}), {}),
        (*quota(**{"limits.cpu": "64"}), {}),
        (*quota(**{"requests.memory": "64Gi"}), RESERVED),
        (*quota(**{"requests.ephemeral-storage": "1Gi"}), {}),
        (*quota(["BestEffort"], pods="0"), {}),
        (*quota(["NotBestEffort"], pods="0"), {}),
        (*quota(["NotBestEffort"], pods="0"), RESERVED),
        (*quota(["Terminating"], pods="0"), {}),
        (*quota(["NotTerminating"], pods="0"), {}),
        (*limits("Pod", max={"memory": "8Gi"}), {}),
        (*limits("Pod", min={"cpu": "1"}), {}),
        (*limits("Pod", min={"cpu": "3"}), RESERVED),
        (*limits("Container", max={"memory": "8Gi"}), {}),
        (*limits("Container", max={"memory": "8Gi"}), RESERVED),
        (*limits("Container", max={"memory": "32Gi"}, default={"memory": "8Gi"}), RESERVED),
        (*limits("Container", min={"cpu": "1"}), {}),
        (*limits("Container", max={"nvidia.com/gpu": "0"}), {}),
    ],
)
def test_preflight_refuses_what_the_api_server_refuses(api, server, kind, spec, server_asks):
    agree(api, server.spec(), kind, spec, server_asks)


@pytest.mark.parametrize("server_asks", [{}, LIMITED])
@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        quota(**{"limits.cpu": "64", "limits.memory": "64Gi", "requests.cpu": "64", "requests.memory": "64Gi"}),
        quota(cpu="64", memory="64Gi"),
        quota(**{"requests.cpu": "499m"}),
        quota(**{"requests.cpu": "500m"}),
        quota(**{"limits.memory": "4095Mi"}),
        quota(["BestEffort"], pods="0"),
        quota(["NotBestEffort"], pods="0"),
        limits("Pod", max={"memory": "8Gi"}),
        limits("Pod", max={"memory": "3Gi"}),
        limits("Container", max={"cpu": "4"}),
        limits("Container", max={"cpu": "1500m"}),
        limits("Container", min={"cpu": "250m"}),
        limits("Container", min={"cpu": "1"}),
        limits("Container", default={"memory": "1Gi"}),
        limits("Container", maxLimitRequestRatio={"cpu": "4"}),
        limits("Container", maxLimitRequestRatio={"cpu": "3"}),
        limits("Pod", maxLimitRequestRatio={"memory": "2"}),
        limits("Pod", maxLimitRequestRatio={"memory": "1500m"}),
        limits("Pod", maxLimitRequestRatio={"ephemeral-storage": "2"}),
    ],
)
@pytest.mark.parametrize("stated", [STATED, {}, {"limit": STATED["limit"], "client_limit": STATED["client_limit"]}])
def test_preflight_refuses_of_what_is_stated_what_the_api_server_refuses(api, server, kind, spec, server_asks, stated):
    agree(api, server.spec(**stated), kind, spec, server_asks)


def test_the_api_server_takes_every_shape_and_calls_it_by_its_class(api, server):
    if server.kind == "fake":
        pytest.skip("the fake completes pods in dry runs alone")
    whole = {"cpu": "1", "memory": "1Gi"}
    for stated, qos_class in [
        ({}, "BestEffort"),
        (STATED, "Burstable"),
        ({"reserve": whole, "limit": whole}, "Guaranteed"),
        ({"limit": {**whole, "ephemeral-storage": "1Gi"}}, "Guaranteed"),
    ]:
        [part] = objects.all_pods(experiment(replicas=1), server.spec(**stated), "c0ffee")
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": part.name}}
        pod["spec"] = {
            **part.body["spec"]["template"]["spec"],
            "schedulingGates": [{"name": "test.example/never"}],
        }
        path = f"{objects.pods_path('inference')}/{part.name}"
        try:
            api.apply(path, pod)
            made = api.find(path)
            assert made["status"]["qosClass"] == qos_class
            assert made["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"
        finally:
            api.delete(path, grace_s=0)
