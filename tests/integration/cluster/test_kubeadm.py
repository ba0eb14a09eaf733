"""The configurations of kubeadm, as the real kubeadm reads them."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.integration.cluster.api_server import found
from tests.unit.ansible.tree import TEMPLATES, render, variables

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
    "control_plane_api_names": ["node.example", "192.0.2.9"],
}
# What kubeadm itself starts, under the names that the table gives them.
IMAGES = ("kube_apiserver", "kube_controller_manager", "kube_scheduler", "kube_proxy", "coredns", "pause", "etcd")


def kubeadm(*words):
    return subprocess.run([str(KUBEADM), *words], capture_output=True, text=True, timeout=60, check=False)


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


def test_kubeadm_starts_the_images_of_the_table(row, tmp_path):
    listed = kubeadm("config", "images", "list", "--config", written(tmp_path, "kubeadm-init.yaml.j2", row))
    assert set(listed.stdout.split()) == {row["images"][name] for name in IMAGES}


def test_a_wrong_field_is_seen(row, tmp_path):
    path = Path(written(tmp_path, "kubeadm-init.yaml.j2", row))
    path.write_text(path.read_text().replace("criSocket:", "crisocket:"))
    assert 'unknown field "nodeRegistration.crisocket"' in kubeadm("config", "validate", "--config", str(path)).stderr
