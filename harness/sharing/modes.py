"""The sharing modes, each by its name."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.errors import Issue, IssueLevel, counted
from harness.metrics.nvml import VISIBLE, GpuFacts
from harness.sharing.mode import Attribution, SharingMode, SharingSetup, ThisMachine, gpu_config, refusal
from harness.sharing.mps import Mps, MpsSetup
from harness.spec import ExperimentSpec, MpsLimits, Sharing
from harness.spec.sharing import SM_GROUP

_IN_REPLICA = "harness.replica.green_contexts"


class Exclusive(SharingMode):
    """Nobody shares: each replica has a GPU."""

    sharing = Sharing.EXCLUSIVE
    meaning = "each replica has a GPU of its own"
    switch_command = "harness node sharing exclusive"
    own_gpu = True
    strategy_label = "none"


class TimeSlicing(SharingMode):
    """The driver gives the GPU to one process after another."""

    sharing = Sharing.TIME_SLICING
    meaning = "replicas share a GPU in time slices"
    attribution = Attribution.REQUESTS
    switch_command = "harness node sharing time-slicing --replicas N"
    needs_gpu = False
    takes_turns = True
    plugin_section = "timeSlicing"
    strategy_label = "time-slicing"
    gke_strategy = "time-sharing"

    def check_gpus(self, experiment: ExperimentSpec, gpus: Sequence[GpuFacts]) -> Iterator[Issue]:
        """Also whether the GPUs take more than one process."""
        used = gpus[: experiment.gpus]
        if "exclusive-process" in {gpu.compute_mode for gpu in used} and experiment.cell.processes > len(used):
            message = (
                "the GPU's compute mode is exclusive-process: it takes one process, and time-slicing needs several."
            )
            yield refusal(message, "Set it back: nvidia-smi -c DEFAULT")
        yield from super().check_gpus(experiment, gpus)

    def claim_parameters(self, experiment: ExperimentSpec) -> dict[str, Any] | None:
        """The length of a turn, where the campaign sets it."""
        if experiment.time_slice is None:
            return None
        interval = experiment.time_slice.interval.capitalize()
        return gpu_config("TimeSlicing", timeSlicingConfig={"interval": interval})


class GreenContexts(SharingMode):
    """Each replica has multiprocessors of its own; processes run at the same time under MPS alone, and so do these."""

    sharing = Sharing.GREEN_CONTEXTS
    meaning = "each replica uses multiprocessors of its own, at the same time as the others"
    caution = "Under green-contexts a replica that crashes can end all others on its GPU."
    concurrent = own_multiprocessors = True

    def check_gpus(self, experiment: ExperimentSpec, gpus: Sequence[GpuFacts]) -> Iterator[Issue]:
        """Also whether the driver has a group for each replica, and of how many multiprocessors."""
        yield from MPS.check_gpus(experiment, gpus)
        for workload in (experiment.workload, *(neighbour.workload for neighbour in experiment.neighbours)):
            if workload.server or workload.processes_per_replica > 1:
                message = (
                    f"{workload.name} starts processes of its own, and only the replica's has the multiprocessors."
                )
                yield refusal(message, "Use sharing mps with `mps: {share: 1/N}`: its limit is for every process.")
        for gpu in gpus[: experiment.gpus]:
            yield _divided(gpu, experiment.replicas_per_gpu)

    def set_up(
        self,
        host: ThisMachine,
        *,
        gpus: Sequence[str],
        limits: MpsLimits | None,  # noqa: ARG002 - those of MPS would be of all multiprocessors
        replicas_per_gpu: int,
    ) -> SharingSetup:
        """A daemon for each GPU, and a group of its multiprocessors for each replica there."""
        return GreenContextsSetup(host, gpus, replicas_per_gpu)


class GreenContextsSetup(MpsSetup):
    """MPS without limits; each replica takes its group by itself."""

    def __init__(self, host: ThisMachine, gpus: Sequence[str], groups: int) -> None:
        super().__init__(host, gpus, {})
        self._groups, self._gpus = groups, len(gpus) or 1

    def environment(self, position: int) -> dict[str, str]:
        """What makes a replica a client of its GPU's daemon, and has it take the next group there."""
        group = {SM_GROUP: f"{position // self._gpus}/{self._groups}", "REPLICA_SHARING": f"{_IN_REPLICA}:join"}
        return {**super().environment(position), **group}


