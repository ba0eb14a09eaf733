"""What a reset clears on a disk: what the roles made there, and nothing that somebody else keeps beside it."""

import re

import pytest
import tree
from tree import ROOT

PLAY = """\
- hosts: localhost
  connection: local
  gather_facts: false
  tasks:
    - {name: Volumes, ansible.builtin.import_role: {name: storage, tasks_from: reset.yml}}
    - {name: Image, ansible.builtin.import_role: {name: workload_image, tasks_from: reset.yml}}
    - {name: Network, ansible.builtin.import_role: {name: calico, tasks_from: reset_files.yml}}
"""
OURS = [
    "volumes/pvc-1_a_b/data/file",
    "image/context/harness/x.py",
    "image/pip.conf",
    "image/image.json",
    "image/pushed-1",
    "net.d/20-bridge.conflist",
    "pod-veth.link",
]
# As Calico's pod leaves them; flannel is one of its plugins, or of a network of somebody's own.
CALICO = ["net.d/10-calico.conflist", "net.d/calico-kubeconfig", "bin/calico", "bin/calico-ipam", "bin/flannel"]
OTHERS = [
    "volumes/photos/one.jpg",
    "volumes/.hidden",
    "image/notes.txt",
    "net.d/10-flannel.conflist",
    "net.d/own.d/key",
]
OTHERS += ["bin/flannel", "bin/own"]


# What a cluster leaves on a disk beside the folders of its packages, as seen on a real one.
LEFT = [
    "/var/lib/cni",
    "/var/lib/kubelet",
    "/var/lib/etcd",
    "/var/lib/calico",
    "/usr/libexec/kubernetes",
    "/var/log/containers",
]
LEFT += ["/var/log/pods", "/var/log/calico", "/etc/systemd/logind.conf.d/99-kubelet.conf"]
LEFT += ["/var/lib/containers/cache", "/var/log/crio", "/var/lib/systemd/timers/stamp-node-etcd-snapshot.timer"]


def test_a_reset_removes_what_a_cluster_leaves_and_keeps_the_distribution_s_folders():
    texts = [path.read_text() for path in (ROOT / "roles").glob("*/tasks/reset.yml")]
    removed = {path for text in texts for path in re.findall(r"[\[ ](/[a-z0-9/._-]+)[\],]", text)}
    assert [path for path in LEFT if path not in removed] == []
    # Nor those where others may have a pod network of their own.
    kept = {"/opt", "/opt/cni", "/opt/cni/bin", "/etc/cni", "/etc/cni/net.d", "/var/lib", "/var/log", "/usr/libexec"}
    assert not kept & removed


@pytest.mark.parametrize(("ours", "others"), [([*OURS, *CALICO], []), (OURS, OTHERS)], ids=["ours", "others"])
def test_a_reset_removes_what_is_ours_and_leaves_what_is_not(tmp_path, ours, others):
    for name in (*ours, *others):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    given = {"storage_path": f"{tmp_path}/volumes", "workload_image_folder": f"{tmp_path}/image"}
    given |= {"__calico_cni_folder": f"{tmp_path}/net.d", "__calico_plugin_folder": f"{tmp_path}/bin"}
    given |= {"__calico_link": f"{tmp_path}/pod-veth.link"}
    done = tree.play(tmp_path, PLAY, {"localhost": {}}, given)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [name for name in ours if (tmp_path / name).exists()] == []
    assert all((tmp_path / name).exists() for name in others)
    assert (tmp_path / "volumes").exists() == (tmp_path / "image").exists() == bool(others)
