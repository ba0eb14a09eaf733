"""The configurations of kubeadm, as the real kubeadm reads them."""

import base64
import datetime as dt
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from cryptography import x509

from tests.integration.cluster.api_server import MISSING, WHY_NOT, found
from tests.unit.ansible.tree import ROOT, TEMPLATE_FILES, load, program, render, template, variables

KUBEADM = found("kubeadm")
pytestmark = pytest.mark.skipif(KUBEADM is None, reason="no kubeadm in KUBEBUILDER_ASSETS or PATH")
JOIN = {
    "worker_node_name": "worker-1",
    "join_endpoint": "192.0.2.1:6443",
    "join_token": "abcdef.0123456789abcdef",
    "join_ca_hash": "sha256:" + 64 * "0",
    "api_server_settings": "0",
}
FULL = {
    "control_plane_kubeadm_ignore_preflight_errors": ["NumCPU"],
    "worker_kubeadm_ignore_preflight_errors": ["NumCPU"],
    "control_plane_advertise_address": "192.0.2.1",
    "control_plane_endpoint": "gpu.example.org",
    "control_plane_api_names": ["node.example", "192.0.2.9"],
}
# What kubeadm itself starts, under the names that the table gives them.
IMAGES = ("kube_apiserver", "kube_controller_manager", "kube_scheduler", "kube_proxy", "coredns", "pause", "etcd")


def kubeadm(*words, **environment):
    command, given = [str(KUBEADM), *words], os.environ | environment
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=given)


@pytest.fixture(scope="module")
def row():
    """The table's row for the minor of the kubeadm that is here: others it would refuse."""
    (minor,) = re.findall(r"v(1\.\d+)", kubeadm("version", "-o", "short").stdout)
    rows = variables()["versions_by_minor"]
    if minor not in rows:
        pytest.skip(f"kubeadm {minor} is no minor of the table")
    return rows[minor]


def written(folder, name, row, changed=None):
    path = folder / "kubeadm.yaml"
    path.write_text(render(TEMPLATE_FILES[name], control_plane_version=row["kubernetes"], **JOIN, **(changed or {})))
    return str(path)


@pytest.mark.parametrize("changed", [{}, FULL], ids=["defaults", "everything set"])
@pytest.mark.parametrize("name", ["kubeadm-init.yaml.j2", "kubeadm-join.yaml.j2"])
def test_kubeadm_reads_the_configuration_without_a_warning(row, tmp_path, name, changed):
    done = kubeadm("config", "validate", "--config", written(tmp_path, name, row, changed))
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "ok", "")


def test_certificate_and_kubeconfig_have_the_endpoint(row, tmp_path):
    config = Path(written(tmp_path, "kubeadm-init.yaml.j2", row, FULL))
    own = {"certificatesDir": str(tmp_path / "pki")}
    documents = [
        one | (own if one["kind"] == "ClusterConfiguration" else {}) for one in yaml.safe_load_all(config.read_text())
    ]
    config.write_text(yaml.safe_dump_all(documents))
    for phase in (["certs", "ca"], ["certs", "apiserver"], ["kubeconfig", "admin", "--kubeconfig-dir", str(tmp_path)]):
        done = kubeadm("init", "phase", *phase, "--config", str(config))
        assert done.returncode == 0, done.stderr
    command = ["openssl", "x509", "-in", str(tmp_path / "pki/apiserver.crt"), "-noout", "-ext", "subjectAltName"]
    assert "DNS:gpu.example.org," in subprocess.run(command, capture_output=True, text=True, check=True).stdout
    (cluster,) = yaml.safe_load((tmp_path / "admin.conf").read_text())["clusters"]
    assert cluster["cluster"]["server"] == "https://gpu.example.org:6443"


# A machine without any address is one where kubeadm does not say when certificates end.
ALONE = 'ip link add only type bridge && ip address add 192.0.2.1/24 dev only && ip link set only up && exec "$@"'
needs_a_root_of_its_own = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None,
    reason="not root, or no unshare, for a root folder and a network",
)


