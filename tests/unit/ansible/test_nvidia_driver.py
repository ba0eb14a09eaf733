"""The role of the driver, run as shipped on machines on paper: what it installs, builds and loads, and when it asks for a reboot.

The modules that look at a machine and change it write down what they were asked for; commands are scripts on the path.
"""

import json

import pytest
import recorded_role
import tree

COMMAND = """\
#!/bin/sh
echo "[\\"$(basename "$0")\\", \\"$*\\"]" >> "$MACHINE/done.jsonl"
case "$(basename "$0") $1" in
  dkms*) sed -i 's/"module": false/"module": true/' "$MACHINE/node.json" ;;
  modprobe*) sed -i 's/"driver": null, "open": false/"driver": "580.95.05", "open": true/' "$MACHINE/node.json" ;;
  # It is handed what it is to hold, and to end before that was written would be an error of its caller.
  "dpkg --set-selections") cat > /dev/null ;;
esac
"""
GPU = {
    "pci_devices": 1,
    "generations": [tree.module("node_probe").generation(0x2335)],
    "switches": 0,
    "driver": None,
    "open": False,
    "managed": False,
}
GPU |= {"module": False, "nouveau": False}
LOADED = {"driver": "580.95.05", "open": True}
MACHINES = {
    "new": {},
    "switches": {"switches": 4},
    "finished": LOADED,
    "nouveau": {"nouveau": True},
    "other-driver": {"driver": "570.86.15", "open": True},
    "volta": {"generations": [tree.module("node_probe").generation(0x1DB4)], "driver": "580.95.05"},
    "new-kernel": {"builds": False},
    "resolute": {"os_version": "26.04", "switches": 4},
    "no-gpu": {"pci_devices": 0, "generations": []},
    "taken-off": {**LOADED, "managed": True},
    "others-hold": {**LOADED, "managed": True},
    "under-management": {**LOADED, "managed": True},
}
# What names another release is not the kernel that runs, and may go.
KERNEL = [
    {"name": name, "version": ""}
    for name in ("linux-image-generic", "linux-image-6.14.0-29-generic", "linux-headers-6.14.0-29-generic")
]


@pytest.fixture(scope="module")
def machines(tmp_path_factory):
    """Every machine is a host of one run."""
    nodes, variables = {}, {}
    for name, changes in MACHINES.items():
        gpu = GPU | changes
        machine = {
            "os": "ubuntu",
            "os_version": gpu.pop("os_version", "24.04"),
            "architecture": "x86_64",
            "kernel": "6.14.0-29-generic",
        }
        nodes[name] = machine | {"builds": gpu.pop("builds", True), "gpu": gpu}
        variables[name] = {"nvidia_driver_state": "managed"}
    variables["taken-off"] = variables["others-hold"] = {"nvidia_driver_state": "absent"}
    folder = tmp_path_factory.mktemp("driver")
    before = "{{ lookup('ansible.builtin.env', 'MACHINES') }}/{{ inventory_hostname }}.json"
    (folder / "others-hold.json").write_text('{"held": ["linux-image-generic"]}')
    programs = dict.fromkeys(("dkms", "modprobe", "update-initramfs", "dpkg"), COMMAND)
    return recorded_role.run(folder, "nvidia_driver", nodes, variables, programs, __nvidia_driver_before=before)


def commands(machines, name):
    return [what for what, _ in machines.done[name] if what not in recorded_role.MODULES]


def of_state(machines, name, key):
    """What the machine's node_state was given: files, units, or what is to be absent."""
    return [one for what, asked in machines.done[name] if what == "node_state" for one in asked.get(key, [])]


def installed(machines, name):
    (asked,) = [arguments for what, arguments in machines.done[name] if what == "deb_pinned"]
    return asked


def test_a_new_machine_gets_the_open_modules_of_the_version_held_with_the_kernel(machines):
    asked = installed(machines, "new")
    assert asked["packages"] == [{"name": "nvidia-open", "version": "580.95.05"}, *KERNEL]
    assert asked["source"]["uri"].endswith("/repos/ubuntu2404/x86_64/")
    assert commands(machines, "new") == ["update-initramfs", "modprobe"]
    files = of_state(machines, "new", "files")
    # The packages on paper are held from the beginning.
    assert json.loads(files[0]["content"]) == {"held": ["linux-image-generic", "linux-image-6.8.0-31-generic"]}
    assert "Pin: version 580.95.05*" in files[1]["content"]
    assert "blacklist nouveau" in files[2]["content"]


