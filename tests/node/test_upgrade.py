"""From the default minor to the next one: refused by the site, done by its own playbook, and then at rest."""

import pytest

from tests.node import judge
from tests.node.conftest import Boot
from tests.node.machine.image import Disks
from tests.node.mirror.site import Mirror
from tests.node.play import Playbooks, Run
from tests.node.story import SITE, playbooks_for

UPGRADE = "playbooks/upgrade.yml"


@pytest.fixture(scope="module")
def next_minor(mirror: Mirror) -> str:
    """The row of the table of versions after the chosen one."""
    minors = sorted(mirror.table["versions_by_minor"], key=lambda minor: int(minor.partition(".")[2]))
    return str(minors[minors.index(mirror.table["kubernetes_minor"]) + 1])


@pytest.fixture(scope="module")
def upgraded_playbooks(boot: Boot, converged_disks: Disks, mirror: Mirror, next_minor: str) -> Playbooks:
    return playbooks_for(boot(converged_disks), mirror, kubernetes_minor=next_minor)


@pytest.fixture(scope="module")
def refused(upgraded_playbooks: Playbooks) -> Run:
    return upgraded_playbooks.run(SITE)


@pytest.fixture(scope="module")
def upgraded(upgraded_playbooks: Playbooks, refused: Run) -> Run:  # noqa: ARG001 - it comes after
    return upgraded_playbooks.run(UPGRADE)


def test_the_site_does_not_upgrade_by_the_way(refused: Run) -> None:
    assert refused.status != 0
    assert UPGRADE in " ".join(task.message for task in refused.failed), refused.explain()
    assert refused.changed == []


def test_the_upgrade_runs(upgraded: Run) -> None:
    assert upgraded.status == 0, upgraded.explain()


def test_the_verdict_names_the_new_versions(upgraded_playbooks: Playbooks, upgraded: Run) -> None:
    assert upgraded.status == 0, upgraded.explain()
    found = judge.verdict(upgraded_playbooks)
    assert (found.status, set(found.failed)) == (0, set()), found.output


def test_the_site_has_nothing_left_to_do(upgraded_playbooks: Playbooks, upgraded: Run) -> None:
    assert upgraded.status == 0, upgraded.explain()
    run = upgraded_playbooks.run(SITE)
    assert (run.status, run.counts["changed"]) == (0, 0), run.explain()
