"""The place of the replicas and the harness's account, made by the playbook, as the real API server judges them."""

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from harness.backends.kubernetes.objects import workload
from harness.spec import KubernetesSpec, WorkloadSpec
from tests.integration.cluster.api_server import MISSING, WHY_NOT, Cluster, found
from tests.integration.cluster.playbook import Run, home, play, possible
from tests.support.experiments import experiment
from tests.unit.ansible.tree import module

pytestmark = [
    pytest.mark.skipif(bool(MISSING), reason=WHY_NOT),
    pytest.mark.skipif(not possible(), reason="one folder cannot be laid over another here"),
]
NODE = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {
        "name": "controlplane",
        "labels": {"node-role.kubernetes.io/control-plane": ""},
        "annotations": {"projectcalico.org/IPv4VXLANTunnelAddr": "10.244.49.64"},
    },
}
ADDRESSES = [{"type": "InternalIP", "address": "192.0.2.10"}, {"type": "Hostname", "address": "controlplane"}]
MONTH_S = 2592000


@pytest.fixture(scope="module")
def furnished(cluster: Cluster) -> Cluster:
    cluster.kubectl("create", "-f", "-", given=json.dumps(NODE))
    status = json.dumps({"status": {"addresses": ADDRESSES}})
    cluster.kubectl("patch", "node/controlplane", "--subresource=status", "--type=merge", "--patch", status)
    cluster.kubectl("create", "namespace", "monitoring")
    first, again = workloads(cluster), workloads(cluster)
    assert first.status == 0, first.output
    assert first.changed > 0
    assert (again.status, again.changed) == (0, 0), again.output
    return cluster


def workloads(cluster: Cluster, **variables) -> Run:
    return play(cluster, "playbooks/workloads.yml", "--tags", "inference_namespace", **variables)


def harness(cluster: Cluster, *words: str) -> "subprocess.CompletedProcess[str]":
    """Run kubectl with nothing but the harness's own kubeconfig."""
    command = [str(found("kubectl")), "--kubeconfig", str(home(cluster) / ".kube/harness.conf"), *words]
    clean = os.environ | {"KUBECACHEDIR": str(cluster.kubeconfig.with_name("cache"))}
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=clean)


def test_the_kubeconfig_is_its_owner_s_alone_and_no_administrator_s(furnished):
    path = home(furnished) / ".kube/harness.conf"
    content = json.loads(path.read_text())
    assert path.stat().st_mode & 0o777 == 0o600
    assert set(content["users"][0]["user"]) == {"token"}
    assert content["contexts"][0]["context"]["namespace"] == "inference"
    expires_in_s = module("kubeconfig").remaining_s(content["users"][0]["user"]["token"], time.time())
    assert MONTH_S - 600 < expires_in_s <= MONTH_S


@pytest.mark.parametrize(
    ("words", "may"),
    [
        (["create", "deployments.apps"], "yes"),
        (["get", "pods", "--subresource=proxy"], "yes"),
        (["list", "nodes"], "yes"),
        (["create", "deployments.apps", "--namespace", "default"], "no"),
        (["get", "secrets"], "no"),
        (["delete", "nodes"], "no"),
        (["create", "pods", "--subresource=exec"], "no"),
    ],
)
def test_the_harness_may_do_its_work_and_no_more(furnished, words, may):
    assert harness(furnished, "auth", "can-i", *words).stdout.strip() == may


def test_a_token_is_renewed_at_half_its_life_and_a_broken_file_mended(furnished):
    path = home(furnished) / ".kube/harness.conf"
    before = path.read_text()
    longer = workloads(furnished, inference_namespace_token_ttl_s=4 * MONTH_S)
    assert longer.changed == 1, longer.output
    assert path.read_text() != before
    path.write_text("not a kubeconfig")
    assert workloads(furnished, inference_namespace_token_ttl_s=4 * MONTH_S).changed == 1
    assert harness(furnished, "auth", "can-i", "create", "deployments.apps").stdout.strip() == "yes"
    assert "token" not in longer.output.replace("token_ttl", "")


def test_nobody_reaches_a_replica_but_prometheus_the_api_server_and_the_load_generators(furnished):
    rule, load = furnished.get("networkpolicy", "replicas", "--namespace", "inference")["spec"]["ingress"]
    assert load == {"from": [{"podSelector": {"matchLabels": {"gpu-sharing-harness/load": "true"}}}]}
    assert rule["ports"] == [{"protocol": "TCP", "port": 8000}]
    assert rule["from"] == [
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}},
        {"ipBlock": {"cidr": "10.244.49.64/32"}},
        {"ipBlock": {"cidr": "192.0.2.10/32"}},
    ]
    assert furnished.get("networkpolicy", "replicas", "--namespace", "inference")["spec"].get("egress", []) == []


def test_a_privileged_pod_is_refused_there(furnished):
    spec = {"containers": [{"name": "c", "image": "registry.example/i:1", "securityContext": {"privileged": True}}]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "inference"}, "spec": spec}
    done = furnished.kubectl("create", "-f", "-", given=json.dumps(pod), check=False)
    assert 'violates PodSecurity "restricted' in done.stderr


@pytest.mark.parametrize("kind", ["deployment", "job"])
def test_a_pod_with_a_server_of_the_users_own_is_let_in(furnished, kind):
    server = {"image": "registry.example/i:1", "args": ["{port}"], "secret_env": {"A": "b/c"}, "claims": {"/m": "m"}}
    spec = experiment().model_copy(update={"workload": WorkloadSpec.model_validate({"name": "llm", "server": server})})
    owner = workload(spec, Path("one-1"), KubernetesSpec(kind=kind, runtime_class=None), "c0ffee").body
    furnished.kubectl("create", "--dry-run=server", "-f", "-", given=json.dumps(owner))
    template = owner["spec"]["template"]
    metadata = template["metadata"] | {"name": "p", "namespace": "inference"}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
    furnished.kubectl("create", "--dry-run=server", "-f", "-", given=json.dumps(pod))
