"""Preflight refuses by a quota or a limit what the real API server refuses, and nothing else."""

import contextlib

import pytest

from harness.backends.base import Severity
from harness.backends.kubernetes import objects, parts
from harness.backends.kubernetes.client import KubernetesApi
from harness.backends.kubernetes.quota import check_quota
from harness.config import WorkloadSpec
from harness.errors import ClusterError
from tests.support.experiments import experiment

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore:Unverified HTTPS request"),  # the test's API server signs for itself
]
PLACE = "/api/v1/namespaces/inference"
RESERVED = {"image": "x/y:1", "args": ["{port}"], "reserve": {"cpu": "2", "memory": "16Gi"}}


@pytest.fixture
def api(server, driver):  # noqa: ARG001 - who makes the accounts and the place that pods want
    if server.kind == "fake":
        pytest.skip("the fake admits everything")
    return KubernetesApi(server.spec(kubeconfig=str(server.admin)))


def quota(scopes=(), **hard):
    return "resourcequotas", {"hard": hard, **({"scopes": list(scopes)} if scopes else {})}


def limits(kind, **bounds):
    return "limitranges", {"limits": [{"type": kind, **bounds}]}


def refused(api, made):
    """Whether the API server takes none of an experiment's pods, its owner or what stands beside it."""
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": made.name}}
    pod["spec"] = {**made.body["spec"]["template"]["spec"], "schedulingGates": [{"name": "test.example/never"}]}
    wanted = {one.path: one.body for one in made.beside} | {
        made.path: made.body,
        f"{objects.pods_path('inference')}/{made.name}": pod,
    }
    said = ""
    with contextlib.ExitStack() as stack:
        for path, body in wanted.items():
            stack.callback(api.delete, path, grace_s=0)
            try:
                api.apply(path, body)
            except ClusterError as error:
                if error.status != 403:
                    raise
                said = error.message
    return said


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
    asked = experiment(replicas=1)
    if server_asks:
        asked = asked.model_copy(update={"workload": WorkloadSpec(name="mine", server=server_asks)})
    [part] = parts.everything(asked, server.spec(), "c0ffee")
    path = f"{PLACE}/{kind}/test"
    api.apply(
        path,
        {
            "apiVersion": "v1",
            "kind": kind[:-1].title().replace("quota", "Quota").replace("range", "Range"),
            "metadata": {"name": "test"},
            "spec": spec,
        },
    )
    try:
        if kind == "resourcequotas" and not server.controlled:
            api.patch(f"{path}/status", {"status": {"hard": spec["hard"], "used": dict.fromkeys(spec["hard"], "0")}})
        found = list(check_quota(api, "inference", lambda: [[part.workload]], "c0ffee"))
        said = refused(api, part.workload)
    finally:
        api.delete(path)

    assert bool(said) is any(one.severity is Severity.ERROR for one in found), (said, found)