@pytest.fixture(scope="module")
def ended(row, tmp_path_factory):
    """The root folder of a control plane whose certificates have all ended, and a word with its kubeadm.

    No API server answers there: it has a network of its own, with nobody else in it.
    """
    root = tmp_path_factory.mktemp("root")
    config = Path(written(root, "kubeadm-init.yaml.j2", row, FULL))
    short = {"certificateValidityPeriod": "1ns"}
    documents = yaml.safe_load_all(config.read_text())
    config.write_text(
        yaml.safe_dump_all(one | (short if one["kind"] == "ClusterConfiguration" else {}) for one in documents)
    )

    def say(*words):
        command = ["unshare", "--net", "sh", "-c", ALONE, "sh", str(KUBEADM), "--rootfs", str(root), *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    for phase in ("certs", "kubeconfig"):
        done = say("init", "phase", phase, "all", "--config", f"/{config.name}")
        assert done.returncode == 0, done.stderr
    return root, say


def certificate(root, name="apiserver"):
    return x509.load_pem_x509_certificate((root / "etc/kubernetes/pki" / f"{name}.crt").read_bytes())


@pytest.fixture
def due(monkeypatch):
    """What the program that renews takes for due, from an answer of kubeadm."""
    renewal = program("roles/control_plane/files/node_certificates.py")

    def due(said):
        monkeypatch.setattr(renewal, "run", lambda *_: said)
        return renewal.due(90)

    return due


@needs_a_root_of_its_own
def test_certificates_that_have_ended_are_renewed_without_an_api_server(ended, due):
    root, say = ended
    assert certificate(root).not_valid_after_utc < dt.datetime.now(dt.UTC)
    names = certificate(root).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    asked = say("certs", "check-expiration", "--output", "json")
    assert asked.returncode == 0, asked.stderr
    assert {"apiserver", "etcd-server", "admin.conf", "super-admin.conf"} <= set(due(asked.stdout))
    renewed = say("certs", "renew", "all")
    assert renewed.returncode == 0, renewed.stderr
    after = certificate(root)
    assert after.not_valid_after_utc - dt.datetime.now(dt.UTC) > dt.timedelta(days=363)
    assert after.extensions.get_extension_for_class(x509.SubjectAlternativeName).value == names
    assert {"gpu.example.org", "node.example"} <= set(names.get_values_for_type(x509.DNSName))
    assert due(say("certs", "check-expiration", "--output", "json").stdout) == []


@needs_a_root_of_its_own
def test_the_kubeconfig_of_a_kubelet_whose_certificate_has_ended_is_made_anew(ended, row):
    root, say = ended
    written(root, "kubeadm-init.yaml.j2", row, FULL)
    kubeconfig = root / "etc/kubernetes/kubelet.conf"
    old = kubeconfig.read_text()
    make = ("init", "phase", "kubeconfig", "kubelet", "--config", "/kubeadm.yaml")
    assert say(*make).returncode == 0
    assert kubeconfig.read_text() == old  # why the role takes it away
    kubeconfig.unlink()
    made = say(*make)
    assert made.returncode == 0, made.stderr
    own = yaml.safe_load(kubeconfig.read_text())["users"][0]["user"]
    certificate = x509.load_pem_x509_certificate(base64.b64decode(own["client-certificate-data"]))
    assert certificate.subject.rfc4514_string().startswith("CN=system:node:controlplane")
    assert certificate.not_valid_after_utc - dt.datetime.now(dt.UTC) > dt.timedelta(days=363)
    kept = "/var/lib/kubelet/pki/kubelet-client-current.pem"
    (root / kept[1:]).parent.mkdir(parents=True)
    (root / kept[1:]).touch()  # as the kubelet would
    named = say("init", "phase", "kubelet-finalize", "enable-client-cert-rotation", "--config", "/kubeadm.yaml")
    assert named.returncode == 0, named.stderr
    assert yaml.safe_load(kubeconfig.read_text())["users"][0]["user"] == {
        "client-certificate": kept,
        "client-key": kept,
    }


@needs_a_root_of_its_own
def test_another_name_needs_the_certificate_to_be_taken_away_first(ended, row):
    root, say = ended
    asked = {**FULL, "control_plane_api_names": ["another.example"]}
    written(root, "kubeadm-init.yaml.j2", row, asked)
    make = ("init", "phase", "certs", "apiserver", "--config", "/kubeadm.yaml")
    old = certificate(root)
    assert say(*make).returncode == 0
    assert certificate(root) == old  # why the role takes it away
    for part in ("crt", "key"):
        (root / f"etc/kubernetes/pki/apiserver.{part}").unlink()
    made = say(*make)
    assert made.returncode == 0, made.stderr
    names = certificate(root).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert {"another.example", "gpu.example.org", "kubernetes"} <= set(names.get_values_for_type(x509.DNSName))
    assert not {"node.example"} & set(names.get_values_for_type(x509.DNSName))


@pytest.mark.skipif(bool(MISSING), reason=WHY_NOT)
def test_a_run_takes_back_the_tokens_that_an_earlier_one_left_for_its_machine_and_no_other(cluster):
    texts = load(ROOT / "roles/worker/vars/main.yml")
    texts = {name: texts[name] for name in ("__worker_token_use", "__worker_left_tokens")}
    ours, another = (template(texts, {"worker_node_name": name}) for name in ("worker-1", "worker-2"))
    uses = [*2 * [ours["__worker_token_use"]], another["__worker_token_use"], "somebody's own", ""]
    made = [
        kubeadm("token", "create", "--kubeconfig", str(cluster.kubeconfig), *(["--description", use] if use else []))
        for use in uses
    ]
    cluster.kubectl("--namespace", "kube-system", "create", "secret", "generic", "empty")
    asked = cluster.kubectl("--namespace", "kube-system", "get", "secrets", "--output", ours["__worker_left_tokens"])
    assert set(asked.stdout.split()) == {f"bootstrap-token-{one.stdout.partition('.')[0]}" for one in made[:2]}


def test_kubeadm_starts_the_images_of_the_table(row, tmp_path):
    listed = kubeadm("config", "images", "list", "--config", written(tmp_path, "kubeadm-init.yaml.j2", row))
    assert set(listed.stdout.split()) == {row["images"][name] for name in IMAGES}


def test_a_wrong_field_is_seen(row, tmp_path):
    path = Path(written(tmp_path, "kubeadm-init.yaml.j2", row))
    path.write_text(path.read_text().replace("criSocket:", "crisocket:"))
    assert 'unknown field "nodeRegistration.crisocket"' in kubeadm("config", "validate", "--config", str(path)).stderr


@pytest.fixture(scope="module")
def pods(row, tmp_path_factory):
    """The manifests that kubeadm makes of our configuration, by name; its own version is not the table's patch."""
    folder = tmp_path_factory.mktemp("manifests")
    own = {**row, "kubernetes": kubeadm("version", "-o", "short").stdout.strip().removeprefix("v")}
    config = written(folder, "kubeadm-init.yaml.j2", own, FULL)
    place = {"KUBEADM_INIT_DRYRUN_DIR": str(folder)}
    done = kubeadm("init", "phase", "control-plane", "all", "--dry-run", "--config", config, **place)
    assert done.returncode == 0, done.stderr
    found = [yaml.safe_load(path.read_text()) for path in folder.glob("kube-*.yaml")]
    return {pod["metadata"]["name"]: pod["spec"] for pod in found}


def test_kubeadm_gives_the_control_plane_its_settings_and_their_files(pods):
    (container,), volumes = pods["kube-apiserver"]["containers"], pods["kube-apiserver"]["volumes"]
    assert {"name": "SETTINGS", "value": JOIN["api_server_settings"]} in container["env"]
    mounts = {one["mountPath"]: one.get("readOnly", False) for one in container["volumeMounts"]}
    assert (mounts["/etc/kubernetes/api-server"], mounts["/var/log/kubernetes"]) == (True, False)
    assert {"/etc/kubernetes/api-server", "/var/log/kubernetes"} <= {one["hostPath"]["path"] for one in volumes}
    files = [word.partition("=")[2] for word in container["command"] if "/etc/kubernetes/api-server/" in word]
    assert len(files) == 4


def test_kubeadm_gives_the_control_plane_its_hardening(pods):
    given = {name: set(spec["containers"][0]["command"]) for name, spec in pods.items()}
    assert all("--profiling=false" in words for words in given.values())
    assert {
        "--authorization-mode=Node,RBAC",
        "--service-account-extend-token-expiration=false",
        "--kubelet-certificate-authority=/etc/kubernetes/pki/ca.crt",
        "--encryption-provider-config=/etc/kubernetes/api-server/encryption.yaml",
        "--audit-log-maxage=30",
    } <= given["kube-apiserver"]
