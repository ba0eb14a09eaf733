"""The other Debian: the same story in short, so that no role leans on what one release happens to bring.

It begins without a GPU, gets one later, divides it, and is made steady to measure on at last.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.node import dirty, fingerprint, judge
from tests.node.conftest import SUITE, Boot
from tests.node.machine import image
from tests.node.machine.deps import Tools
from tests.node.machine.vm import Machine
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
    """What `harness reboot-test` reported, and the boots as seen without it."""

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
    return others_playbooks.run(SITE, nvidia_toolkit_gpu="auto")


@pytest.fixture(scope="module")
def with_a_gpu(others_playbooks: Playbooks, without_a_gpu: Run) -> Run:
    assert without_a_gpu.status == 0, without_a_gpu.explain()
    return others_playbooks.run(SITE)


@pytest.fixture(scope="module")
def others_reboot(others_playbooks: Playbooks, with_a_gpu: Run) -> Reboot:  # noqa: ARG001 - it comes after
    machine = others_playbooks.machine
    before = machine.boot_id()
    done = judge.harness(others_playbooks, "reboot-test", "--json", "--wait", "60")
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
