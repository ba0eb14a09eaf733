"""What the service accounts of our objects may do, and what they may not, as the real API server judges it."""

import json

import pytest
import yaml

from tests.integration.cluster.api_server import MISSING, WHY_NOT
from tests.unit.ansible.tree import TEMPLATE_FILES, render

pytestmark = pytest.mark.skipif(bool(MISSING), reason=WHY_NOT)

CLEAN_UP, STORAGE, METRICS = (
    "kube-system:failed-pods",
    "local-path-storage:local-path-provisioner",
    "kube-system:metrics-server",
)
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"namespace": "default"},
    "spec": {"containers": [{"name": "main", "image": "registry.example/image:1"}]},
}


@pytest.fixture(scope="module")
def furnished(cluster):
    for name in ("local-path.yaml.j2", "metrics-server.yaml.j2", "failed-pods.yaml.j2"):
        assert "failed" not in cluster.apply(render(TEMPLATE_FILES[name]))
    return cluster


MAY = [
    (CLEAN_UP, ["list", "pods", "--all-namespaces"]),
    (CLEAN_UP, ["delete", "pods", "--namespace=default"]),
    (STORAGE, ["create", "persistentvolumes"]),
    (STORAGE, ["create", "pods", "--namespace=local-path-storage"]),
    (STORAGE, ["watch", "persistentvolumeclaims", "--all-namespaces"]),
    (STORAGE, ["create", "events", "--namespace=default"]),
    (METRICS, ["get", "nodes", "--subresource=metrics"]),
    (METRICS, ["watch", "pods", "--all-namespaces"]),
    (METRICS, ["create", "subjectaccessreviews.authorization.k8s.io"]),
    (METRICS, ["get", "configmap/extension-apiserver-authentication", "--namespace=kube-system"]),
]
MAY_NOT = [
    (CLEAN_UP, ["delete", "deployments.apps", "--namespace=default"]),
    (CLEAN_UP, ["deletecollection", "pods", "--namespace=default"]),
    (CLEAN_UP, ["list", "namespaces"]),
    (CLEAN_UP, ["create", "pods", "--namespace=default"]),
    (CLEAN_UP, ["get", "secrets", "--namespace=kube-system"]),
    (STORAGE, ["create", "pods", "--namespace=default"]),
    (STORAGE, ["get", "secrets", "--namespace=kube-system"]),
    (METRICS, ["delete", "pods", "--namespace=default"]),
]


def test_an_account_may_do_its_work_and_no_more(furnished):
    assert [one for one in MAY if not furnished.may(one[0], *one[1])] == []
    assert [one for one in MAY_NOT if furnished.may(one[0], *one[1])] == []


def test_the_clean_up_removes_failed_pods_and_no_other(furnished):
    job = next(
        one for one in yaml.safe_load_all(render(TEMPLATE_FILES["failed-pods.yaml.j2"])) if one["kind"] == "CronJob"
    )
    (container,) = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    for phase in ("Failed", "Running", "Succeeded"):
        pod = POD | {"metadata": POD["metadata"] | {"name": phase.lower()}}
        furnished.kubectl("create", "-f", "-", given=json.dumps(pod))
        status = json.dumps({"status": {"phase": phase}})
        furnished.kubectl("patch", f"pod/{phase.lower()}", "--subresource=status", "--type=merge", "--patch", status)
    clean_up = ["--as", f"system:serviceaccount:{CLEAN_UP}", "--as-group", "system:authenticated"]
    assert container["command"][0] == "kubectl"
    words = container["command"][1:]
    assert 'pod "failed" deleted' in furnished.kubectl(*words, *clean_up).stdout
    left = {one["metadata"]["name"] for one in furnished.get("pods", "--namespace=default")["items"]}
    assert left == {"running", "succeeded"}
    # Nothing to do is no error either: else every quiet hour would leave a failed job.
    assert furnished.kubectl(*words, *clean_up).stdout.strip() in ("", "No resources found")
