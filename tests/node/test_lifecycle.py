"""The story goes on: judge, reboot, judge, converge, reset, converge; the machine is the same one all along."""

import re
from dataclasses import dataclass
from typing import Any

import pytest

from tests.node import fingerprint, judge
from tests.node.judge import Verdict
from tests.node.machine.image import Disks
from tests.node.machine.vm import Machine
from tests.node.play import Playbooks, Run
from tests.node.story import SITE, Step, step

MANY_CHECKS = 30
ROLES_CHECK = "roles/verify"  # Ansible's own: not testinfra's
# What a reset must leave nothing of: packages, holds, configuration, units, volumes; an empty folder may stay.
REMAINS = r"^(?!d ).*(cri-o|crio|kube|nvidia|cri-tools|calico|etcd|local-path|harness)"
# Modules that run on the machine when the node stage has nothing to do: half a second each.
MOST_QUESTIONS = 20
# On the mirror, beside the repositories: manifests, which are not packages.
FILES = "/files/"


@dataclass(frozen=True)
class Reboot:
    """What `harness node reboot-test` reported, and what was seen of the machine without it."""

    status: int
    report: dict[str, Any]
    said: str
    boots: tuple[str, str]
    before: list[str]
    after: list[str]


@pytest.fixture(scope="module")
def rebooted(playbooks: Playbooks, converged_disks: Disks) -> Reboot:  # noqa: ARG001 - it comes after
    machine = playbooks.machine
    before, boot_before = fingerprint.take(machine), machine.boot_id()
    done = judge.harness(playbooks, "node", "reboot-test", "--json", "--wait", "60")
    boots = (boot_before, machine.boot_id())
    return Reboot(done.returncode, judge.document(done), done.stderr, boots, before, fingerprint.take(machine))


@pytest.fixture(scope="module")
def verdicts_after(playbooks: Playbooks, rebooted: Reboot) -> dict[str, Verdict]:
    [after] = rebooted.report["after"]
    return {"verify-node": judge.read(after, rebooted.status, rebooted.said), "testinfra": judge.testinfra(playbooks)}


@pytest.fixture(scope="module")
def reset(playbooks: Playbooks, verdicts_after: dict[str, Verdict]) -> Run:  # noqa: ARG001 - it comes after
    return playbooks.run("playbooks/reset.yml", reset_confirmed=True)


@pytest.fixture(scope="module")
def after_reset(machine: Machine, reset: Run) -> list[str]:  # noqa: ARG001 - it comes after
    return fingerprint.take(machine)


@pytest.fixture(scope="module")
def converged_again(playbooks: Playbooks, reset: Run, after_reset: list[str]) -> Step:  # noqa: ARG001 - it comes after
    assert reset.status == 0, reset.explain()
    return step(playbooks, SITE)


def test_stages_that_are_done_change_nothing_while_the_others_follow(cluster_stages: Step, converged: Step) -> None:
    assert cluster_stages.run.changed
    done = {task.play for task in cluster_stages.run.tasks}
    assert [f"{task.role} : {task.name}" for task in converged.run.changed if task.play in done] == []


def test_a_finished_node_is_asked_little_and_fetches_no_package(cluster_stages: Step, again: Step) -> None:
    node_stage = cluster_stages.run.tasks[0].play
    asked = [task.name for task in again.run.tasks if task.play == node_stage and task.reached_the_machine]
    assert 0 < len(asked) <= MOST_QUESTIONS, asked
    assert [path for path in again.fetched if not path.startswith(FILES)] == []


def test_the_site_converges(converged: Step) -> None:
    assert converged.run.status == 0, converged.run.explain()


def test_a_second_run_changes_nothing(again: Step) -> None:
    assert again.run.status == 0, again.run.explain()
    assert again.run.counts["changed"] == 0, again.run.explain()
    assert fingerprint.difference(again.before, again.after) == ""


def test_every_check_passes(rebooted: Reboot) -> None:
    """The reboot test begins with a verdict, and reboots nothing that is not well."""
    assert rebooted.boots[0] != rebooted.boots[1], rebooted.said
    [before] = rebooted.report["before"]
    assert len(before["checks"]) > MANY_CHECKS


def test_the_machine_really_rebooted(rebooted: Reboot) -> None:
    assert rebooted.boots[0] != rebooted.boots[1]


def test_the_reboot_test_is_content(rebooted: Reboot) -> None:
    assert rebooted.status == 0, f"{rebooted.report}\n{rebooted.said}"


def test_a_reboot_changes_nothing(rebooted: Reboot) -> None:
    assert fingerprint.difference(rebooted.before, rebooted.after) == ""


@pytest.mark.parametrize("judge_name", ["verify-node", "testinfra"])
def test_the_verdict_after_the_reboot_is_the_same(
    rebooted: Reboot, verdicts_after: dict[str, Verdict], judge_name: str
) -> None:
    [before] = rebooted.report["before"]
    after = verdicts_after[judge_name]
    assert (after.status, set(after.failed)) == (0, set()), after.output
    assert after.passed == set(before["checks"]) - ({ROLES_CHECK} if judge_name == "testinfra" else set())


def test_a_run_after_the_reboot_changes_nothing(rebooted: Reboot) -> None:
    assert (rebooted.report["converge"]["ok"], rebooted.report["converge"]["changed"]) == (True, 0), rebooted.report


def test_reset_takes_everything_off(reset: Run, after_reset: list[str]) -> None:
    assert reset.status == 0, reset.explain()
    left = [line for line in after_reset if re.search(REMAINS, line)]
    assert left == []
    # The distribution's own folder: a package that was removed had something in it.
    assert any(re.match(r"d 755 root:root /opt ", line) for line in after_reset)


def test_converging_after_a_reset_gives_the_same_machine(rebooted: Reboot, converged_again: Step) -> None:
    assert converged_again.run.status == 0, converged_again.run.explain()
    assert fingerprint.difference(rebooted.after, converged_again.after) == ""


def test_every_check_passes_after_reset_and_converge(playbooks: Playbooks, converged_again: Step) -> None:
    assert converged_again.run.status == 0, converged_again.run.explain()
    found = judge.verdict(playbooks)
    assert (found.status, set(found.failed)) == (0, set()), found.output
