"""What a node's status says: whether it can carry replicas, and what machine it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.backends.kubernetes.pods import Object, condition
from harness.results.manifest import Gpu, Host, Provenance, Software
from harness.spec.quantity import amount

PRESSURES = ("MemoryPressure", "DiskPressure", "PIDPressure")


def not_ready(node: Object) -> str:
    """Why the node is not ready, in its own words; empty when it is."""
    ready = condition(node, "Ready")
    if ready.get("status") == "True":
        return ""
    words = f"{ready.get('reason') or 'no condition Ready'}: {ready.get('message') or 'nobody says why'}"
    return f"node {node['metadata']['name']} is NotReady: {words}".rstrip(".")


def silent(node: Object) -> bool:
    """Whether it is called not ready because its kubelet has not reported, and not by its kubelet."""
    return condition(node, "Ready").get("status") == "Unknown"


def pressures(node: Object) -> dict[str, str]:
    """The pressures that the node is under: kind and its own message."""
    found = {kind: condition(node, kind) for kind in PRESSURES}
    return {kind: str(one.get("message") or "") for kind, one in found.items() if one.get("status") == "True"}


def withdrawn(node: Mapping[str, Any], resource: str) -> str:
    """How much less of an extended resource a node lends than it has; empty when it lends all."""
    status = node.get("status") or {}
    has, lends = (int((status.get(kind) or {}).get(resource, 0)) for kind in ("capacity", "allocatable"))
    if lends >= has:
        return ""
    return (
        f"node {node['metadata']['name']} lends {lends} of its {has} {resource}: "
        "the device plugin calls the others unhealthy, or is away"
    )


def provenance(nodes: Sequence[Object], statuses: Sequence[Mapping[str, Any]], software: Software) -> Provenance:
    """All nodes together as the host, and every GPU that a replica sees. ``nodes``: empty where they cannot be read."""
    gpus: dict[str, str] = {}
    for status in statuses:
        if status.get("device_uuid"):
            gpus.setdefault(str(status["device_uuid"]), str(status.get("device_name") or "unknown"))
    return Provenance(
        host=_host(nodes, statuses),
        gpus=[Gpu(index=index, name=name, uuid=uuid) for index, (uuid, name) in enumerate(gpus.items())],
        gpus_absent="" if gpus else "no replica sees a GPU",
        software=software,
    )


def _host(nodes: Sequence[Object], statuses: Sequence[Mapping[str, Any]]) -> Host:
    """What the nodes say of themselves, and where they may not be read, what the replicas see of them."""
    names = list(dict.fromkeys(str(status.get("node") or "unknown") for status in statuses)) or ["unknown"]
    seen = {str(status.get("node") or "unknown"): status.get("host") or {} for status in statuses}
    first: Mapping[str, Any] = next(iter(seen.values()), {})
    info: Mapping[str, Any] = (nodes[0].get("status") or {}).get("nodeInfo") or {} if nodes else {}
    return Host(
        hostname=", ".join(names),
        os=str(info.get("osImage") or "unknown"),
        kernel=str(info.get("kernelVersion") or first.get("kernel") or "unknown"),
        architecture=str(info.get("architecture") or first.get("architecture") or "unknown"),
        cpu_model=str(first.get("cpu_model") or "unknown"),
        cpus=_sum(nodes, seen, "cpu", "cpus") or 1,
        memory_bytes=_sum(nodes, seen, "memory", "memory_bytes"),
        cgroup_version=first.get("cgroup_version"),
        psi=first.get("psi"),
    )


def _sum(nodes: Sequence[Object], seen: Mapping[str, Mapping[str, Any]], resource: str, fact: str) -> int | None:
    """A resource of all nodes together; None when one of them does not tell."""
    told = [amount(((node.get("status") or {}).get("capacity") or {}).get(resource)) for node in nodes]
    values = told if nodes else [host.get(fact) for host in seen.values()]
    known = [int(value) for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None
