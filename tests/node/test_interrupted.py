"""Killed on the way, again and again, and run once more: the machine is the one an undisturbed run makes."""

from random import Random

import pytest

from tests.node import fingerprint, judge
from tests.node.conftest import Boot
from tests.node.machine.image import Disks
from tests.node.mirror.site import Mirror
from tests.node.play import Playbooks, Run
from tests.node.story import SITE, Step, playbooks_for

KILLS = 20
# A task takes about half a second here: some are killed as they begin, some in the middle, some as they end.
LONGEST_DELAY_S = 0.5


@pytest.fixture(scope="module")
def disturbed(boot: Boot, dirty_disks: Disks, mirror: Mirror) -> Playbooks:
    return playbooks_for(boot(dirty_disks), mirror)


@pytest.fixture(scope="module")
def killed(disturbed: Playbooks, first_node_stage: Run, converged: Step) -> list[Run]:
    """One run after another on the same machine, each killed in a later one of the tasks that change something."""
    changing = list(dict.fromkeys(task.name for task in [*first_node_stage.changed, *converged.run.changed]))
    names = [changing[(2 * position + 1) * len(changing) // (2 * KILLS)] for position in range(KILLS)]
    delays = Random(KILLS)
    runs = [disturbed.run_killed(SITE, name, delays.uniform(0, LONGEST_DELAY_S)) for name in names]
    # A kill may come late and hit a task that another kill hits as well: then one more, further down, where tasks
    # run every time.
    further_down = [task.name for task in converged.run.tasks[-15:-5] if task.name not in names]
    while len(victims(runs)) < KILLS and further_down:
        runs.append(disturbed.run_killed(SITE, further_down.pop(0), 0.0))
    return runs


def victims(runs: list[Run]) -> set[str]:
    """The tasks that were running when the runs were killed."""
    return {f"{run.tasks[-1].role} : {run.tasks[-1].name}" for run in runs}


@pytest.fixture(scope="module")
def recovered(disturbed: Playbooks, killed: list[Run]) -> Step:  # noqa: ARG001 - it comes after
    before = fingerprint.take(disturbed.machine)
    run = disturbed.run(SITE)
    return Step(run, before, fingerprint.take(disturbed.machine))


def test_twenty_different_tasks_were_killed(killed: list[Run]) -> None:
    assert [run.explain() for run in killed if run.status == 0 or run.failed] == []
    print("\n" + "\n".join(f"killed after {run.duration_s:5.1f} s in {run.tasks[-1].name}" for run in killed))
    assert len(victims(killed)) >= KILLS


def test_the_next_run_converges(recovered: Step) -> None:
    assert recovered.run.status == 0, recovered.run.explain()


def test_the_machine_is_the_same_as_undisturbed(recovered: Step, again: Step) -> None:
    assert fingerprint.difference(again.after, recovered.after) == ""


def test_the_verdict_is_well(disturbed: Playbooks, recovered: Step) -> None:  # noqa: ARG001 - it comes after
    found = judge.verdict(disturbed)
    assert (found.status, set(found.failed)) == (0, set()), found.output
