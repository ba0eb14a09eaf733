"""A dirty machine, from check mode to reset and back: one machine, one story, in this order."""

from dataclasses import dataclass

import pytest

from tests.node import fingerprint
from tests.node.conftest import Boot, MakePlaybooks
from tests.node.machine.image import Disks
from tests.node.machine.vm import Machine
from tests.node.play import Playbooks, Run

SITE = "site.yml"
NODE_STAGE = "playbooks/node.yml"


@dataclass(frozen=True)
class Step:
    """A run, and the machine's state before and after it."""

    run: Run
    before: list[str]
    after: list[str]


@pytest.fixture(scope="module")
def machine(boot: Boot, dirty_disks: Disks) -> Machine:
    return boot(dirty_disks)


@pytest.fixture(scope="module")
def playbooks(machine: Machine, playbooks_for: MakePlaybooks) -> Playbooks:
    return playbooks_for(machine)


def step(playbooks: Playbooks, playbook: str, *arguments: str) -> Step:
    before = fingerprint.take(playbooks.machine)
    run = playbooks.run(playbook, *arguments)
    return Step(run, before, fingerprint.take(playbooks.machine))


@pytest.fixture(scope="module")
def checked(playbooks: Playbooks) -> Step:
    return step(playbooks, SITE, "--check")


@pytest.fixture(scope="module")
def first_node_stage(playbooks: Playbooks, checked: Step) -> Run:  # noqa: ARG001 - it comes after
    return playbooks.run(NODE_STAGE)


@pytest.fixture(scope="module")
def second_node_stage(playbooks: Playbooks, first_node_stage: Run) -> Run:
    assert first_node_stage.status == 0, first_node_stage.explain()
    return playbooks.run(NODE_STAGE)


@pytest.fixture(scope="module")
def converged(playbooks: Playbooks, second_node_stage: Run) -> Step:  # noqa: ARG001 - it comes after
    return step(playbooks, SITE)


@pytest.fixture(scope="module")
def again(playbooks: Playbooks, converged: Step) -> Step:
    assert converged.run.status == 0, converged.run.explain()
    return step(playbooks, SITE)


def test_check_mode_runs_on_the_virgin_machine_and_touches_nothing(checked: Step) -> None:
    assert checked.run.status == 0, checked.run.explain()
    assert checked.run.changed, "check mode foresees no change on a machine that has nothing yet"
    assert fingerprint.difference(checked.before, checked.after) == ""


def test_a_second_node_stage_takes_at_most_a_third(first_node_stage: Run, second_node_stage: Run) -> None:
    first_s, second_s = first_node_stage.duration_s, second_node_stage.duration_s
    print(f"\nnode stage: first {first_s:.1f} s, second {second_s:.1f} s, ratio {second_s / first_s:.2f}")
    for role, duration_s in second_node_stage.seconds_by_role().items():
        print(f"  {role:<22} {first_node_stage.seconds_by_role().get(role, 0.0):6.1f} s {duration_s:6.1f} s")
    assert second_s <= first_s / 3


def test_the_site_converges(converged: Step) -> None:
    assert converged.run.status == 0, converged.run.explain()


def test_a_second_run_changes_nothing(again: Step) -> None:
    assert again.run.status == 0, again.run.explain()
    assert again.run.counts["changed"] == 0, again.run.explain()
    assert fingerprint.difference(again.before, again.after) == ""
