"""What the machine and the software of results were: what makes two unlike, and which replica ran where."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

from harness.errors import UnlikeResultsError, counted
from harness.results.manifest import Manifest
from harness.sharing.modes import mode_of
from harness.spec import WorkloadSpec

_GIB = 2**30
_SHORT = 12
"""Characters of a GPU's UUID that people tell it by: ``GPU-1a2b3c4d``."""


def _each(values: Iterable[object]) -> str:
    return ", ".join(sorted({str(value or "unknown") for value in values})) or "none"


def _limit(key: str, shown: Callable[[float], str], manifest: Manifest) -> str:
    """What the control groups let the replicas have, as each says, else what they let the harness have.

    "none" without a limit, and where it is not below what the machine has.
    """
    replicas = [replica.get("host") or {} for replica in manifest.replicas]
    hosts = [host for host in replicas if "limits" in host] or [manifest.provenance.host.model_dump()]
    limits = [(host["limits"].get(key), host.get(key) or math.inf) for host in hosts]
    return _each("none" if limit is None or limit >= whole else shown(limit) for limit, whole in limits)


def _memory(size_bytes: int | None) -> str:
    return "unknown" if size_bytes is None else f"{round(size_bytes / _GIB)} GiB"


def _torch(manifest: Manifest) -> str:
    """As the replicas said; what the harness itself has installed need not be what they ran on."""
    said = [replica["torch"] for replica in manifest.replicas if replica.get("torch")]
    return _each(said or [manifest.provenance.software.packages.get("torch")])


def gpu_names(manifest: Manifest) -> str:
    """Models of the GPUs, each with its number where there are several: ``2 x NVIDIA H200``."""
    numbers = Counter(gpu.name for gpu in manifest.gpus)
    return ", ".join(name if number == 1 else f"{number} x {name}" for name, number in numbers.items()) or "none"


def reserved(manifest: Manifest) -> str:
    """What the container of each replica had reserved on its node, and was limited to: ``Burstable: cpu 500m reserved``."""
    return _each(map(_reserved, manifest.replicas)) if manifest.replicas else "unknown"


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


def part_of_gpu(manifest: Manifest) -> str:
    """SMs that each replica saw, e.g. ``14 of 132 SMs (10.6%)``, the whole where its driver told; empty: none says."""
    return ", ".join(sorted({_sms(replica) for replica in manifest.replicas if replica.get("multiprocessors")}))


def _sms(replica: Mapping[str, Any]) -> str:
    sms, whole = replica["multiprocessors"], (replica.get("gpu") or {}).get("multiprocessors")
    return f"{sms} of {whole} SMs ({sms / whole:.1%})" if whole else f"{sms} SMs"


def _parts(manifest: Manifest) -> dict[str, str]:
    """What of its GPU each replica had, whatever its cell is called; what nobody says is left out."""
    cell, replicas = manifest.experiment.cell, manifest.replicas
    limits = {f"{key} {text}" for replica in replicas for key, text in (replica.get("devices") or {}).items()}
    sms = {replica["multiprocessors"] for replica in replicas if replica.get("multiprocessors")}
    limiting = replicas if mode_of(manifest.experiment.sharing).concurrent and not sms else []
    facts = {
        "SMs": ", ".join(map(str, sorted(sms))),
        "slices of each GPU": ", ".join(
            sorted({str(replica["gpu_slices"]) for replica in limiting if replica.get("gpu_slices")})
        ),
        "limits of devices": ", ".join(sorted(limits)) or "none",
    }
    title = ", ".join(filter(None, (f"{cell.workload.name} with {cell.replicas}", cell.mode, cell.condition_name)))
    return {f"{name} of each replica ({title})": value for name, value in facts.items() if value}


MACHINE: dict[str, Callable[[Manifest], str]] = {
    "GPU": gpu_names,
    "GPU driver": lambda manifest: _each(gpu.driver for gpu in manifest.gpus),
    "GPU power limit": lambda manifest: _each(
        gpu.power_limit_w and f"{gpu.power_limit_w:g} W" for gpu in manifest.gpus
    ),
    "GPU clock": lambda manifest: _each(
        gpu.clock_sm_max_mhz and f"{gpu.clock_sm_max_mhz:g} MHz" for gpu in manifest.gpus
    ),
    "CPU": lambda manifest: manifest.provenance.host.cpu_model,
    "CPUs": lambda manifest: str(manifest.provenance.host.cpus),
    "memory": lambda manifest: _memory(manifest.provenance.host.memory_bytes),
    "CPU limit": partial(_limit, "cpus", "{:g} CPUs".format),
    "memory limit": partial(_limit, "memory_bytes", lambda size_bytes: f"{size_bytes / 1e9:.3g} GB"),
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

_NOT_EVERYWHERE = ("GPU power limit", "GPU clock")

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
    "options",
)