def test_the_persistence_daemon_runs_and_with_switches_fabric_manager_of_the_same_version(machines):
    units = {name: [unit["name"] for unit in of_state(machines, name, "units")] for name in ("new", "switches")}
    assert units == {
        "new": ["nvidia-persistenced.service"],
        "switches": ["nvidia-persistenced.service", "nvidia-fabricmanager.service"],
    }
    assert {"name": "nvidia-fabricmanager", "version": "580.95.05"} in installed(machines, "switches")["packages"]


def test_a_finished_machine_is_not_touched(machines):
    assert commands(machines, "finished") == []
    assert machines.failed["finished"] is None


def test_an_older_gpu_gets_the_proprietary_modules(machines):
    assert installed(machines, "volta")["packages"][0]["name"] == "cuda-drivers"


def test_the_new_ubuntu_gets_its_own_driver_by_nvidia_s_packages_pinned_by_nvidia_s_own(machines):
    asked = installed(machines, "resolute")
    of_the_driver = ["libnvidia-compute", "nvidia-dkms-open", "nvidia-persistenced", "nvidia-fabricmanager"]
    wanted = [{"name": name, "version": "595.91.07"} for name in of_the_driver]
    assert asked["packages"] == [*wanted, {"name": "nvidia-driver-pinning-595", "version": ""}, *KERNEL]
    assert asked["source"] == {
        "name": "nvidia-driver",
        "uri": "https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2604/x86_64/",
        "key": "60DF8A40.pub",
        "fingerprint": "14BAFBC7562AD710CA04E69905FBB6DA60DF8A40",
    }


def test_a_kernel_that_was_changed_without_the_driver_gets_its_modules(machines):
    assert commands(machines, "new-kernel") == ["update-initramfs", "dkms", "modprobe"]
    assert machines.failed["new-kernel"] is None


@pytest.mark.parametrize(
    ("name", "says"),
    [("nouveau", "nouveau holds the GPUs"), ("other-driver", "the modules of 570.86.15 are still loaded")],
)
def test_what_only_a_reboot_can_do_is_asked_for(machines, name, says):
    reason = " ".join(machines.failed[name].split())
    assert says in reason
    assert "Reboot the machine" in reason
    assert "modprobe" not in commands(machines, name)


def test_a_machine_without_a_gpu_is_left_alone(machines):
    assert [what for what, _ in machines.done["no-gpu"]] == ["node_probe"]


def test_what_was_managed_is_taken_off_and_the_pin_last(machines):
    done = machines.done["taken-off"]
    absent = [arguments["absent"] for what, arguments in done if what == "node_state" and "absent" in arguments]
    assert absent[-1][0] == "/etc/apt/preferences.d/node-nvidia-driver"
    assert commands(machines, "taken-off")[-1] == "update-initramfs"
    freed = {words for what, words in done if what == "dpkg"}
    assert {"--get-selections linux-image-generic", "--set-selections"} <= freed
    assert machines.failed["taken-off"] is None


def test_a_machine_under_management_keeps_what_it_knew_of_the_time_before(machines):
    assert [file["path"] for file in of_state(machines, "under-management", "files")] == [
        "/etc/apt/preferences.d/node-nvidia-driver",
        "/etc/modprobe.d/node-nvidia-driver.conf",
    ]


def test_what_somebody_else_holds_stays_held(machines):
    freed = {words for what, words in machines.done["others-hold"] if what == "dpkg"}
    assert "--get-selections linux-image-6.8.0-31-generic" in freed
    assert "--get-selections linux-image-generic" not in freed


def test_what_the_driver_ran_is_stopped_before_anything_goes(machines):
    done = machines.done["taken-off"]
    off = {"name": "nvidia-persistenced.service", "state": "off"}
    stopped = [what == "node_state" and off in asked.get("units", []) for what, asked in done].index(True)
    assert stopped < [what for what, _ in done].index("dpkg")
