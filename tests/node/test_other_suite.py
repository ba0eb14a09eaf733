"""The other Debian: the same story in short, so that no role leans on what one release happens to bring."""

from dataclasses import dataclass
from typing import Any

import pytest

from tests.node import dirty, fingerprint, judge
from tests.node.conftest import SUITE, Boot
from tests.node.machine import image
from tests.node.machine.deps import Tools
from tests.node.mirror.site import Mirror
from tests.node.play import Playbooks, Run
from tests.node.story import SITE, Step, playbooks_for, step

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
def others_check(others_playbooks: Playbooks) -> Step:
    return step(others_playbooks, SITE, "--check")


@pytest.fixture(scope="module")
def others_runs(others_playbooks: Playbooks, others_check: Step) -> list[Run]:  # noqa: ARG001 - it comes after
    return [others_playbooks.run(SITE) for _ in range(2)]


@pytest.fixture(scope="module")
def others_reboot(others_playbooks: Playbooks, others_runs: list[Run]) -> Reboot:  # noqa: ARG001 - it comes after
    machine = others_playbooks.machine
    before = machine.boot_id()
    done = judge.harness(others_playbooks, "reboot-test", "--json", "--wait", "60")
    return Reboot(done.returncode, judge.document(done), (before, machine.boot_id()))


def test_it_is_the_other_one(others_playbooks: Playbooks) -> None:
    assert OTHER in others_playbooks.machine.output("cat /etc/os-release")


def test_check_mode_touches_nothing(others_check: Step) -> None:
    assert others_check.run.status == 0, others_check.run.explain()
    assert fingerprint.difference(others_check.before, others_check.after) == ""


def test_it_converges_and_then_changes_nothing(others_runs: list[Run]) -> None:
    first, second = others_runs
    assert first.status == 0, first.explain()
    assert (second.status, second.counts["changed"]) == (0, 0), second.explain()


def test_it_is_well_before_and_after_a_reboot_and_has_nothing_left_to_do(others_reboot: Reboot) -> None:
    assert others_reboot.status == 0, others_reboot.report["problems"]
    assert others_reboot.boots[0] != others_reboot.boots[1]
    assert others_reboot.report["converge"]["changed"] == 0
