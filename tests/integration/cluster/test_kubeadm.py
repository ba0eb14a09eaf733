"""The configurations of kubeadm, as the real kubeadm reads them."""

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from harness.node.checks import cis
from tests.integration.cluster.api_server import found
from tests.unit.ansible.tree import TEMPLATES, render, variables
from tests.unit.node import hardened
from tests.unit.node.healthy import machine, node

KUBEADM = found("kubeadm")
pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(KUBEADM is None, reason="no kubeadm in KUBEBUILDER_ASSETS or PATH"),
]
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
    path.write_text(render(TEMPLATES / name, control_plane_version=row["kubernetes"], **JOIN, **(changed or {})))
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


def test_the_flags_that_kubeadm_gives_keep_the_benchmark(pods):
    commands = {name: spec["containers"][0]["command"] for name, spec in pods.items()}
    flags = {name.replace("-", "_"): " ".join(word[2:] for word in words[1:]) for name, words in commands.items()}
    paper = machine()
    paper.commands[hardened.PS] = hardened.processes(**flags)
    report = cis.judge("n", node(paper))
    assert report.unexplained == []
    assert [section.number for section in report.failed] == ["1.1.12"]
