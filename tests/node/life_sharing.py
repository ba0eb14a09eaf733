"""The steps of a node's life in which two nodes share their GPUs, each in its own way: by NVIDIA's programs, over GPUs that are none."""

import json
from dataclasses import dataclass
from typing import Any

from tests.node import judge
from tests.node.life import AREAS, NODE, Life, LifeError, SkippedError, done, unchanged
from tests.node.machine import gpu
from tests.node.machine.emulated import Emulated
from tests.node.play import WORKER
from tests.node.story import CLUSTER_STAGES

STAGES = (*CLUSTER_STAGES, "playbooks/gpu.yml")
MPS_MEMORY = "/run/nvidia/mps/shm"


@dataclass(frozen=True)
class Way:
    """How a node shares its GPUs."""

    mode: str
    replicas: int

    def variables(self) -> dict[str, Any]:
        """What stands beside the machine in the inventory."""
        return {"device_plugin_sharing": self.mode, "device_plugin_replicas": self.replicas}


FIRST = {NODE: Way("time-slicing", 4), WORKER: Way("mps", 2)}
SWITCHED = Way("mps", 3)


def check_folder(life: Life) -> None:
    """Skip where the folder has no GPUs for this."""
    if lacks := life.mirror.lacks_for_gpus():
        raise SkippedError(f"the folder lacks {', '.join(lacks)}")


def two_sharing(life: Life) -> str:
    """Two nodes get GPUs, and each shares them in its own way."""
    check_folder(life)
    assert life.mirror.nvml is not None
    for machine in life.machines.values():
        gpu.lay(machine, life.mirror.nvml)
    life.variables["node_gpu"] = "auto"
    life.ways = {name: way.variables() for name, way in FIRST.items()}
    done(life.playbooks().run(*STAGES))
    said = check_ways(life, FIRST)
    check_mounted(life.machines[WORKER])
    return said


def two_sharing_again(life: Life) -> str:
    """The same once more."""
    check_folder(life)
    return unchanged(life.playbooks().run(*STAGES))


def switch_one(life: Life) -> str:
    """One of them shares otherwise; the other one is left alone."""
    check_folder(life)
    before = plugin_pods(life, WORKER)
    words = (f"{NODE}={SWITCHED.mode}", "--replicas", str(SWITCHED.replicas))
    switched = judge.harness(life.playbooks(), "node", "sharing", *words)
    if switched.returncode != 0:
        raise LifeError(f"not switched: {switched.stdout[-1500:]}{switched.stderr[-1500:]}")
    life.ways[NODE] = SWITCHED.variables()
    said = check_ways(life, FIRST | {NODE: SWITCHED})
    if (after := plugin_pods(life, WORKER)) != before:
        raise LifeError(f"the other node was not left alone: {before} became {after}")
    check_mounted(life.machine)
    return f"{said}; the other one's pods are the same"


def check_ways(life: Life, ways: dict[str, Way]) -> str:
    """Every node shares its GPUs in its way: slices, compute mode, and the project's own verdict."""
    said = []
    for name, way in ways.items():
        gpus = len(gpu.read(life.mirror.nvml)) if life.mirror.nvml else 0
        slices = int(life.node(name)["status"]["allocatable"].get("nvidia.com/gpu", 0))
        modes = compute_modes(life.machines[name])
        wanted = {"Exclusive_Process" if way.mode == "mps" else "Default"}
        if (slices, modes) != (gpus * way.replicas, wanted):
            raise LifeError(f"{name}, {way}: {slices} slices of {gpus} GPUs, compute modes {modes}")
        said.append(f"{name} {slices} slices ({way.mode}, {way.replicas})")
    verdicts = judge.verdicts(life.playbooks(), wait_s=300, only=(*AREAS, "nvidia", "gpu"))
    if bad := {name: verdict.output for name, verdict in verdicts.items() if verdict.status or verdict.failed}:
        raise LifeError(f"the verdict is not well: {bad}")
    return f"{', '.join(said)}, every check passes"


def plugin_pods(life: Life, node: str) -> list[tuple[str, str, int]]:
    """Name, identity and restarts of the pods that lend a node's GPUs."""
    selector = "app.kubernetes.io/name in (device-plugin,mps-control-daemon)"
    listed = json.loads(
        life.kubectl(f"-n gpu-system get pods -l '{selector}' --field-selector spec.nodeName={node} -o json")
    )
    return sorted(
        (
            pod["metadata"]["name"],
            pod["metadata"]["uid"],
            sum(status["restartCount"] for status in pod["status"]["containerStatuses"]),
        )
        for pod in listed["items"]
    )


def compute_modes(machine: Emulated) -> set[str]:
    """The compute modes of a machine's GPUs."""
    return set(machine.output("nvidia-smi --query-gpu=compute_mode --format=csv,noheader").splitlines())


def is_mounted(machine: Emulated) -> bool:
    """Whether an MPS server's memory is mounted on the machine itself, by its pod."""
    seen = machine.ssh(f"findmnt --raw --noheadings --output FSTYPE {MPS_MEMORY}", check=False).stdout
    return seen.strip() == "tmpfs"


def check_mounted(machine: Emulated) -> None:
    """Say that it is not."""
    if not is_mounted(machine):
        raise LifeError(f"{MPS_MEMORY} is not mounted")
