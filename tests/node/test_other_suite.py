"""The other Debian: the same story in short, so that no role leans on what one release happens to bring.

It begins without a GPU, gets one later, divides it, is made steady to measure on, and gets its driver from us at last.
"""

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.node import dirty, fingerprint, judge
from tests.node.conftest import SUITE, Boot
from tests.node.machine import image
from tests.node.machine.deps import Tools
from tests.node.machine.vm import Machine
from tests.node.mirror import debs, driver
from tests.node.mirror.site import Mirror
from tests.node.play import Playbooks, Run
from tests.node.story import NODE_STAGE, SITE, playbooks_for
from tests.support import fake_nvidia_smi

FOR_GPUS = {"nvidia_toolkit", "device_plugin"}
GPU_STAGE = "playbooks/gpu.yml"
# One instance, so that as many slices are advertised as of the whole GPU.
INSTANCES = ["7g.141gb"]
DIVIDED = {"device_plugin_mig_profiles": INSTANCES, "device_plugin_mig_strategy": "single"}
MEASURING = {"node_profile_name": "measuring", "node_profile_gpu_clock_mhz": 1395, "node_profile_gpu_power_w": 500}
OTHER = "trixie" if SUITE == "bookworm" else "bookworm"


@dataclass(frozen=True)
class Reboot:
    """What `harness node reboot-test` reported, and the boots as seen without it."""

    status: int
    report: dict[str, Any]
    boots: tuple[str, str]


@pytest.fixture(scope="module")
def others_playbooks(tools: Tools, boot: Boot, mirror: Mirror) -> Playbooks:
    machine = boot(image.build(tools, OTHER))
    dirty.prepare(machine, mirror, OTHER)
    return playbooks_for(machine, mirror)


@pytest.fixture(scope="module")
def without_a_gpu(others_playbooks: Playbooks) -> Run:
    return others_playbooks.run(SITE, node_gpu="auto")


@pytest.fixture(scope="module")
def with_a_gpu(others_playbooks: Playbooks, without_a_gpu: Run) -> Run:
    assert without_a_gpu.status == 0, without_a_gpu.explain()
    return others_playbooks.run(SITE)


@pytest.fixture(scope="module")
def others_reboot(others_playbooks: Playbooks, with_a_gpu: Run) -> Reboot:  # noqa: ARG001 - it comes after
    machine = others_playbooks.machine
    before = machine.boot_id()
    done = judge.harness(others_playbooks, "node", "reboot-test", "--json", "--wait", "60")
    return Reboot(done.returncode, judge.document(done), (before, machine.boot_id()))


def test_it_is_the_other_one(others_playbooks: Playbooks) -> None:
    assert OTHER in others_playbooks.machine.output("cat /etc/os-release")


def test_without_a_gpu_it_converges_and_leaves_the_gpus_roles_out(without_a_gpu: Run) -> None:
    assert without_a_gpu.status == 0, without_a_gpu.explain()
    assert {"crio", "prometheus", "inference_namespace"} <= {task.role for task in without_a_gpu.changed}
    assert not FOR_GPUS & {task.role for task in without_a_gpu.changed}


def test_a_gpu_that_comes_later_changes_the_gpus_roles_alone(with_a_gpu: Run) -> None:
    assert with_a_gpu.status == 0, with_a_gpu.explain()
    assert {task.role for task in with_a_gpu.changed} == FOR_GPUS, with_a_gpu.explain()


def test_it_is_well_before_and_after_a_reboot_and_has_nothing_left_to_do(others_reboot: Reboot) -> None:
    assert others_reboot.status == 0, others_reboot.report["problems"]
    assert others_reboot.boots[0] != others_reboot.boots[1]
    assert others_reboot.report["converge"]["changed"] == 0


