"""The files and flags that a control plane is given, as the real API server takes them and acts by them."""

import base64
import json
import ssl
import urllib.error
import urllib.request

import pytest
import yaml

from tests.integration.cluster.api_server import MISSING, WHY_NOT, api_server
from tests.unit.ansible.tree import ROOT, TEMPLATE_FILES, render

pytestmark = pytest.mark.skipif(bool(MISSING), reason=WHY_NOT)

FOLDER, LOG = "/etc/kubernetes/api-server", "/var/log/kubernetes"
POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}}


@pytest.fixture(scope="module")
def hardened(tmp_path_factory):
    """An API server with every flag of the role, its files in a folder of the test."""
    folder = tmp_path_factory.mktemp("hardened")
    key = base64.b64encode(bytes(range(32))).decode()
    for name in ("admission", "audit-policy", "authentication", "encryption"):
        text = render(ROOT / f"roles/control_plane/templates/{name}.yaml.j2")
        (folder / f"{name}.yaml").write_text(text.replace("RANDOM_KEY", key))
    cluster = list(yaml.safe_load_all(render(TEMPLATE_FILES["kubeadm-init.yaml.j2"], api_server_settings="0")))[1]
    flags = [f"--{one['name']}={one['value']}" for one in cluster["apiServer"]["extraArgs"]]
    flags = [one for one in flags if "kubelet-certificate-authority" not in one]  # no kubelet is here
    with api_server(folder, *(one.replace(FOLDER, str(folder)).replace(LOG, str(folder)) for one in flags)) as running:
        yield running, folder


def anonymously(server, path):
    """The status that somebody without a name is answered with."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with urllib.request.urlopen(server + path, context=context, timeout=20) as answer:
            return answer.status
    except urllib.error.HTTPError as refused:
        return refused.code


def test_who_has_no_name_asks_after_health_and_after_the_cluster_alone(hardened):
    cluster, _ = hardened
    health = {path: anonymously(cluster.server, path) for path in ("/livez", "/readyz", "/healthz")}
    assert set(health.values()) == {200}
    # Known as nobody in particular, and then not let in or not found; kubeadm makes the object and its rights.
    assert anonymously(cluster.server, "/api/v1/namespaces/kube-public/configmaps/cluster-info") in (403, 404)
    assert [anonymously(cluster.server, path) for path in ("/version", "/api", "/metrics")] == [401, 401, 401]


def test_a_secret_is_encrypted_where_it_lies_and_in_no_log(hardened):
    cluster, folder = hardened
    cluster.kubectl("create", "secret", "generic", "password", "--from-literal=word=do-not-tell")
    key = base64.b64encode(b"/registry/secrets/default/password").decode()
    asked = urllib.request.Request(f"{cluster.etcd}/v3/kv/range", json.dumps({"key": key}).encode())
    with urllib.request.urlopen(asked, timeout=20) as answer:
        value = base64.b64decode(json.loads(answer.read())["kvs"][0]["value"])
    assert value.startswith(b"k8s:enc:secretbox:v1:first:")
    assert cluster.get("secret", "password")["data"]["word"] == base64.b64encode(b"do-not-tell").decode()
    log = (folder / "audit.log").read_text()
    assert '"name":"password"' in log
    assert "do-not-tell" not in log
    assert base64.b64encode(b"do-not-tell").decode() not in log


@pytest.mark.parametrize(
    ("namespace", "labels", "taken"),
    [
        ("plain", [], False),
        ("open", ["pod-security.kubernetes.io/enforce=privileged"], True),
        ("kube-system", [], True),
    ],
)
def test_a_namespace_that_says_nothing_takes_no_privileged_pod(hardened, namespace, labels, taken):
    cluster, _ = hardened
    cluster.kubectl("create", "namespace", namespace, check=False)
    cluster.kubectl("label", "namespace", namespace, "a=b", *labels)
    container = {"name": "main", "image": "registry.example/image:1", "securityContext": {"privileged": True}}
    pod = POD | {"spec": {"containers": [container]}}
    done = cluster.kubectl("create", "--namespace", namespace, "-f", "-", given=json.dumps(pod), check=False)
    assert (done.returncode == 0) is taken, done.stderr
    assert taken or 'violates PodSecurity "baseline:latest": privileged' in done.stderr