def refuse_unlike(manifests: Iterable[Manifest]) -> None:
    """Raise UnlikeResultsError when the machines differ in what explains a difference in the figures."""
    if unlike := _unlike(_refused(manifest) for manifest in manifests):
        raise UnlikeResultsError(
            f"These results come from unlike machines: {' '.join(unlike)}",
            advice="A difference between them would be the machines' as much as anything else's. "
            "To compare them anyway: --unlike",
        )


def differences(manifests: Iterable[Manifest]) -> list[str]:
    """Everything that is not the same everywhere, one sentence each, the machine first."""
    every = list(manifests)
    return [
        *_unlike(
            _facts({**MACHINE, **SURROUNDINGS}, manifest)
            | _parts(manifest)
            | {"start of replicas": manifest.experiment.timing.start}
            for manifest in every
        ),
        *_unlike(_settings(manifest.experiment.workload) for manifest in every),
    ]


def unlike_parts(manifests: Iterable[Manifest]) -> list[str]:
    """Where runs of one configuration had different parts of a GPU, one sentence each."""
    return _unlike(map(_parts, manifests))


def _refused(manifest: Manifest) -> dict[str, str]:
    """The facts that have to be the same; what pods do not always see is said alone where they do not."""
    machine = _facts(MACHINE, manifest) | _parts(manifest)
    return {name: value for name, value in machine.items() if value != "unknown" or name not in _NOT_EVERYWHERE}


def _facts(named: Mapping[str, Callable[[Manifest], str]], manifest: Manifest) -> dict[str, str]:
    return {name: fact(manifest) for name, fact in named.items()}


def _settings(workload: WorkloadSpec) -> dict[str, str]:
    return {f"{workload.name}'s {name}": str(getattr(workload, name)) for name in _WORKLOAD}


def _unlike(all_facts: Iterable[Mapping[str, str]]) -> list[str]:
    values: dict[str, dict[str, None]] = {}  # in the order of the arms
    for facts in all_facts:
        for name, value in facts.items():
            values.setdefault(name, {})[value] = None
    return [f"{name}: {' against '.join(seen)}." for name, seen in values.items() if len(seen) > 1]


def environment(manifests: Iterable[Manifest]) -> dict[str, str]:
    """What the machine and the software were, by what it is called in comparisons; all that occur."""
    every = list(manifests)
    return {name: _each(map(fact, every)) for name, fact in {**MACHINE, **SURROUNDINGS}.items()}


class Place(NamedTuple):
    """A GPU of a node; empty where the replica does not say: a CPU, or this machine."""

    node: str
    gpu: str


def places(manifest: Manifest) -> dict[Place, list[int]]:
    """Each place with its replicas, in the order of the replicas; empty where none says where it is. One that spans two is in both."""
    places: dict[Place, list[int]] = {}
    for index, replica in enumerate(manifest.replicas):
        first, second = replica.get("gpu_uuid") or replica.get("device_uuid") or "", replica.get("second_device_uuid")
        for gpu in filter(None, (first, second)) if second else (first,):
            places.setdefault(Place(str(replica.get("node") or ""), str(gpu)), []).append(index)
    return places if any(place != Place("", "") for place in places) else {}


def places_in_words(manifest: Manifest) -> str:
    """E.g. ``n1 GPU-1a2b3c4d: replicas 0, 2; n2 GPU-5e6f7a8b: replica 1``; empty where nobody says."""
    return "; ".join(
        f"{' '.join(filter(None, (place.node, place.gpu[:_SHORT])))}: replica{'s' if len(those) > 1 else ''} "
        f"{', '.join(map(str, those))}"
        for place, those in places(manifest).items()
    )


def spread(manifests: Iterable[Manifest]) -> str:
    """How many replicas each place had: ``4 + 4 on 2 GPUs of 2 nodes``; each way once."""
    return " or ".join(dict.fromkeys(filter(None, (_spread(places(manifest)) for manifest in manifests))))


def _spread(places: dict[Place, list[int]]) -> str:
    counts = " + ".join(str(len(those)) for those in sorted(places.values(), key=len, reverse=True))
    gpus, nodes = len({place for place in places if place.gpu}), len({place.node for place in places} - {""})
    where = [counted(count, what) for count, what in ((gpus, "GPU"), (nodes, "node")) if count]
    return f"{counts} on {' of '.join(where)}" if where else ""