def _divided(gpu: GpuFacts, replicas: int) -> Issue:
    """How many multiprocessors each replica will have of a GPU, or why not."""
    sizes, why = _sizes(gpu.uuid, replicas)
    if why:
        return refusal(f"{gpu.name} cannot be divided into groups of multiprocessors: {why}.", "Use sharing mps.")
    whole, *groups = sizes
    if len(groups) < replicas:
        most = f"the driver divides the {whole} multiprocessors of {gpu.name} into {len(groups)} groups at most"
        return refusal(f"{most}, and {replicas} replicas are to have one each.", "Use fewer replicas.")
    part = f"each of {counted(replicas, 'replica')} has {groups[0]} of the {whole} multiprocessors of {gpu.name}"
    message = f"{part}, as the driver divides them; {whole - sum(groups)} are unused."
    return Issue(IssueLevel.WARNING, "sharing", message)


@functools.cache
def _sizes(uuid: str, groups: int) -> tuple[Sequence[int], str]:
    """Multiprocessors of a GPU, then of each group that its driver makes; or why it makes none."""
    paths = os.pathsep.join(filter(None, [str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": paths, **({VISIBLE: uuid} if uuid else {})}
    command = [sys.executable, "-m", _IN_REPLICA, str(groups)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        return (), (done.stderr.strip().splitlines() or [f"{_IN_REPLICA} ended with {done.returncode}"])[-1]
    return json.loads(done.stdout), ""


class Mig(SharingMode):
    """Each replica has one instance of a divided GPU; the instances exist already."""

    sharing = Sharing.MIG
    meaning = "each replica has a fixed part of a GPU to itself"
    switch_command = "harness node sharing exclusive --mig PROFILES"
    own_instance = True
    unattributed = "the driver counts them for the whole GPU, not for each MIG instance"

    def check_gpus(self, experiment: ExperimentSpec, gpus: Sequence[GpuFacts]) -> Iterator[Issue]:
        """Whether there are as many instances as replicas."""
        if not any(gpu.mig for gpu in gpus):
            message = f"sharing mig needs a GPU with MIG on, and {gpus[0].name} has it off or has none."
            yield refusal(message, "nvidia-smi -mig 1")
            return
        needed, instances = experiment.cell.processes, sum(len(gpu.mig_uuids) for gpu in gpus)
        if instances < needed:
            message = f"{counted(needed, 'replica', 'need')} a MIG instance each, and the machine has {instances}."
            yield refusal(message, "Create them (nvidia-smi mig -cgi PROFILE -C), or use fewer replicas.")


class AsFound(SharingMode):
    """Servers that ran before the harness, however they share."""

    sharing = Sharing.AS_FOUND
    meaning = "servers that ran already, however they share"
    needs_gpu = False
    unattributed = "how servers that ran already share the GPU is not known"

    def check(self, experiment: ExperimentSpec, gpus: Sequence[GpuFacts], why_none: str) -> Iterator[Issue]:  # noqa: ARG002
        """Nothing: nothing is expected."""
        yield from ()


WHOLE, ANYWHERE, MPS, DIVIDED, FOUND = Exclusive(), TimeSlicing(), Mps(), Mig(), AsFound()
"""The modes of GPUs that nobody shares, of a machine that may have no GPU, of MPS, of divided GPUs, and of what the harness did not start."""
MODES: Mapping[Sharing, SharingMode] = {
    mode.sharing: mode for mode in (WHOLE, ANYWHERE, MPS, GreenContexts(), DIVIDED, FOUND)
}

LENT = [mode for mode in MODES.values() if mode.own_gpu or mode.plugin_section]
"""Those that the role of the device plugin sets up; it divides GPUs into instances beside them."""


def mode_of(sharing: Sharing | str) -> SharingMode:
    """The mode of this name. Raises ValueError for a name that no mode has."""
    return MODES[Sharing(sharing)]
