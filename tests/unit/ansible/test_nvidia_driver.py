"""The role of the driver, run as shipped on machines on paper: what it installs, builds and loads, and when it asks for a reboot.

The modules that look at a machine and change it write down what they were asked for; commands are scripts on the path.
"""

import json
import os
import subprocess
import sys

import pytest
import tree
import yaml
from tree import ROOT

# One action for the three modules: it knows the machine from a file beside it, as the scripts leave it.
ACTION = """\
import json, os
from pathlib import Path
from ansible.plugins.action import ActionBase
class ActionModule(ActionBase):
    _requires_connection = False
    def run(self, tmp=None, task_vars=None):
        folder = Path(os.environ["MACHINES"]) / task_vars["inventory_hostname"]
        arguments = {name: self._templar.template(value) for name, value in self._task.args.items()}
        with (folder / "done.jsonl").open("a") as file:
            file.write(json.dumps([self._task.action, arguments]) + chr(10))
        node = json.loads((folder / "node.json").read_text())
        if self._task.action == "deb_pinned":
            node["gpu"]["module"] = node["builds"]
            (folder / "node.json").write_text(json.dumps(node))
        packages = {
            name: {"installed": True, "held": True, "version": "580.95.05-1" if "nvidia" in name else "6.14"}
            for name in [*arguments.get("packages", []), "linux-image-generic", "linux-image-6.8.0-31-generic"]
            if isinstance(name, str) and "*" not in name
        }
        units = {name: {"active": True} for name in arguments.get("units", []) if isinstance(name, str)}
        facts = {"ansible_facts": {"node": node}} if arguments.get("machine") else {}
        return {"changed": False, "probe": {"packages": packages, "units": units}, **facts}
"""
COMMAND = """\
#!/bin/sh
echo "[\\"$(basename "$0")\\", \\"$*\\"]" >> "$MACHINE/done.jsonl"
case "$(basename "$0")" in
  dkms) sed -i 's/"module": false/"module": true/' "$MACHINE/node.json" ;;
  modprobe) sed -i 's/"driver": null, "open": false/"driver": "580.95.05", "open": true/' "$MACHINE/node.json" ;;
esac
"""
PLAY = """\
- hosts: all
  gather_facts: false
  environment: {MACHINE: "{{ lookup('ansible.builtin.env', 'MACHINES') }}/{{ inventory_hostname }}"}
  tasks:
    - {name: Look, node_probe: {machine: true}}
    - {name: Driver, ansible.builtin.include_role: {name: nvidia_driver}}
"""
GPU = {"pci_devices": 1, "pci_ids": [0x2335], "switches": 0, "driver": None, "open": False, "managed": False}
GPU |= {"module": False, "nouveau": False}
LOADED = {"driver": "580.95.05", "open": True}
MACHINES = {
    "new": {},
    "switches": {"switches": 4},
    "finished": LOADED,
    "nouveau": {"nouveau": True},
    "other-driver": {"driver": "570.86.15", "open": True},
    "volta": {"pci_ids": [0x1DB4], "driver": "580.95.05"},
    "new-kernel": {"builds": False},
    "no-gpu": {"pci_devices": 0, "pci_ids": []},
    "taken-off": {**LOADED, "managed": True},
}


@pytest.fixture(scope="module")
def machines(tmp_path_factory):
    """Every machine is a host of one run: name -> what was done there, and its failure or None."""
    folder = tmp_path_factory.mktemp("driver")
    for name in ("action", "bin", "callback", "group_vars"):
        (folder / name).mkdir()
    for name in ("node_probe", "node_state", "deb_pinned"):
        (folder / f"action/{name}.py").write_text(ACTION)
    (folder / "callback/tree_of_results.py").write_text(tree.CALLBACK)
    for name in ("dkms", "modprobe", "update-initramfs", "dpkg"):
        (folder / f"bin/{name}").write_text(COMMAND)
        (folder / f"bin/{name}").chmod(0o755)
    (folder / "group_vars/all").symlink_to(ROOT / "inventory/group_vars/all")
    hosts = {}
    for name, changes in MACHINES.items():
        gpu = GPU | changes
        machine = {"os": "ubuntu", "os_version": "24.04", "architecture": "x86_64", "kernel": "6.14.0-29-generic"}
        machine |= {"builds": gpu.pop("builds", True), "gpu": gpu}
        (folder / name).mkdir()
        (folder / name / "node.json").write_text(json.dumps(machine))
        hosts[name] = {"nvidia_driver_state": "managed"}
    hosts["taken-off"] = {"nvidia_driver_state": "absent"}
    inventory = {"all": {"hosts": hosts, "vars": {"ansible_connection": "local"}}}
    (folder / "hosts.yml").write_text(yaml.safe_dump(inventory))
    (folder / "play.yml").write_text(PLAY)
    settings = {
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "ANSIBLE_ROLES_PATH": str(ROOT / "roles"),
        "ANSIBLE_ACTION_PLUGINS": str(folder / "action"),
        "ANSIBLE_PYTHON_INTERPRETER": sys.executable,
        "ANSIBLE_HOME": str(folder / "home"),
        "ANSIBLE_STDOUT_CALLBACK": "tree_of_results",
        "ANSIBLE_CALLBACK_PLUGINS": str(folder / "callback"),
        "OUTCOMES": str(folder / "outcomes.json"),
        "MACHINES": str(folder),
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
    }
    command = [sys.executable, "-m", "ansible", "playbook", "-i", str(folder / "hosts.yml"), str(folder / "play.yml")]
    done = subprocess.run(command, env=os.environ | settings, capture_output=True, text=True, check=False, cwd=folder)
    assert (folder / "outcomes.json").exists(), done.stdout + done.stderr
    return folder, json.loads((folder / "outcomes.json").read_text())