class PlayedGpu:
    """A GPU that a stand-in for nvidia-smi shows, kept in a file of the machine."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        machine.write("/opt/nvidia-smi.py", Path(fake_nvidia_smi.__file__).read_text())
        machine.write("/usr/bin/nvidia-smi", '#!/bin/sh\nexec python3 /opt/nvidia-smi.py /opt/gpus.json "$@"\n')
        machine.ssh("chmod 755 /usr/bin/nvidia-smi")
        self.forget()

    def forget(self) -> None:
        """As a boot does to a GPU of Hopper and newer: undivided, unlocked, its power limit the default."""
        self._machine.write("/opt/gpus.json", json.dumps([asdict(fake_nvidia_smi.Gpu("GPU-a"))]))

    def now(self) -> fake_nvidia_smi.Gpu:
        (gpu,) = json.loads(self._machine.output("cat /opt/gpus.json"))
        return fake_nvidia_smi.Gpu(**gpu)

    def instances(self) -> list[str]:
        return self.now().instances


def test_a_gpu_is_divided_when_asked_and_at_every_boot(others_playbooks: Playbooks, others_reboot: Reboot) -> None:
    assert others_reboot.status == 0
    machine = others_playbooks.machine
    gpu = PlayedGpu(machine)
    checked = others_playbooks.run(GPU_STAGE, "--check", **DIVIDED)
    assert (checked.status, gpu.instances()) == (0, []), checked.explain()
    run = others_playbooks.run(GPU_STAGE, **DIVIDED)
    assert (run.status, gpu.instances()) == (0, INSTANCES), run.explain()
    again = others_playbooks.run(GPU_STAGE, **DIVIDED)
    assert (again.status, again.counts["changed"]) == (0, 0), again.explain()
    gpu.forget()
    machine.reboot()
    machine.ssh("systemctl start node-mig.service")  # waits for it while the machine still starts
    assert gpu.instances() == INSTANCES
    back = others_playbooks.run(GPU_STAGE, device_plugin_mig_strategy="single")
    assert back.status == 0, back.explain()
    assert machine.output("find /etc/systemd -name 'node-mig*'") == ""
    assert machine.output("systemctl list-units --plain --no-legend 'node-mig*'") == "", (
        "it is not active without its file"
    )
    assert gpu.instances() == INSTANCES, "instances are made, and never taken away unless others are asked for"


def show_two_cpus(machine: Machine) -> None:
    """Its kernel has one, of which nothing could be kept for the system; forgotten by a boot."""
    machine.write("/run/cpus", "0-1\n")
    machine.ssh("mount --bind /run/cpus /sys/devices/system/cpu/online")


def test_it_is_made_steady_stays_so_over_a_boot_and_is_what_it_was_afterwards(
    others_playbooks: Playbooks, others_reboot: Reboot, mirror: Mirror
) -> None:
    assert others_reboot.status == 0
    machine = others_playbooks.machine
    gpu = PlayedGpu(machine)
    before = fingerprint.take(machine)
    show_two_cpus(machine)
    measuring = playbooks_for(machine, mirror, **MEASURING)
    run = measuring.run(NODE_STAGE)
    assert run.status == 0, run.explain()
    assert {task.role for task in run.changed} == {"node_profile"}, run.explain()
    assert (gpu.now().locked_mhz, gpu.now().power_w) == (1395, 500)
    gpu.forget()
    machine.reboot()
    machine.ssh("systemctl start node-profile.service")  # waits for it while the machine still starts
    assert (gpu.now().locked_mhz, gpu.now().power_w) == (1395, 500)
    judged = judge.verdict(measuring, only=["profile"])
    assert judged.failed == frozenset(), judged.output
    assert {"profile/gpu-clock", "profile/gpu-power", "profile/cpus", "profile/quiet"} <= judged.passed
    show_two_cpus(machine)
    again = measuring.run(NODE_STAGE)
    assert (again.status, again.counts["changed"]) == (0, 0), again.explain()
    usual = playbooks_for(machine, mirror)
    back = usual.run(NODE_STAGE)
    assert back.status == 0, back.explain()
    assert (gpu.now().locked_mhz, gpu.now().power_w) == (None, fake_nvidia_smi.MOST_W)
    machine.ssh("umount /sys/devices/system/cpu/online")
    assert fingerprint.difference(before, fingerprint.take(machine)) == ""


# What the PCI bus shows of a H200 and of the switch that joins it to others.
ON_THE_BUS = {
    "0000:01:00.0": {"device": "0x2335", "class": "0x030200"},
    "0000:02:00.0": {"device": "0x22a3", "class": "0x068000"},
}
SOMEBODYS = "linux-image-amd64"
INSTALLING = "Install the driver at its version, and hold it and the kernel that it is built for"


def show_gpus(machine: Machine) -> None:
    """Its kernel has no PCI; forgotten by a boot."""
    for address, values in ON_THE_BUS.items():
        for name, value in (values | {"vendor": "0x10de"}).items():
            machine.write(f"/run/bus/pci/devices/{address}/{name}", f"{value}\n")
    machine.ssh("mount --bind /run/bus /sys/bus")


def install_kernel(machine: Machine, folder: Path) -> None:
    """The kernel that runs, as packages; somebody holds what would bring the next one."""
    for package in driver.kernel(machine.output("uname -r")):
        machine.write_bytes(f"/root/{package.file_name}", debs.build(package, folder).read_bytes())
    machine.ssh(f"dpkg -i /root/*.deb && rm /root/*.deb && apt-mark hold {SOMEBODYS}")


def versions(machine: Machine) -> dict[str, tuple[str, str]]:
    """Of every package of the driver and the kernel: its state (h: held, i: installed) and its version."""
    patterns = "'*nvidia*' 'cuda-drivers*' 'libcuda1*' 'linux-image-*' 'linux-headers-*'"
    asked = f"dpkg-query -W -f '${{db:Status-Abbrev}} ${{Package}} ${{Version}}\\n' {patterns}"
    # It also says that one of the patterns fits nothing.
    rows = [line.split() for line in machine.ssh(asked, check=False).stdout.splitlines()]
    return {row[1]: (row[0], row[2]) for row in rows if len(row) == 3 and "container" not in row[1]}


def test_a_driver_is_installed_at_one_version_held_with_its_kernel_and_taken_off_again(
    others_playbooks: Playbooks, others_reboot: Reboot, mirror: Mirror, tmp_path: Path
) -> None:
    assert others_reboot.status == 0
    machine = others_playbooks.machine
    show_gpus(machine)
    install_kernel(machine, tmp_path)
    before, wanted = fingerprint.take(machine), f"{mirror.table['versions_common']['nvidia_driver']}{driver.REVISION}"
    managed = playbooks_for(machine, mirror, nvidia_driver_state="managed", node_gpu="required")
    alone = ("--tags", "nvidia_driver")
    killed = managed.run_killed(NODE_STAGE, ["nvidia_driver : " + INSTALLING], 1.5, *alone)
    assert (killed.tasks[-1].name, killed.status == 0) == ("nvidia_driver : " + INSTALLING, False), killed.explain()
    run = managed.run(NODE_STAGE, *alone)
    assert run.status == 0, run.explain()
    found = versions(machine)
    drivers = {name: row for name, row in found.items() if not name.startswith("linux-")}
    assert {version for _, version in drivers.values()} == {wanted}, "a later one is offered"
    assert {"nvidia-open", "nvidia-kernel-open-dkms", "nvidia-persistenced", "nvidia-fabricmanager"} <= set(drivers)
    held = {name for name, (state, _) in found.items() if state.startswith("h")}
    kernel = {name for name in found if name.startswith("linux-")}
    assert held == {"nvidia-open", "nvidia-fabricmanager"} | kernel
    upgraded = re.findall(r"^Inst (\S+)", machine.output("apt-get --simulate dist-upgrade"), re.MULTILINE)
    assert not set(upgraded) & set(found), "neither is upgraded, whatever is offered"
    assert "Open Kernel Module" in machine.output("cat /proc/driver/nvidia/version")
    assert machine.output("systemctl is-active nvidia-persistenced nvidia-fabricmanager").split() == ["active"] * 2
    judged = judge.verdict(managed, only=["driver"])
    assert (judged.status, judged.failed) == (0, frozenset()), judged.output
    assert {"driver/version", "driver/modules", "driver/nouveau", "driver/held"} <= judged.passed
    again = managed.run(NODE_STAGE, *alone)
    assert (again.status, again.counts["changed"]) == (0, 0), again.explain()
    off = playbooks_for(machine, mirror, nvidia_driver_state="absent", node_gpu="absent").run(NODE_STAGE, *alone)
    assert off.status == 0, off.explain()
    # The module stays in memory until the next boot, and the account of the persistence daemon for good.
    machine.ssh(f"umount /proc/driver && userdel {driver.PERSISTENCE_ACCOUNT}")
    left = fingerprint.difference(before, fingerprint.take(machine))
    assert left == "", f"somebody's hold stays as well: {left}"
    assert "nvidia.ko" not in machine.output("cat /lib/modules/$(uname -r)/modules.dep")
