"""The sharing modes, each by its name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness.errors import Issue, counted
from harness.metrics.nvml import GpuFacts
from harness.sharing.mode import SharingMode, gpu_config, refusal
from harness.sharing.mps import Mps
from harness.spec import ExperimentSpec, Sharing


class Exclusive(SharingMode):
    """Nobody shares: each replica has a GPU."""

    sharing = Sharing.EXCLUSIVE
    meaning = "each replica has a GPU of its own"
    switch_command = "harness sharing exclusive"
    own_gpu = True
    strategy_label = "none"


class TimeSlicing(SharingMode):
    """The driver gives the GPU to one process after another."""

    sharing = Sharing.TIME_SLICING
    meaning = "replicas take turns on a GPU"
    switch_command = "harness sharing time-slicing --replicas N"
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


class Mig(SharingMode):
    """Each replica has one instance of a divided GPU; the instances exist already."""

    sharing = Sharing.MIG
    meaning = "each replica has a fixed part of a GPU to itself"
    switch_command = "harness sharing exclusive --mig PROFILES"
    own_instance = True

    def check_gpus(self, experiment: ExperimentSpec, gpus: Sequence[GpuFacts]) -> Iterator[Issue]:
        """Whether there are as many instances as replicas."""
        if not any(gpu.mig for gpu in gpus):
            message = f"sharing mig needs a GPU with MIG on, and {gpus[0].name} has it off or has none."
            yield refusal(message, "nvidia-smi -mig 1")
            return
        needed, instances = experiment.cell.processes, sum(len(gpu.mig_uuids) for gpu in gpus)
        if instances < needed:
            message = f"{counted(needed, 'replica', 'need')} a MIG instance each, and the machine has {instances}."
            yield refusal(message, "Create them (nvidia-smi mig -cgi PROFILE -C), or take fewer replicas.")


class AsFound(SharingMode):
    """Servers that ran before the harness, however they share."""

    sharing = Sharing.AS_FOUND
    meaning = "servers that ran already, however they share"
    needs_gpu = False

    def check(self, experiment: ExperimentSpec, gpus: Sequence[GpuFacts], why_none: str) -> Iterator[Issue]:  # noqa: ARG002
        """Nothing: nothing is expected."""
        yield from ()


WHOLE, ANYWHERE, DIVIDED, FOUND = Exclusive(), TimeSlicing(), Mig(), AsFound()
"""The modes of GPUs that nobody shares, of a machine that may have no GPU, of divided GPUs, and of what the harness did not start."""
MODES: Mapping[Sharing, SharingMode] = {mode.sharing: mode for mode in (WHOLE, ANYWHERE, Mps(), DIVIDED, FOUND)}

LENT = [mode for mode in MODES.values() if mode.own_gpu or mode.plugin_section]
"""Those that the role of the device plugin sets up; it divides GPUs into instances beside them."""


def mode_of(sharing: Sharing | str) -> SharingMode:
    """The mode of this name. Raises ValueError for a name that no mode has."""
    return MODES[Sharing(sharing)]
