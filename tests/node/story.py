"""A dirty machine up to the converged state: one machine per session, one story, in this order.

Session fixtures, so that every module can start where the story has come to.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tests.node import fingerprint
from tests.node.machine import deps
from tests.node.machine.deps import Tools
from tests.node.machine.image import USER, Disks
from tests.node.machine.vm import Machine
from tests.node.mirror.site import Mirror
from tests.node.play import Playbooks, Run, Task

SITE = "site.yml"
NODE_STAGE = "playbooks/node.yml"
# The site's first half: what stories run that are not about what stands on the cluster.
CLUSTER_STAGES = (NODE_STAGE, "playbooks/cluster.yml")

# What this machine cannot show, told to the roles and to nobody else.
MACHINE_VARIABLES: dict[str, Any] = {
    "preflight_psi_required": False,
    "preflight_time_service_required": False,
    "preflight_cpus_min": 1,
    "preflight_disk_volumes_counted": False,
    # The calendar changes no outcome here.
    "preflight_end_of_life_allowed": True,
    "node_gpu": "assumed",
    "device_plugin_gpus_assumed": 1,
    # One processor, of which no group can be given a part.
    "control_plane_kubeadm_ignore_preflight_errors": ["NumCPU", "SystemVerification"],
    "worker_kubeadm_ignore_preflight_errors": ["SystemVerification"],
}


def playbooks_for(machine: Machine, mirror: Mirror, *, worker: Machine | None = None, **variables: Any) -> Playbooks:
    """Playbooks of a machine, everything fetched from the local mirrors; host variables as keyword arguments.

    worker: a second machine that joins it; it has no GPU.
    """
    common = {"ansible_user": USER} | mirror.variables() | MACHINE_VARIABLES | variables
    return Playbooks(machine, common, worker=worker, worker_variables=common | {"node_gpu": "absent"})


@dataclass(frozen=True)
class Step:
    """A run, and the machine's state before and after it.

    fetched: what the mirror was asked for meanwhile, where somebody wants to know.
    """

    run: Run
    before: list[str]
    after: list[str]
    fetched: list[str] = field(default_factory=list)


@pytest.fixture(scope="session")
def machine(tools: Tools, dirty_disks: Disks, mirror: Mirror, scratch: Path) -> Iterator[Machine]:
    with Machine(tools, dirty_disks, scratch / "story", mirror.port) as machine:
        yield machine


@pytest.fixture(scope="session")
def playbooks(machine: Machine, mirror: Mirror) -> Playbooks:
    return playbooks_for(machine, mirror)


def step(playbooks: Playbooks, playbook: str, *arguments: str, before: list[str] | None = None) -> Step:
    """Run a playbook between two looks at the machine; before: the first one, where it was taken already."""
    before = before or fingerprint.take(playbooks.machine)
    run = playbooks.run(playbook, *arguments)
    return Step(run, before, fingerprint.take(playbooks.machine))


@pytest.fixture(scope="session")
def cluster_stages(playbooks: Playbooks, shared: Path) -> Step:
    """The story's first run: the dirty machine up to the cluster. What came of it is left to the other worker."""
    with deps.lock(shared / "undisturbed.lock"):
        done = step(playbooks, *CLUSTER_STAGES)
        (shared / "undisturbed.json").write_text(json.dumps(asdict(done)))
    return done


@pytest.fixture(scope="session")
def undisturbed(shared: Path, request: pytest.FixtureRequest) -> Step:
    """A dirty machine up to the cluster in one run, for those that get there by another way; the machine has gone on."""
    with deps.lock(shared / "undisturbed.lock"):
        path = shared / "undisturbed.json"
        left = json.loads(path.read_text()) if path.exists() else None
    if left is None:
        made: Step = request.getfixturevalue("cluster_stages")
        return made
    tasks = [Task(**task) for task in left["run"].pop("tasks")]
    return Step(Run(tasks=tasks, **left.pop("run")), **left)


@pytest.fixture(scope="session")
def converged(playbooks: Playbooks, cluster_stages: Step) -> Step:
    """The whole site: its first stages, which are done, once more, and the others."""
    assert cluster_stages.run.status == 0, cluster_stages.run.explain()
    return step(playbooks, SITE, before=cluster_stages.after)


@pytest.fixture(scope="session")
def again(playbooks: Playbooks, converged: Step, mirror: Mirror) -> Step:
    assert converged.run.status == 0, converged.run.explain()
    asked = len(mirror.site.requests)
    done = step(playbooks, SITE, before=converged.after)
    return replace(done, fetched=mirror.site.requests[asked:])


@pytest.fixture(scope="session")
def snapshot(machine: Machine, again: Step, shared: Path, scratch: Path) -> Iterator[Disks]:
    """A copy of the converged machine's disks, for the other worker as well; the machine itself was off for a moment."""
    assert again.run.status == 0, again.run.explain()
    disks = machine.snapshot(scratch / "converged")
    offered = shared / "converged.json"
    offered.write_text(json.dumps([str(disks.root), str(disks.swap)]))
    yield disks
    with deps.lock(shared / "converged.lock"):
        offered.unlink()


@pytest.fixture(scope="session")
def converged_disks(shared: Path, scratch: Path, request: pytest.FixtureRequest) -> Disks:
    """The disks of a converged machine, whoever converged it."""
    offered = shared / "converged.json"
    with deps.lock(shared / "converged.lock"):
        if offered.exists():
            return Disks(*map(Path, json.loads(offered.read_text()))).copy_to(scratch / "converged")
        made: Disks = request.getfixturevalue("snapshot")
        return made
