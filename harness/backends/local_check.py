"""What would keep local replicas from running: looked at in milliseconds, before anything starts."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.machinery import PathFinder
from pathlib import Path

import psutil

from harness.backends.devices import check_cpus, nvml_names_our_processes, places
from harness.backends.workload_check import check_layer, check_server
from harness.cgroup import Cgroup
from harness.errors import Issue, IssueLevel, ReasonCode, counted
from harness.extras import absent, advice_on
from harness.metrics.nvml import GpuFacts, gpu_facts
from harness.sharing.modes import mode_of
from harness.spec import Device, Execution, ExperimentSpec, ScenarioKind, WorkloadSpec
from harness.spec.server import Protocol

# Peak resident host memory and GPU memory of one replica in fp32, GB: of batch 1 and, for training, of each further
# input. Rounded up from measured ones; those of training and diffusion on a GPU are reckoned from their parameters.
NEEDS_GB = {
    "resnet50": ((1.2, 0.0), (1.6, 0.0)),
    "distilbert": ((1.2, 0.0), (1.7, 0.0)),
    "whisper": ((1.6, 0.0), (1.9, 0.0)),
    "diffusion": ((1.5, 0.03), (2.0, 0.03)),
    "notebook": ((1.2, 0.0), (1.6, 0.0)),
    "mnist": ((1.0, 0.0), (1.2, 0.0)),
    "mnist-training": ((1.1, 0.002), (1.4, 0.005)),
    "resnet50-training": ((1.3, 0.003), (2.0, 0.004)),
    "bert-training": ((1.9, 0.02), (2.8, 0.06)),
    "data-parallel-training": ((2.2, 0.004), (2.8, 0.01)),
}
HOSTILE_GB = (1.6, 0.0), (1.6, 0.0)
"""Of what is no model, on either; ``memory-hog`` takes what it finds, when all others have theirs."""
TINY_GB = 0.6
OWN_GB = 0.2
BUSY_SHARE = 0.5


def check_machine(experiments: Sequence[ExperimentSpec]) -> list[Issue]:
    """What is found of the whole list; equal issues are said once."""
    gpus, why_none = gpu_facts()
    issues: list[Issue] = []
    if gpus and why_none:
        issues.append(
            Issue(IssueLevel.WARNING, "gpu", f"{why_none}. The others are used.", "Reset it (nvidia-smi -r).")
        )
    for experiment in experiments:
        issues += mode_of(experiment.sharing).check(experiment, gpus, why_none)
        issues += _check_memory(experiment, gpus)
        issues += check_layer(experiment)
        issues += check_cpus(experiment, gpus)
    # Each workload once: one that runs already is connected to.
    workloads = {it.model_dump_json(): it for experiment in experiments for it, _ in _workloads(experiment)}
    for workload in workloads.values():
        issues += _check_workload(workload, gpus, why_none)
    return [*dict.fromkeys(issues), *_check_load()]


def _workloads(experiment: ExperimentSpec) -> list[tuple[WorkloadSpec, int]]:
    """Everything that runs at once, with its replicas: the measured workload first."""
    beside = [(neighbour.workload, neighbour.replicas) for neighbour in experiment.neighbours]
    return [(experiment.workload, experiment.replicas), *beside]


def _check_workload(workload: WorkloadSpec, gpus: Sequence[GpuFacts], why_none: str) -> Iterator[Issue]:
    yield from _check_device(workload, gpus, why_none)
    whose = f"the workload {workload.family}"
    for module in absent(*_modules(workload)):
        message = f"{whose} needs {module}, which is not installed."
        yield Issue(IssueLevel.ERROR, "packages", message, f"Install it: {advice_on(module)}")
    if workload.factory is not None and not _importable(module := workload.factory.partition(":")[0]):
        message = f"{whose} is {workload.factory}, and {Path.cwd()} finds no module {module}."
        advice = "Start the harness in the folder that holds it, or set PYTHONPATH."
        yield Issue(IssueLevel.ERROR, "factory", message, advice)
    if workload.checkpoint is not None and not Path(workload.checkpoint).exists():
        message = f"{whose} loads {workload.checkpoint}, and there is nothing there."
        advice = "Give the path of a local file or folder, from where the harness is started."
        yield Issue(IssueLevel.ERROR, "checkpoint", message, advice)
    if workload.server:
        yield from check_server(workload.family, workload.server)


def _modules(workload: WorkloadSpec) -> list[str]:
    """What the replica imports and the base installation leaves out."""
    needs = [] if workload.own else ["torch", "safetensors"]
    if workload.server is not None and workload.server.protocol is Protocol.OIP_GRPC:
        needs.append("grpc")
    if workload.scenario is not None:
        needs += ["fastapi", "uvicorn"] if workload.scenario.kind is ScenarioKind.HTTP else ["mlperf_loadgen"]
    return needs


def _check_device(workload: WorkloadSpec, gpus: Sequence[GpuFacts], why_none: str) -> Iterator[Issue]:
    if gpus and workload.server and workload.device is Device.CUDA and not nvml_names_our_processes():
        message = (
            f"whether the server of the workload {workload.family} is on the GPU will not be checked: this is a container "
            "that numbers its processes by itself."
        )
        advice = "Share the host's process ids with it (docker run --pid=host)."
        yield Issue(IssueLevel.WARNING, "gpu", message, advice)
    wishes = {
        "device cuda": workload.device is Device.CUDA,
        "execution cuda-graph": workload.execution is Execution.CUDA_GRAPH,
        "a stream_priority": workload.stream_priority is not None,
    }
    wish = next((name for name, wished in wishes.items() if wished), "")
    if wish and not gpus:
        message = f"the workload {workload.family} asks for {wish}, and there is no GPU here ({why_none})."
        advice = (
            "Install NVIDIA's driver until nvidia-smi lists the GPU, or set device: cpu and execution: eager, without a "
            "stream_priority."
        )
        yield Issue(IssueLevel.ERROR, "gpu", message, advice)


def _check_memory(experiment: ExperimentSpec, gpus: Sequence[GpuFacts]) -> list[Issue]:
    free_bytes, left_bytes = psutil.virtual_memory().available, Cgroup().memory_free_bytes()
    what = "memory"
    if left_bytes is not None and left_bytes < free_bytes:
        free_bytes, what = left_bytes, "memory below the cgroup's limit"
    # Of a replica on a GPU the batch lies there.
    batchless = [
        (
            workload.model_copy(update={"batch_size": 1}) if gpus and workload.device is not Device.CPU else workload,
            count,
        )
        for workload, count in _workloads(experiment)
    ]
    issues = _too_little(batchless, what, free_bytes / 1e9, on_gpu=False)
    for gpu, workloads in _by_gpu(experiment, gpus):
        if gpu.free_bytes is not None:
            issues += _too_little(workloads, "GPU memory", gpu.free_bytes / 1e9, on_gpu=True)
    return issues


def _by_gpu(
    experiment: ExperimentSpec, gpus: Sequence[GpuFacts]
) -> Iterator[tuple[GpuFacts, list[tuple[WorkloadSpec, int]]]]:
    """Each GPU with the built-in workloads on it and their replicas there, as ``device_environment`` deals them out."""
    dealt = places(experiment, gpus)
    here: dict[str, list[tuple[WorkloadSpec, int]]] = {gpu.uuid: [] for gpu in dealt}
    position = 0
    for workload, replicas in _workloads(experiment):
        taken = Counter(dealt[place % len(dealt)].uuid for place in range(position, position + replicas) if dealt)
        position += replicas
        if workload.device is not Device.CPU and not workload.own:
            for uuid, count in taken.items():
                here[uuid].append((workload, count))
    return ((gpu, here[gpu.uuid]) for gpu in gpus if here.get(gpu.uuid))


def _gigabytes(workload: WorkloadSpec, *, on_gpu: bool) -> float:
    if workload.memory_gb is not None:
        return workload.memory_gb
    if workload.own:
        return OWN_GB
    if workload.options.get("model_size") == "tiny":
        return TINY_GB * workload.processes_per_replica
    first_gb, further_gb = NEEDS_GB.get(workload.target, HOSTILE_GB)[on_gpu]
    return first_gb + further_gb * (workload.batch_size - 1)


def _needing(workload: WorkloadSpec) -> str:
    """Name of what needs the memory: the workload of the file, where each of its settings and loads needs as much."""
    return workload.family if workload.own or workload.memory_gb is not None else workload.name


def _too_little(
    workloads: Sequence[tuple[WorkloadSpec, int]], what: str, free_gb: float, *, on_gpu: bool
) -> list[Issue]:
    each_gb = [_gigabytes(workload, on_gpu=on_gpu) for workload, _ in workloads]
    needed_gb = sum(gb * replicas for gb, (_, replicas) in zip(each_gb, workloads, strict=True))
    if needed_gb <= free_gb:
        return []
    who = " and ".join(f"{counted(replicas, 'replica')} of {_needing(workload)}" for workload, replicas in workloads)
    need = "needs" if sum(replicas for _, replicas in workloads) == 1 else "need"
    per_replica = " and ".join(f"{gb:g}" for gb in each_gb)
    message = f"{who} {need} about {needed_gb:.1f} GB of {what} ({per_replica} GB each), and {free_gb:.1f} GB are free."
    advice = "Use fewer replicas, end other programs, or set memory_gb when you know better."
    # One batch of several may be tried: on a GPU, what does not fit ends by itself and harms nobody.
    guessed = (it for it, _ in workloads if it.variant_of is not None and it.memory_gb is None)
    if on_gpu and any(it.batch_size > 1 for it in guessed):
        return [Issue(IssueLevel.WARNING, what, f"{message} That is an estimate, and it is tried.", advice)]
    return [Issue(IssueLevel.ERROR, what if on_gpu else "memory", message, advice, ReasonCode.OUT_OF_MEMORY)]


def _importable(module: str) -> bool:
    """Whether the top package is there; the rest would need an import, which a replica does."""
    top = module.partition(".")[0]
    if PathFinder.find_spec(top, [str(Path.cwd()), *sys.path]) is not None:
        return True
    try:
        return importlib.util.find_spec(top) is not None
    except (ImportError, ValueError):
        return False


def _check_load() -> Iterator[Issue]:
    """Whether the CPUs are the harness's to use, and nobody else's."""
    usable, quota, load_1min = len(os.sched_getaffinity(0)), Cgroup().limits().cpus, os.getloadavg()[0]
    if quota is not None and quota < usable:
        message = f"the cgroup's quota gives {quota:g} of {usable} CPUs: what uses more is throttled."
        yield Issue(IssueLevel.WARNING, "cpus", message, "Raise the quota, for numbers of the whole machine.")
    if load_1min > BUSY_SHARE * usable:
        message = f"other work runs here (load {load_1min:.1f} on {usable} CPUs) and will be measured with yours."
        yield Issue(IssueLevel.WARNING, "load", message, "Wait until it is done, for numbers to be compared.")
