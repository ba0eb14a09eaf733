"""Every object of the roles against a real API server: taken, and nothing left to change afterwards."""

import json
import time

import pytest
import yaml

from tests.integration.cluster.api_server import MISSING, WHY_NOT
from tests.unit.ansible.tree import TEMPLATE_FILES, render

pytestmark = pytest.mark.skipif(bool(MISSING), reason=WHY_NOT)

OBJECTS = ["runtime-class.yaml.j2", "local-path.yaml.j2", "metrics-server.yaml.j2", "failed-pods.yaml.j2"]
# Of the operator's own definition only what matters here: its list of pools has no key, so it is one value.
POOLS = {"type": "array", "items": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
OPEN = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
SCHEMA = {"spec": OPEN | {"properties": {"calicoNetwork": OPEN | {"properties": {"ipPools": POOLS}}}}}
INSTALLATION = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "installations.operator.tigera.io"},
    "spec": {
        "group": "operator.tigera.io",
        "scope": "Cluster",
        "names": {"kind": "Installation", "plural": "installations", "singular": "installation"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": SCHEMA}},
            }
        ],
    },
}
# What the operator writes into an installation that leaves it open.
OPERATOR_NETWORK = {"linuxDataplane": "Iptables", "hostPorts": "Enabled", "multiInterfaceMode": "None"}
OPERATOR_POOL = {"allowedUses": ["Workload", "Tunnel"], "assignmentMode": "Automatic", "disableNewAllocations": False}


@pytest.mark.parametrize("name", OBJECTS)
def test_objects_are_taken_once_and_then_the_same(cluster, name):
    manifest = render(TEMPLATE_FILES[name])
    first = [cluster.apply(manifest, check_mode=check_mode) for check_mode in (True, False)]
    assert [one.get("failed", one["changed"]) for one in first] == [True, True]
    for document in filter(None, yaml.safe_load_all(manifest)):
        metadata = document["metadata"]
        cluster.get(document["kind"], metadata["name"], "--namespace", metadata.get("namespace", "default"))
    again = [cluster.apply(manifest, check_mode=check_mode) for check_mode in (True, False)]
    assert [one["changed"] for one in again] == [False, False]


def test_what_somebody_changed_is_put_back_and_shown(cluster):
    manifest, default = render(TEMPLATE_FILES["local-path.yaml.j2"]), "storageclass.kubernetes.io/is-default-class"
    cluster.apply(manifest)
    cluster.kubectl("annotate", "--overwrite", "storageclass/local-path", f"{default}=false")
    result = cluster.apply(manifest)
    assert result["changed"] is True
    assert f'+    {default}: "true"' in result["diff"]["prepared"]
    assert cluster.get("storageclass", "local-path")["metadata"]["annotations"][default] == "true"
    assert cluster.apply(manifest)["changed"] is False


def test_what_others_add_is_left_alone(cluster):
    manifest = render(TEMPLATE_FILES["runtime-class.yaml.j2"])
    cluster.apply(manifest)
    cluster.kubectl("label", "runtimeclass/nvidia", "somebody=else")
    assert cluster.apply(manifest)["changed"] is False


def test_pools_stay_as_the_operator_leaves_them(cluster):
    cluster.apply(json.dumps(INSTALLATION))
    cluster.kubectl("wait", "--for=condition=Established", "crd/installations.operator.tigera.io", "--timeout=60s")
    manifest = render(TEMPLATE_FILES["calico-installation.yaml.j2"])
    assert cluster.apply(manifest)["changed"] is True
    network = cluster.get("installation", "default")["spec"]["calicoNetwork"]
    by_operator = OPERATOR_NETWORK | network | {"ipPools": [OPERATOR_POOL | pool for pool in network["ipPools"]]}
    patch = json.dumps({"spec": {"calicoNetwork": by_operator, "variant": "Calico"}})
    cluster.kubectl("patch", "installation/default", "--type=merge", "--field-manager=operator", "--patch", patch)
    assert cluster.apply(manifest)["changed"] is False


def test_what_the_server_refuses_ends_with_its_words(cluster):
    manifest = render(TEMPLATE_FILES["runtime-class.yaml.j2"], runtime_class_handler="No Handler")
    result = cluster.apply(manifest.replace("name: nvidia", "name: other"))
    assert result["failed"] is True
    assert "handler: Invalid value" in result["msg"]


def test_what_is_not_there_is_waited_for(cluster):
    began_s = time.monotonic()
    result = cluster.apply("", conditions={"runtimeclass/none": "Available"}, timeout_s=3)
    assert "NotFound" in result["msg"]
    assert time.monotonic() - began_s >= 3
