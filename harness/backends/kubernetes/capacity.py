"""Preflight: are the nodes fit, and is there room on them for the replicas and for nobody else?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.backends.kubernetes.nodes import withdrawn
from harness.errors import Finding, Severity, counted
from harness.spec import KubernetesSpec

Object = Mapping[str, Any]

PRESSURES = ("MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable")
GPU_COUNT_LABEL = "nvidia.com/gpu.count"
CLUSTERS_TAINTS = "node.kubernetes.io/"
"""The cluster itself sets and removes these, with the node's conditions."""
_ENDED = frozenset({"Succeeded", "Failed"})
_NAMED = 5
"""How many of a kind a sentence names."""


@dataclass(slots=True)
class NodeRoom:
    """One node that replicas may be placed on.

    Attributes:
        offered: slices that it advertises.
        held: slices that pods which are not ours ask for, by ``namespace/pod``.
    """

    name: str
    offered: int
    held: dict[str, int] = field(default_factory=dict)

    def replicas(self, gpus_per_replica: int) -> int:
        """How many replicas fit."""
        return max(self.offered - sum(self.held.values()), 0) // gpus_per_replica


def check_nodes(nodes: Sequence[Object], spec: KubernetesSpec) -> Iterator[Finding]:
    """Whether there is a node to run on, and what the nodes say of themselves."""
    wanted = [node for node in nodes if selected(node, spec)]
    if not wanted:
        selector = ", ".join(f"{key}={value}" for key, value in spec.node_selector.items())
        selector += "".join(f", {' '.join((one.key, one.operator, *one.values))}" for one in spec.node_affinity)
        message = f"no node has the labels {selector.lstrip(', ')}." if selector else "the cluster has no node."
        advice = "Check the context, `kubernetes.node_selector` and `node_affinity`."
        yield Finding(Severity.ERROR, "nodes", message, advice)
        return
    usable = [node for node in wanted if not unusable(node, spec)]
    for node in wanted:
        why = unusable(node, spec)
        if why and not _is_control_plane_by_choice(node, usable):
            severity = Severity.WARNING if usable else Severity.ERROR
            advice = "Mend the node: kubectl describe node tells more."
            yield Finding(severity, "nodes", f"node {_name(node)} takes no replica: {why}.", advice)
    for node in usable:
        for condition in _conditions(node):
            if condition.get("type") in PRESSURES and condition.get("status") == "True":
                yield Finding(
                    Severity.ERROR,
                    "pressure",
                    f"node {_name(node)} is under {_words(condition)}.",
                    "Free what it lacks first: replicas would be evicted in mid-experiment.",
                )


def check_gpus(
    nodes: Sequence[Object], pods: Sequence[Object], spec: KubernetesSpec, replicas: int, campaign_id: str
) -> Iterator[Finding]:
    """Whether the slices are enough for ``replicas``, and who else has some."""
    if not spec.gpus_per_replica:
        return
    rooms = room(nodes, pods, spec, campaign_id)
    resource = spec.gpu_resource
    for node in nodes:
        if takes(node, spec) and (less := withdrawn(node, resource)):
            yield Finding(Severity.WARNING, "gpus", f"{less}.", _FAILED_GPU_ADVICE)
    if not any(one.offered for one in rooms):
        yield Finding(
            Severity.ERROR,
            "gpus",
            f"none of {len(rooms)} usable nodes advertises {resource}.",
            "Is the device plugin running? kubectl get pods --all-namespaces, and its log, tell why not.",
        )
        return
    fitting = sum(one.replicas(spec.gpus_per_replica) for one in rooms)
    if fitting < replicas:
        offers = ", ".join(f"{one.name} offers {one.offered}" for one in rooms if one.offered)
        held = sum(sum(one.held.values()) for one in rooms)
        yield Finding(
            Severity.ERROR,
            "gpus",
            f"{counted(replicas, 'replica', 'need')} {replicas * spec.gpus_per_replica} {resource}, and there is room for {fitting}: "
            f"{offers}{f', of which others hold {held}' if held else ''}.",
            "Use fewer replicas, or more slices: harness sharing time-slicing --replicas N.",
        )
    holders = [pod for one in rooms for pod in one.held]
    if holders:
        more = f" and {len(holders) - _NAMED} more" if len(holders) > _NAMED else ""
        yield Finding(
            Severity.WARNING,
            "gpus",
            f"pods that are not of this campaign hold {resource}: {', '.join(holders[:_NAMED])}{more}.",
            HOLDERS_ADVICE,
        )
    yield from check_devices(nodes, spec)


