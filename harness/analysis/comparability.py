"""Whether results were measured alike: on the same kind of machine, or not to be held against each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from harness.errors import UnlikeResultsError
from harness.results.manifest import Manifest

_GIB = 2**30


def _torch(manifest: Manifest) -> str:
    """As the replicas said; what the harness itself has installed need not be what they ran on."""
    said = {str(replica["torch"]) for replica in manifest.replicas if replica.get("torch")}
    return _each(said) if said else manifest.provenance.software.packages.get("torch", "unknown")


def _each(values: set[str] | set[str | None]) -> str:
    return ", ".join(sorted(value or "unknown" for value in values)) or "none"


def _with_unit(value: float | None, unit: str) -> str | None:
    return None if value is None else f"{value:g} {unit}"


def _memory(size_bytes: int | None) -> str:
    return "unknown" if size_bytes is None else f"{round(size_bytes / _GIB)} GiB"


def gpu_names(manifest: Manifest) -> str:
    """Models of the GPUs, each with its number where there are several: ``2 x NVIDIA H200``."""
    numbers = Counter(gpu.name for gpu in manifest.gpus)
    return ", ".join(name if number == 1 else f"{number} x {name}" for name, number in numbers.items()) or "none"


def reserved(manifest: Manifest) -> str:
    """What the container of each replica had reserved on its node, and was limited to: ``Burstable: cpu 500m reserved``."""
    return _each({_reserved(replica) for replica in manifest.replicas}) if manifest.replicas else "unknown"


def _reserved(replica: Mapping[str, Any]) -> str:
    if "pod" not in replica:
        return "none"
    if "reserve" not in replica:
        return "unknown"  # results of before pods said so
    parts = [
        f"{', '.join(f'{name} {value}' for name, value in replica[kind].items())} {word}"
        for kind, word in (("reserve", "reserved"), ("limit", "at most"))
        if replica[kind]
    ]
    return f"{replica.get('qos_class') or 'class unknown'}: {'; '.join(parts) or 'nothing reserved'}"


def limits(manifest: Manifest) -> dict[str, str]:
    """What the control groups let the replicas have, as each says, else what they let the harness have; "none" where nothing is limited."""
    hosts = [replica.get("host") or {} for replica in manifest.replicas]
    own = [host["limits"] for host in hosts if "limits" in host] or [manifest.provenance.host.limits]

    def shown(key: str, in_words: Callable[[float], str]) -> str:
        return _each({"none" if limit.get(key) is None else in_words(limit[key] or 0.0) for limit in own})

    return {
        "CPU limit": shown("cpus", "{:g} CPUs".format),
        "memory limit": shown("memory_bytes", lambda size_bytes: f"{size_bytes / 1e9:.3g} GB"),
    }


MACHINE: dict[str, Callable[[Manifest], str]] = {
    "GPU": gpu_names,
    "GPU driver": lambda manifest: _each({gpu.driver for gpu in manifest.gpus}),
    "GPU power limit": lambda manifest: _each({_with_unit(gpu.power_limit_w, "W") for gpu in manifest.gpus}),
    "GPU clock": lambda manifest: _each({_with_unit(gpu.clock_sm_max_mhz, "MHz") for gpu in manifest.gpus}),
    "CPU": lambda manifest: manifest.provenance.host.cpu_model,
    "CPUs": lambda manifest: str(manifest.provenance.host.cpus),
    "memory": lambda manifest: _memory(manifest.provenance.host.memory_bytes),
    "CPU limit": lambda manifest: limits(manifest)["CPU limit"],
    "memory limit": lambda manifest: limits(manifest)["memory limit"],
    "torch": _torch,
}
"""What makes two machines unlike: a difference here explains one in the figures."""

SURROUNDINGS: dict[str, Callable[[Manifest], str]] = {
    "kernel": lambda manifest: manifest.provenance.host.kernel,
    "Python": lambda manifest: manifest.provenance.software.python,
    "harness": lambda manifest: manifest.provenance.software.git_commit or manifest.provenance.software.harness,
    "GPU device": lambda manifest: ", ".join(gpu.uuid for gpu in manifest.gpus) or "none",
    "pods": reserved,
    "recording": lambda manifest: f"{manifest.experiment.timing.record_s:g} s recorded",
}
"""What is said, and is no reason to refuse."""

_WORKLOAD = (
    "target",
    "batch_size",
    "precision",
    "execution",
    "device",
    "stream_priority",
    "cpus_per_replica",
    "shared_cpus",
    "threads",
    "inference_sleep_s",
    "checkpoint",
)


def refuse_unlike(manifests: Iterable[Manifest]) -> None:
    """Raise UnlikeResultsError when the machines differ in what explains a difference in the figures."""
    differences = _differences(MACHINE, list(manifests))
    if differences:
        raise UnlikeResultsError(
            f"These results come from unlike machines: {' '.join(differences)}",
            advice="A difference between them would be the machines' as much as anything else's. "
            "To compare them anyway: --unlike",
        )


def differences(manifests: Iterable[Manifest]) -> list[str]:
    """Everything that is not the same everywhere, one sentence each, the machine first."""
    every = list(manifests)
    return [*_differences(MACHINE, every), *_differences(SURROUNDINGS, every), *_workload_differences(every)]


def environment(manifests: Iterable[Manifest]) -> dict[str, str]:
    """What the machine and the software were, by what it is called in comparisons; all that occur."""
    every = list(manifests)
    return {name: _each({fact(manifest) for manifest in every}) for name, fact in {**MACHINE, **SURROUNDINGS}.items()}


def _differences(facts: dict[str, Callable[[Manifest], str]], manifests: list[Manifest]) -> list[str]:
    values = {name: list(dict.fromkeys(map(fact, manifests))) for name, fact in facts.items()}  # as the arms stand
    return [f"{name}: {' against '.join(seen)}." for name, seen in values.items() if len(seen) > 1]


def _workload_differences(manifests: list[Manifest]) -> list[str]:
    values: dict[str, dict[str, None]] = {}
    for manifest in manifests:
        workload = manifest.experiment.workload
        settings = {name: getattr(workload, name) for name in _WORKLOAD} | {"options": workload.options}
        for name, value in settings.items():
            values.setdefault(f"{workload.name}'s {name}", {})[str(value)] = None
    return [f"{name}: {' against '.join(seen)}." for name, seen in values.items() if len(seen) > 1]
