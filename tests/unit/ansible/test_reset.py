"""What a reset clears on a disk: what the roles made there, and nothing that somebody else keeps beside it."""

import re
import subprocess

import pytest
import recorded_role
import tree
from tree import ROOT

PLAY = """\
- hosts: all
  gather_facts: false
  tasks:
    - {name: Volumes, ansible.builtin.import_role: {name: addons, tasks_from: reset.yml}}
    - {name: Image, ansible.builtin.import_role: {name: workload_image, tasks_from: reset.yml}}
    - {name: Network, ansible.builtin.import_role: {name: calico, tasks_from: reset_files.yml}}
"""
OURS = ["volumes/pvc-1_a_b/data/file", "image/context/harness/x.py", "image/pip.conf", "image/image.json"]
OURS += ["image/pushed-1", "net.d/20-bridge.conflist"]
# As Calico's pod leaves them; flannel is one of its plugins, or of a network of somebody's own.
CALICO = ["net.d/10-calico.conflist", "net.d/calico-kubeconfig", "bin/calico", "bin/calico-ipam", "bin/flannel"]
OTHERS = ["volumes/photos/one.jpg", "volumes/.hidden", "image/notes.txt", "net.d/10-flannel.conflist"]
OTHERS += ["net.d/own.d/key", "bin/flannel", "bin/own"]


# What a cluster leaves on a disk beside the folders of its packages, as seen on a real one.
LEFT = ["/var/lib/cni", "/var/lib/kubelet", "/var/lib/etcd", "/var/lib/calico", "/usr/libexec/kubernetes"]
LEFT += ["/var/log/containers", "/var/log/pods", "/var/log/calico"]
LEFT += ["/etc/systemd/logind.conf.d/99-kubelet.conf", "/var/lib/containers/cache", "/var/log/crio"]
LEFT += ["/var/lib/systemd/timers/stamp-node-etcd-snapshot.timer", "/etc/kubernetes/harness-token.json"]


def test_a_reset_removes_what_a_cluster_leaves_and_keeps_the_distribution_s_folders():
    texts = [
        path.read_text() for path in [*(ROOT / "roles").glob("*/tasks/reset.yml"), ROOT / "roles/crio/vars/main.yml"]
    ]
    listed = r"(?:\[|, |- |'|\n +)(/[a-z0-9/._-]+?)/?(?=[\],'\n])"
    removed = {path for text in texts for path in re.findall(listed, text)}
    assert [path for path in LEFT if path not in removed] == []
    # Nor those where others may have a pod network of their own.
    kept = {"/opt", "/opt/cni", "/opt/cni/bin", "/etc/cni", "/etc/cni/net.d", "/var/lib", "/var/log", "/usr/libexec"}
    assert not kept & removed


MACHINES = {"alone": ([*OURS, *CALICO], []), "shared": (OURS, OTHERS)}


@pytest.fixture(scope="module")
def reset(tmp_path_factory):
    """Both machines after one run: each a folder, where everything of ours and of others was."""
    folder = tmp_path_factory.mktemp("reset")
    for machine, (ours, others) in MACHINES.items():
        for name in (*ours, *others):
            (folder / machine / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / machine / name).write_text("x")
    places = {"storage_path": "volumes", "workload_image_folder": "image", "__calico_cni_folder": "net.d"}
    places |= {"__calico_plugin_folder": "bin"}
    given = {name: f"{folder}/{{{{ inventory_hostname }}}}/{place}" for name, place in places.items()}
    done = tree.play(folder, PLAY, {name: {} for name in MACHINES}, given)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.parametrize("machine", MACHINES)
def test_a_reset_removes_what_is_ours_and_leaves_what_is_not(reset, machine):
    ours, others = MACHINES[machine]
    assert [name for name in ours if (reset / machine / name).exists()] == []
    assert all((reset / machine / name).exists() for name in others)
    assert (reset / machine / "volumes").exists() == (reset / machine / "image").exists() == bool(others)


IN_A_NAMESPACE = ("unshare", "--map-root-user", "--mount")
MOUNTED = 'mkdir -p "$0" && mount -t tmpfs shm "$0" && touch "$0/one" && exec "$@"'


@pytest.mark.skipif(
    subprocess.run([*IN_A_NAMESPACE, "true"], check=False).returncode != 0, reason="no namespaces for mounts here"
)
@pytest.mark.parametrize("times", [1, 2])
def test_a_reset_releases_the_memory_that_mps_mounted(tmp_path, times):
    root = tmp_path / "mps"
    play = "- hosts: all\n  gather_facts: false\n  tasks:\n" + times * (
        "    - {name: Run, ansible.builtin.import_role: {name: device_plugin, tasks_from: reset_mps.yml}}\n"
    )
    under = (*IN_A_NAMESPACE, "sh", "-c", MOUNTED, str(root / "shm"))
    done = tree.play(tmp_path, play, {"one": {}}, {"device_plugin_mps_root": str(root)}, under=under)
    assert (done.returncode, root.exists()) == (0, False), done.stdout + done.stderr


CRIO = '#!/bin/sh\necho "crio $*" >> "$MACHINE/calls"\n'


@pytest.mark.parametrize("shared", [False, True])
def test_a_reset_leaves_the_images_of_a_podman_that_has_the_same_store(tmp_path, shared):
    names = ("crio-state", "cache", "storage")
    for name in names:
        (tmp_path / name).mkdir()
    (tmp_path / "bin-of-podman").touch() if shared else None
    paths = {name: str(tmp_path / name) for name in names}
    extra = {"__crio_podman": str(tmp_path / "bin-of-podman"), "__crio_store": paths["storage"]}
    extra |= {"__crio_left": [paths["crio-state"]], "__crio_left_alone": [paths["cache"], paths["storage"]]}
    extra |= {"__crio_program": str(tmp_path / "bin/crio")}
    done = recorded_role.run(
        tmp_path,
        "crio, tasks_from: reset.yml",
        {"one": {"gpu": {}, "builds": False}},
        {"one": {}},
        {"crio": CRIO},
        **extra,
    )
    assert done.failed == {"one": None}
    absent = {path for name, given in done.done["one"] if name == "node_state" for path in given.get("absent", [])}
    assert [f"{path}/" in absent for path in paths.values()] == [True, not shared, not shared]
    calls = tmp_path / "one/calls"
    assert (calls.read_text() if calls.exists() else "") == ("crio wipe --force\n" if shared else "")
