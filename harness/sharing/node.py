"""What nodes and pods say of themselves, as the API has them, and which of them a campaign may use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.sharing.mode import Object
from harness.spec import KubernetesSpec

NODES, PODS = "/api/v1/nodes", "/api/v1/pods"
CAMPAIGN_LABEL = "gpu-sharing-harness/campaign"
GPU_COUNT_LABEL = "nvidia.com/gpu.count"
"""GPU feature discovery's."""
VISIBLE_DEVICES, NO_DEVICES = "NVIDIA_VISIBLE_DEVICES", {"", "none", "void"}
"""Variable by which NVIDIA's runtime gives a container GPUs, and its values that give none."""
CDI_ANNOTATIONS = "cdi.k8s.io/"
HOLDERS_ADVICE = "End them: whatever they do on the GPU is measured, too."


def name(item: Object) -> str:
    """Name of an object."""
    return str(item["metadata"]["name"])


def full_name(item: Object) -> str:
    """With its namespace."""
    return f"{item['metadata']['namespace']}/{name(item)}"


def labels(item: Object) -> Mapping[str, str]:
    """Labels of an object."""
    return item["metadata"].get("labels") or {}


def notes(item: Object) -> Mapping[str, str]:
    """Annotations of an object."""
    return item["metadata"].get("annotations") or {}


def condition(item: Object, kind: str) -> Object:
    """A condition of an object; empty when it has none of that kind."""
    conditions = (item.get("status") or {}).get("conditions") or []
    return next((entry for entry in conditions if entry.get("type") == kind), {})


def condition_in_words(entry: Object) -> str:
    """A condition's kind, reason and message."""
    message = " ".join(str(entry.get("message") or "").split()).rstrip(".")
    words = ": ".join(part for part in (str(entry.get("reason") or ""), message) if part)
    return f"{entry.get('type')}, {words}" if words else str(entry.get("type"))


def own(item: Object, campaign_id: str) -> bool:
    """Whether an object is this campaign's."""
    return bool(campaign_id) and labels(item).get(CAMPAIGN_LABEL) == campaign_id


def ended(pod: Object) -> bool:
    """Whether it runs no more and holds nothing; its log is there."""
    return (pod.get("status") or {}).get("phase") in {"Failed", "Succeeded"}


def resources(node: Object, kind: str = "allocatable") -> Mapping[str, Any]:
    """What a node lends; ``capacity``: what it has."""
    return (node.get("status") or {}).get(kind) or {}


def offered(node: Object, spec: KubernetesSpec, kind: str = "allocatable") -> int:
    """How many of the campaign's GPU resource a node lends, or has."""
    return int(resources(node, kind).get(spec.gpu_resource or "", 0))


def selected(node: Object, spec: KubernetesSpec) -> bool:
    """Whether the campaign's selector and affinity take a node."""
    return spec.takes(dict(labels(node)))


def takes(node: Object, spec: KubernetesSpec) -> bool:
    """Whether the scheduler would place a replica on a node."""
    return selected(node, spec) and not unusable(node, spec)


def unusable(node: Object, spec: KubernetesSpec) -> str:
    """Why the scheduler would place no replica on a node, in the node's own words; empty when it would."""
    ready = condition(node, "Ready")
    if ready.get("status") != "True":
        return f"it is not ready ({condition_in_words(ready)})" if ready else "it has never been ready"
    if node["spec"].get("unschedulable"):
        return "it is cordoned (kubectl uncordon lets pods on it again)"
    for taint in node["spec"].get("taints") or []:
        if taint.get("effect") in {"NoSchedule", "NoExecute"} and not _tolerated(taint, spec):
            return f"it has the taint {taint['key']}={taint.get('value', '')}:{taint['effect']}"
    return ""


def _tolerated(taint: Object, spec: KubernetesSpec) -> bool:
    return any(
        (term.key is None or term.key == taint["key"])
        and (term.operator == "Exists" or (term.value or "") == (taint.get("value") or ""))
        and term.effect in {None, taint["effect"]}
        for term in spec.tolerations
    )


def withdrawn(node: Object, resource: str) -> str:
    """How much less of an extended resource a node lends than it has; empty when it lends all."""
    has, lends = (int(resources(node, kind).get(resource, 0)) for kind in ("capacity", "allocatable"))
    if lends >= has:
        return ""
    return (
        f"node {name(node)} advertises {lends} of its {has} {resource}: "
        "the device plugin calls the others unhealthy, or is away"
    )


def holders(node: Object, pods: Sequence[Object], campaign_id: str) -> list[str]:
    """The pods on a node, ``namespace/pod``, that hold any of its GPUs and are not of this campaign."""
    return [full_name(pod) for pod in others_on_gpus(name(node), pods, campaign_id) if not ended(pod)]


def sees_gpus(pod: Object) -> str:
    """By what a pod sees its node's GPUs though it asks for none; empty: by nothing, or it is one of the node's own.

    What a DaemonSet or the node itself runs (device plugin, exporter, MPS daemon) is the node's own. What an image sets is not seen.
    """
    spec, owners = pod["spec"], pod["metadata"].get("ownerReferences") or []
    if any(owner.get("kind") in {"DaemonSet", "Node"} for owner in owners):
        return ""
    containers = [container for kind in ("containers", "initContainers") for container in spec.get(kind) or []]
    variables = [entry for container in containers for entry in container.get("env") or []]
    visible = [str(entry.get("value") or "") for entry in variables if entry.get("name") == VISIBLE_DEVICES]
    if visible and not set(visible) - NO_DEVICES:
        return ""
    handler = str(spec.get("runtimeClassName") or "")
    paths = [str((volume.get("hostPath") or {}).get("path") or "") for volume in spec.get("volumes") or []]
    privileged = any((container.get("securityContext") or {}).get("privileged") for container in containers)
    devices = [path for path in paths if path.startswith("/dev/nvidia") or (privileged and path in {"/", "/dev"})]
    injected = [
        value for key, value in notes(pod).items() if key.startswith(CDI_ANNOTATIONS) and "nvidia.com/" in value
    ]
    return ", ".join(
        [
            *([f"runtime class {handler}"] if "nvidia" in handler else []),
            *(f"{VISIBLE_DEVICES}={value}" for value in dict.fromkeys(visible) if value not in NO_DEVICES),
            *(f"the devices {value}" for value in injected),
            *(f"{path} of the node" for path in devices),
        ]
    )


def others_on_gpus(node: str, pods: Sequence[Object], campaign_id: str) -> list[Object]:
    """The pods of others on a node that were given any of its GPUs, those that have ended among them."""
    return [
        pod
        for pod in pods
        if pod["spec"].get("nodeName") == node
        and not own(pod, campaign_id)
        and any(
            resource.startswith("nvidia.com/")
            for kind in ("containers", "initContainers")
            for container in pod["spec"].get(kind) or []
            for resource in (container.get("resources") or {}).get("limits") or {}
        )
    ]