HOLDERS_ADVICE = "End them: whatever they do on the GPU is measured, too."
_FAILED_GPU_ADVICE = (
    "Read its log. After an Xid it withdraws one slice and lends the others of the same GPU on: "
    "reset that GPU, or reboot the node, before anything is measured."
)


def room(nodes: Sequence[Object], pods: Sequence[Object], spec: KubernetesSpec, campaign_id: str) -> list[NodeRoom]:
    """What each usable node offers, and who has some of it already."""
    rooms = {
        _name(node): NodeRoom(_name(node), slices(node["status"].get("allocatable") or {}, spec))
        for node in nodes
        if takes(node, spec)
    }
    for pod in pods:
        where = rooms.get(pod["spec"].get("nodeName") or "")
        asked = _asked(pod, spec)
        if where is not None and asked and not ended(pod) and not own(pod, campaign_id):
            where.held[f"{pod['metadata']['namespace']}/{_name(pod)}"] = asked
    return list(rooms.values())


def holders(node: Object, pods: Sequence[Object], campaign_id: str) -> list[str]:
    """The pods on a node, ``namespace/pod``, that hold any of its GPUs and are not of this campaign."""
    return [
        f"{pod['metadata']['namespace']}/{_name(pod)}"
        for pod in pods
        if pod["spec"].get("nodeName") == _name(node)
        and not ended(pod)
        and not own(pod, campaign_id)
        and any(
            name.startswith("nvidia.com/")
            for kind in ("containers", "initContainers")
            for one in pod["spec"].get(kind) or []
            for name in (one.get("resources") or {}).get("limits") or {}
        )
    ]


def unusable(node: Object, spec: KubernetesSpec) -> str:
    """Why the scheduler would place no replica on a node, in the node's own words; empty when it would."""
    ready = next((one for one in _conditions(node) if one.get("type") == "Ready"), {})
    if ready.get("status") != "True":
        return f"it is not ready ({_words(ready)})" if ready else "it has never been ready"
    if node["spec"].get("unschedulable"):
        return "it is cordoned (kubectl uncordon lets pods on it again)"
    for taint in node["spec"].get("taints") or []:
        if taint.get("effect") in {"NoSchedule", "NoExecute"} and not _tolerated(taint, spec):
            return f"it has the taint {taint['key']}={taint.get('value', '')}:{taint['effect']}"
    return ""


def lost(nodes: Sequence[Object], spec: KubernetesSpec) -> bool:
    """Whether a node, or what it lends, is away in a way that may end by itself: silent, cordoned, its plugin restarting."""
    wanted = [node for node in nodes if selected(node, spec)]
    if not wanted or any(_is_away(node) for node in wanted):
        return True
    if not spec.gpus_per_replica or spec.by_claims:
        return False
    idle = [node for node in wanted if not slices(node["status"].get("allocatable") or {}, spec)]
    # A kubelet that has started anew says 0 of a resource until the device plugin is back.
    restarted = any(spec.gpu_resource in (node["status"].get("capacity") or {}) for node in idle)
    return len(idle) == len(wanted) or restarted or any(withdrawn(node, spec.gpu_resource) for node in wanted)


