"""What would keep replicas from sharing the GPU in the way the campaign asks for."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence

from harness.backends.mps import CONTROL, foreign_daemons
from harness.errors import Finding, ReasonCode, Severity, counted
from harness.metrics.nvml import GpuFacts
from harness.spec import Device, ExperimentSpec
from harness.spec.sharing import FOUND

_CHECK = "sharing"


def check_sharing(experiment: ExperimentSpec, gpus: Sequence[GpuFacts], why_none: str) -> Iterator[Finding]:
    """Findings for one experiment; nothing of the GPU is changed, here or later."""
    sharing, used = experiment.sharing, gpus[: experiment.gpus]
    if sharing is FOUND:
        return
    if not gpus:
        if sharing.traits.needs_gpu:
            yield _error(
                f"sharing {sharing.value} needs a GPU, and there is none here ({why_none}).",
                "Use time-slicing; where there is an NVIDIA GPU, install its driver until nvidia-smi lists it.",
            )
        return
    if experiment.workload.device is Device.CPU:
        if sharing.traits.needs_gpu:
            message = f"{experiment.workload.name} runs on the CPU, where sharing {sharing.value} means nothing."
            yield _error(message, "Set device: auto or cuda.")
        return
    if len(gpus) < experiment.gpus:
        yield _error(
            f"the campaign uses {counted(experiment.gpus, 'GPU')}, and the machine has {len(gpus)}.", "Lower `gpus`."
        )
    yield from _compute_mode(experiment, used)
    yield from _rivals(experiment, used)
    if sharing.traits.daemon:
        yield from _mps(experiment, used)
    if sharing.traits.instances:
        yield from _mig(experiment, gpus)
    elif any(gpu.mig for gpu in used):
        message = f"the GPU is divided (MIG is on), and sharing {sharing.value} would use one instance of it."
        yield _error(message, "Turn MIG off (nvidia-smi -mig 0), or use sharing mig.")


def _compute_mode(experiment: ExperimentSpec, gpus: Sequence[GpuFacts]) -> Iterator[Finding]:
    modes = {gpu.compute_mode for gpu in gpus}
    if "prohibited" in modes:
        yield _error("the GPU's compute mode is prohibited.", "Set it back: nvidia-smi -c DEFAULT")
    shared = experiment.sharing.traits.turns and experiment.cell.processes > len(gpus)
    if "exclusive-process" in modes and shared:
        message = "the GPU's compute mode is exclusive-process: it takes one process, and time-slicing needs several."
        yield _error(message, "Set it back: nvidia-smi -c DEFAULT")


def _rivals(experiment: ExperimentSpec, gpus: Sequence[GpuFacts]) -> Iterator[Finding]:
    pids = sorted({pid for gpu in gpus for pid in gpu.processes})
    if not pids:
        return
    message = f"other processes compute on the GPU: {', '.join(map(str, pids))}."
    severity = Severity.ERROR if experiment.sharing.traits.own_gpu else Severity.WARNING
    yield Finding(severity, _CHECK, message, "End them, for numbers that mean what they say.")


def _mps(experiment: ExperimentSpec, gpus: Sequence[GpuFacts]) -> Iterator[Finding]:
    if shutil.which(CONTROL) is None:
        yield _error(f"there is no {CONTROL} on this machine.", "Install the driver's compute utilities.")
        return
    running = foreign_daemons([gpu.uuid for gpu in gpus])
    if running:
        message = (
            f"an MPS daemon runs already (process {running[0]}); its clients would share the GPU with ours unseen."
        )
        yield _error(message, "End it: echo quit | nvidia-cuda-mps-control")
    limits = experiment.mps
    if limits is None:
        return
    each = experiment.replicas_per_gpu
    percentage = limits.percentage(each)
    if percentage is not None and percentage * each > 100.5:
        message = f"{each} replicas of {percentage:g} % of the multiprocessors add up to {percentage * each:g} %: they overlap."
        yield Finding(
            Severity.WARNING, _CHECK, message, "Give each 1/N (`mps: {share: 1/N}`) for parts that do not overlap."
        )
    smallest_gb = min((gpu.total_bytes for gpu in gpus), default=0) / 1e9
    if limits.pinned_memory_gb is not None and limits.pinned_memory_gb * each > smallest_gb:
        message = f"{counted(each, 'replica')} of {limits.pinned_memory_gb:g} GB cannot fit into {smallest_gb:.1f} GB of GPU memory."
        advice = "Lower mps.pinned_memory_gb, or take fewer replicas."
        yield Finding(Severity.ERROR, _CHECK, message, advice, ReasonCode.OUT_OF_MEMORY)


def _mig(experiment: ExperimentSpec, gpus: Sequence[GpuFacts]) -> Iterator[Finding]:
    if not any(gpu.mig for gpu in gpus):
        yield _error(
            f"sharing mig needs a GPU with MIG on, and {gpus[0].name} has it off or has none.", "nvidia-smi -mig 1"
        )
        return
    instances = sum(len(gpu.mig_uuids) for gpu in gpus)
    if instances < experiment.cell.processes:
        message = f"{counted(experiment.cell.processes, 'replica', 'need')} a MIG instance each, and the machine has {instances}."
        yield _error(message, "Create them (nvidia-smi mig -cgi PROFILE -C), or take fewer replicas.")


def _error(message: str, advice: str) -> Finding:
    return Finding(Severity.ERROR, _CHECK, message, advice)
