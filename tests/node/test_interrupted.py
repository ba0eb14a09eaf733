"""Killed on the way, again and again, and run once more: the machine is the one an undisturbed run makes.

Its tasks are run by the machine's plain Python, as a user's are: what is killed is what a user would kill, and a
difference that the tests' quicker one made would be seen between this machine and the undisturbed one.
"""

from random import Random

import pytest
import yaml

from harness.node.checks import registered
from tests.node import fingerprint, judge
from tests.node.conftest import Boot
from tests.node.machine.image import PLAIN_PYTHON, Disks
from tests.node.mirror.site import Mirror
from tests.node.play import ROOT, Playbooks, Run, run_by
from tests.node.story import CLUSTER_STAGES, Step, playbooks_for, step
from tests.node.test_lifecycle import MANY_CHECKS

KILLS = 20
# Of the changing tasks, counted from the first: ssh drops in one and is there again, then in another for good.
DROPPED = (4, 6)
# More than Ansible tries again for.
AWAY_S = 20.0
# Areas of checks of what stands on the cluster: these runs end below them.
ABOVE = {"gpu", "monitoring", "workloads"}
# What the roles after it ask.
NEEDED = ("preflight",)
# A task takes about half a second here: some are killed as they begin, some in the middle, some as they end.
LONGEST_DELAY_S = 0.5


def stages() -> dict[str, list[str]]:
    """The playbooks, in order, each with the names of its plays."""
    return {path: [play["name"] for play in yaml.safe_load((ROOT / path).read_text())] for path in CLUSTER_STAGES}


class Site:
    """The playbooks on one machine, killed over and over; a run begins with the role in which the last one was killed.

    What the roles before that one have done is finished, and the run at the end goes through all of them again.
    """

    def __init__(self, playbooks: Playbooks) -> None:
        self.playbooks = playbooks
        self.left = stages()
        self.finished: set[str] = set()
        self.runs: list[Run] = []

    def kill_in(self, tasks: list[str], delay_s: float) -> None:
        """One more run, killed a moment after the first of these tasks began."""
        first, *others = self._remaining()
        self.runs.append(self.playbooks.run_killed(first, tasks, delay_s, *others))
        self._go_on_after(self.runs[-1])

    def drop_in(self, drops: dict[str, float]) -> Run:
        """One more run, from which the machine falls away in the middle of these tasks, for so many seconds."""
        first, *others = self._remaining()
        done = self.playbooks.run_dropped(first, drops, *others)
        self._go_on_after(done)
        return done

    def _remaining(self) -> list[str]:
        skipped = ["--skip-tags", ",".join(sorted(self.finished))] if self.finished else []
        return [*self.left, *skipped]

    def _go_on_after(self, run: Run) -> None:
        reached = run.tasks[-1]
        while reached.play not in self.left[next(iter(self.left))]:
            self.left.pop(next(iter(self.left)))
            self.finished.clear()  # a role may have a part in the next playbook as well
        plays = self.left[next(iter(self.left))]
        passed = {done.role for done in run.tasks if done.play in plays}
        self.finished |= passed - {reached.role, "", *NEEDED}


@pytest.fixture(scope="module")
def disturbed(boot: Boot, dirty_disks: Disks, mirror: Mirror) -> Playbooks:
    return playbooks_for(boot(dirty_disks), mirror, **run_by(PLAIN_PYTHON))


def changing_tasks(undisturbed: Step) -> list[str]:
    """The tasks that change something, in order."""
    assert undisturbed.run.status == 0, undisturbed.run.explain()
    return list(dict.fromkeys(task.name for task in undisturbed.run.changed))


@pytest.fixture(scope="module")
def site(disturbed: Playbooks) -> Site:
    return Site(disturbed)


@pytest.fixture(scope="module")
def dropped(site: Site, undisturbed: Step) -> Run:
    """The first run: ssh drops in the middle of two tasks that change something, the second time for good."""
    changing = changing_tasks(undisturbed)
    again, gone = (changing[position] for position in DROPPED)
    return site.drop_in({again: 0.0, gone: AWAY_S})


@pytest.fixture(scope="module")
def killed(site: Site, undisturbed: Step, dropped: Run) -> list[Run]:  # noqa: ARG001 - it comes after
    """One run after another on the same machine, each killed in a later one of the tasks that change something."""
    order = list(dict.fromkeys(task.name for task in undisturbed.run.tasks))
    changing = changing_tasks(undisturbed)
    # From where ssh was gone: roles before it are finished, and skipped.
    reached = order.index(changing[DROPPED[-1]])
    delays = Random(KILLS)
    while (missing := KILLS - len(victims(site.runs))) and reached + missing < len(order):
        later = order[reached + 1 :]
        wanted = [name for name in later if name in changing]
        if len(wanted) < missing:
            wanted = later
        # As far on as spreads the kills evenly over what is left; a task that this run need not do is passed over.
        targets = wanted[len(wanted) // (2 * missing) :]
        site.kill_in(targets, delays.uniform(0, LONGEST_DELAY_S))
        # A kill may come late, and hit a later task: the next one goes on from there, so that no task is hit twice.
        hit = site.runs[-1].tasks[-1].name
        reached = max(order.index(targets[0]), order.index(hit) if hit in order else 0)
    return site.runs


def victims(runs: list[Run]) -> set[str]:
    """The tasks that were running when the runs were killed."""
    return {f"{run.tasks[-1].role} : {run.tasks[-1].name}" for run in runs}


@pytest.fixture(scope="module")
def recovered(disturbed: Playbooks, killed: list[Run]) -> Step:  # noqa: ARG001 - it comes after
    return step(disturbed, *CLUSTER_STAGES)


def test_a_run_goes_on_when_ssh_drops_and_ends_when_it_stays_away(dropped: Run, undisturbed: Step) -> None:
    changing = changing_tasks(undisturbed)
    again, gone = (changing[position] for position in DROPPED)
    assert dropped.status != 0
    [lost] = dropped.failed
    assert (lost.name, lost.status) == (gone, "unreachable"), dropped.explain()
    assert [task.status for task in dropped.tasks if task.name == again] == ["ok"]


def test_twenty_different_tasks_were_killed(killed: list[Run]) -> None:
    assert [run.explain() for run in killed if run.status == 0 or run.failed] == []
    print("\n" + "\n".join(f"killed after {run.duration_s:5.1f} s in {run.tasks[-1].name}" for run in killed))
    assert len(victims(killed)) >= KILLS


def test_the_next_run_converges(recovered: Step) -> None:
    assert recovered.run.status == 0, recovered.run.explain()


def test_the_machine_is_the_same_as_undisturbed(recovered: Step, undisturbed: Step) -> None:
    assert fingerprint.difference(undisturbed.after, recovered.after) == ""


def test_the_verdict_on_machine_and_cluster_is_well(disturbed: Playbooks, recovered: Step) -> None:
    assert recovered.run.status == 0, recovered.run.explain()
    found = judge.verdict(disturbed, only=sorted({check.area for check in registered()} - ABOVE))
    assert (found.status, set(found.failed)) == (0, set()), found.output
    assert len(found.passed) > MANY_CHECKS