def _is_away(node: Object) -> bool:
    ready = next((one for one in _conditions(node) if one.get("type") == "Ready"), {})
    taints = [taint["key"] for taint in node["spec"].get("taints") or [] if taint.get("effect") != "PreferNoSchedule"]
    return (
        ready.get("status") != "True"
        or bool(node["spec"].get("unschedulable"))
        or any(key.startswith(CLUSTERS_TAINTS) for key in taints)
    )


def check_devices(nodes: Sequence[Object], spec: KubernetesSpec) -> Iterator[Finding]:
    """Whether the nodes have as many GPUs as the campaign expects, where it does."""
    if spec.expected_gpus is None:
        return
    counts = {
        _name(node): node["metadata"]["labels"][GPU_COUNT_LABEL]
        for node in nodes
        if selected(node, spec)
        and not unusable(node, spec)
        and str((node["metadata"].get("labels") or {}).get(GPU_COUNT_LABEL, "")).isdigit()
    }
    total = sum(int(count) for count in counts.values())
    if counts and total != spec.expected_gpus:
        found = ", ".join(f"{name}: {count}" for name, count in counts.items())
        yield Finding(Severity.WARNING, "gpus", too_many(total, spec.expected_gpus, found), DEVICES_ADVICE)


DEVICES_ADVICE = (
    "Replicas are spread over whatever is there: narrow `kubernetes.node_selector`, or expect what there is."
)


def too_many(found: int, expected: int, where: str) -> str:
    """The sentence about GPUs that are there and were not expected, or the other way round."""
    return f"{counted(found, 'GPU')} where {expected} {'was' if expected == 1 else 'were'} expected ({where})."


def selected(node: Object, spec: KubernetesSpec) -> bool:
    """Whether the campaign's selector and affinity take a node."""
    return spec.takes(node["metadata"].get("labels") or {})


def takes(node: Object, spec: KubernetesSpec) -> bool:
    """Whether the scheduler would place a replica on a node."""
    return selected(node, spec) and not unusable(node, spec)


def _is_control_plane_by_choice(node: Object, usable: Sequence[Object]) -> bool:
    """A control plane that takes no pods is nothing to remark upon while other nodes do."""
    labels = node["metadata"].get("labels") or {}
    return bool(usable) and "node-role.kubernetes.io/control-plane" in labels


def _tolerated(taint: Object, spec: KubernetesSpec) -> bool:
    return any(
        (one.key is None or one.key == taint["key"])
        and (one.operator == "Exists" or (one.value or "") == (taint.get("value") or ""))
        and one.effect in {None, taint["effect"]}
        for one in spec.tolerations
    )


def _asked(pod: Object, spec: KubernetesSpec) -> int:
    """Slices that the scheduler counts for a pod: an init container's are given back."""

    def asked(kind: str) -> list[int]:
        return [slices((one.get("resources") or {}).get("limits") or {}, spec) for one in pod["spec"].get(kind) or []]

    return max([sum(asked("containers")), *asked("initContainers")])


def slices(resources: Object, spec: KubernetesSpec) -> int:
    """How many of the campaign's GPU resource are among some resources."""
    return int(resources.get(spec.gpu_resource, 0))


def ended(pod: Object) -> bool:
    """Whether it holds nothing any more."""
    return (pod.get("status") or {}).get("phase") in _ENDED


def own(one: Object, campaign_id: str) -> bool:
    """Whether an object is this campaign's."""
    labels = one["metadata"].get("labels") or {}
    return bool(campaign_id) and labels.get("gpu-sharing-harness/campaign") == campaign_id


def _conditions(node: Object) -> list[Object]:
    return list((node.get("status") or {}).get("conditions") or [])


def _words(condition: Object) -> str:
    message = " ".join(str(condition.get("message") or "").split()).rstrip(".")
    said = ": ".join(part for part in (str(condition.get("reason") or ""), message) if part)
    return f"{condition.get('type')}, {said}" if said else str(condition.get("type"))


def _name(one: Object) -> str:
    return str(one["metadata"]["name"])
