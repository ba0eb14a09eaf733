"""One life of a node: its machines, what the playbooks are told of them, and how a step says that something was not as it should be."""

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.node import judge
from tests.node.machine.deps import Tools
from tests.node.machine.emulated import Bootable, Emulated
from tests.node.machine.errors import MachineError
from tests.node.machine.image import USER
from tests.node.mirror.real import RealMirror
from tests.node.play import WORKER, Playbooks, Run

NODE = "controlplane"
KUBECTL = "kubectl --kubeconfig /etc/kubernetes/admin.conf"
# The whole of the verdict but for what stands on the cluster, and for a GPU.
AREAS = (
    *("swap", "fstab", "kernel", "crio", "kubernetes", "housekeeping", "kubeconfig", "cluster"),
    *("runtime-class", "storage", "metrics-server"),
)
VARIABLES: dict[str, Any] = {
    "ansible_user": USER,
    "node_gpu": "absent",
    "preflight_disk_volumes_counted": False,
    "calico_network": "bridge",
    # An emulated processor: everything takes several times longer.
    **dict.fromkeys(("calico_timeout_s", "control_plane_timeout_s", "worker_timeout_s", "addons_timeout_s"), 900),
    "device_plugin_timeout_s": 900,
}
READY_WITHIN_S = 900.0


class LifeError(Exception):
    """A step did not come to what it should have; says what was seen instead."""


class SkippedError(Exception):
    """A step that this folder of packages has not everything for; says what it lacks."""


@dataclass
class Outcome:
    """What became of a step."""

    name: str
    seconds: float
    result: str
    well: bool


@dataclass
class Life:
    """The machines of one life, and what was seen of it.

    ways: how a node shares its GPUs, by its name: what the inventory says beside that machine alone.
    """

    tools: Tools
    bootable: Bootable
    mirror: RealMirror
    folder: Path
    machine: Emulated
    minors: list[str]
    variables: dict[str, Any] = field(default_factory=lambda: dict(VARIABLES))
    outcomes: list[Outcome] = field(default_factory=list)
    worker: Emulated | None = None
    ways: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def machines(self) -> dict[str, Emulated]:
        """Every machine by the name of its node."""
        return {NODE: self.machine} | ({WORKER: self.worker} if self.worker else {})

    def playbooks(self, **more: Any) -> Playbooks:
        """The playbooks with what holds for this life, and more."""
        variables = self.mirror.variables() | self.variables | more
        worker_variables = variables | self.ways.get(WORKER, {})
        variables |= self.ways.get(NODE, {})
        return Playbooks(self.machine, variables, worker=self.worker, worker_variables=worker_variables)

    def kubectl(self, arguments: str) -> str:
        """What kubectl prints on the control plane."""
        return self.machine.output(f"{KUBECTL} {arguments}")

    def node(self, name: str = NODE) -> dict[str, Any]:
        """A node as the API server has it."""
        item: dict[str, Any] = json.loads(self.kubectl(f"get node {name} -o json"))
        return item

    def wait_until_ready(self, boot_id: str) -> None:
        """Wait until the node of this boot is Ready."""
        deadline = time.monotonic() + READY_WITHIN_S
        seen: object = "nothing"
        while time.monotonic() < deadline:
            try:
                status = self.node()["status"]
                seen = [f"{condition['type']}={condition['status']}" for condition in status["conditions"]]
                if status["nodeInfo"]["bootID"] == boot_id and "Ready=True" in seen:
                    return
            except MachineError as error:
                seen = error
            time.sleep(1)
        raise LifeError(f"not Ready after {READY_WITHIN_S:.0f} s: {seen}")

    def wait_for_another(self, program: str, old: str) -> None:
        """Wait until a process of this program runs that is another, and the API server answers."""
        deadline = time.monotonic() + READY_WITHIN_S
        while time.monotonic() < deadline:
            pids = self.machine.ssh(f"pgrep -x {program}", check=False).stdout.split()
            answers = self.machine.ssh(f"{KUBECTL} get --raw /readyz", check=False).stdout == "ok"
            if pids and old not in pids and answers:
                return
            time.sleep(1)
        raise LifeError(f"no other {program} after {READY_WITHIN_S:.0f} s")

    def well(self) -> None:
        """The project's own verdict."""
        verdict = judge.verdict(self.playbooks(), wait_s=600, only=AREAS)
        if verdict.status or verdict.failed:
            raise LifeError(f"the verdict is not well: {verdict.output}")

    def back_s(self, began: float) -> float:
        """Seconds since then until the node of this boot was Ready; its verdict is well."""
        self.wait_until_ready(self.machine.boot_id())
        ready_s = time.monotonic() - began
        self.well()
        return ready_s


def done(run: Run) -> Run:
    """A run that has to have come to its end."""
    if run.status:
        raise LifeError(run.explain())
    return run


def unchanged(run: Run) -> str:
    """A run that has to have found nothing to do."""
    if done(run).counts["changed"]:
        raise LifeError(run.explain())
    return "0 changed"
