"""The other Debian: the same story in short, so that no role leans on what one release happens to bring.

It begins without a GPU and gets one later.
"""

from dataclasses import dataclass
from typing import Any

import pytest

from tests.node import dirty, judge
from tests.node.conftest import SUITE, Boot
from tests.node.machine import image
from tests.node.machine.deps import Tools
from tests.node.mirror.site import Mirror
from tests.node.play import Playbooks, Run
from tests.node.story import SITE, playbooks_for

FOR_GPUS = {"nvidia_toolkit", "device_plugin"}
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