def actions(machines, name):
    """What was done on a machine, in order: modules as (name, arguments), commands as (name, words)."""
    return [tuple(json.loads(line)) for line in (machines[0] / name / "done.jsonl").read_text().splitlines()]


def commands(machines, name):
    return [what for what, _ in actions(machines, name) if what not in {"node_probe", "node_state", "deb_pinned"}]


def installed(machines, name):
    (asked,) = [arguments for what, arguments in actions(machines, name) if what == "deb_pinned"]
    return asked


def test_a_new_machine_gets_the_open_modules_of_the_version_held_with_the_kernel(machines):
    asked = installed(machines, "new")
    assert asked["packages"] == [{"name": "nvidia-open", "version": "580.95.05"}]
    # What names another release is not the kernel that runs, and may go.
    assert asked["also_held"] == [
        "linux-image-generic",
        "linux-image-6.14.0-29-generic",
        "linux-headers-6.14.0-29-generic",
    ]
    assert asked["source"]["uri"].endswith("/repos/ubuntu2404/x86_64/")
    assert commands(machines, "new") == ["update-initramfs", "modprobe"]
    files = [
        one
        for what, arguments in actions(machines, "new")
        if what == "node_state"
        for one in arguments.get("files", [])
    ]
    assert "Pin: version 580.95.05*" in files[0]["content"]
    assert "blacklist nouveau" in files[1]["content"]


def test_the_persistence_daemon_runs_and_with_switches_fabric_manager_of_the_same_version(machines):
    units = {
        name: [
            one["name"]
            for what, arguments in actions(machines, name)
            if what == "node_state"
            for one in arguments.get("units", [])
        ]
        for name in ("new", "switches")
    }
    assert units == {
        "new": ["nvidia-persistenced.service"],
        "switches": ["nvidia-persistenced.service", "nvidia-fabricmanager.service"],
    }
    assert {"name": "nvidia-fabricmanager", "version": "580.95.05"} in installed(machines, "switches")["packages"]


def test_a_finished_machine_is_not_touched(machines):
    assert commands(machines, "finished") == []
    assert machines[1]["finished"] is None


def test_an_older_gpu_gets_the_proprietary_modules(machines):
    assert installed(machines, "volta")["packages"][0]["name"] == "cuda-drivers"


def test_a_kernel_that_was_changed_without_the_driver_gets_its_modules(machines):
    assert commands(machines, "new-kernel") == ["update-initramfs", "dkms", "modprobe"]
    assert machines[1]["new-kernel"] is None


@pytest.mark.parametrize(
    ("name", "says"),
    [("nouveau", "nouveau holds the GPUs"), ("other-driver", "the modules of 570.86.15 are still loaded")],
)
def test_what_only_a_reboot_can_do_is_asked_for(machines, name, says):
    reason = " ".join(machines[1][name].split())
    assert says in reason
    assert "Reboot the machine" in reason
    assert "modprobe" not in commands(machines, name)


def test_a_machine_without_a_gpu_is_left_alone(machines):
    assert [what for what, _ in actions(machines, "no-gpu")] == ["node_probe"]


def test_what_was_managed_is_taken_off_and_the_pin_last(machines):
    done = actions(machines, "taken-off")
    absent = [arguments["absent"] for what, arguments in done if what == "node_state"]
    assert absent[-1] == ["/etc/apt/preferences.d/node-nvidia-driver"]
    assert commands(machines, "taken-off")[-1] == "update-initramfs"
    freed = {words for what, words in done if what == "dpkg"}
    assert {"--get-selections linux-image-generic", "--set-selections"} <= freed
    assert machines[1]["taken-off"] is None
