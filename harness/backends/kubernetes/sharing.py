"""How the device plugin shares a node's GPUs, as far as the node shows it. A campaign can only take what there is."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import yaml

from harness.backends.kubernetes import mps_share
from harness.backends.kubernetes.device_configs import CONFIG_LABEL, MPS_LABEL
from harness.errors import Finding, Severity
from harness.spec import ExperimentSpec, KubernetesSpec, Sharing
from harness.spec.sharing import DIVIDED, WHOLE

Object = Mapping[str, Any]

STRATEGY_LABEL = "nvidia.com/gpu.sharing-strategy"
PRODUCT_LABEL = "nvidia.com/gpu.product"
MIG_LABEL = "nvidia.com/mig.strategy"
GKE_LABEL = "cloud.google.com/gke-gpu-sharing-strategy"
GKE_MIG_LABEL = "cloud.google.com/gke-gpu-partition-size"
CONFIG_ANNOTATION = "gpu-sharing-harness/spec"
"""On the pods of a device plugin of ours: its configuration."""
_STRATEGIES = {mode.traits.label: mode for mode in Sharing if mode.traits.label}
_OF_GKE = {mode.traits.gke: mode for mode in Sharing if mode.traits.gke}
_CONFIGURED = {mode.traits.plugin: mode for mode in Sharing if mode.traits.plugin}


def check_sharing(
    nodes: Sequence[Object], pods: Sequence[Object], spec: KubernetesSpec, experiments: Sequence[ExperimentSpec]
) -> Iterator[Finding]:
    """Whether the GPUs are shared as the experiments say.

    Args:
        nodes: that replicas may be placed on.
        pods: of the whole cluster.
        spec: what the campaign says of it.
        experiments: that are going to run.
    """
    modes = list(dict.fromkeys(experiment.sharing for experiment in experiments))
    if not spec.gpus_per_replica:
        for mode in modes:
            if mode.traits.needs_gpu:
                message = f"sharing {mode.value} means nothing for replicas without a GPU (gpus_per_replica: 0)."
                yield Finding(Severity.ERROR, "sharing", message, "Use time-slicing, or ask for a GPU.")
        return
    lending = [node for node in nodes if spec.gpu_resource in ((node.get("status") or {}).get("allocatable") or {})]
    for experiment in experiments:
        yield from mps_share.check(experiment, [(node, slices(node, pods, spec)) for node in lending])
    for node in lending:
        name, seen = node["metadata"]["name"], observed(node, pods, spec)
        of_gke = _OF_GKE.get((node["metadata"].get("labels") or {}).get(GKE_LABEL, ""))
        if of_gke is not None and of_gke.traits.daemon:
            message = f"node {name} has GKE's MPS, for pods that share the node's IPC; replicas, which keep to `restricted`, do not."
            yield Finding(Severity.ERROR, "sharing", message, "Take a node pool with time-sharing, MIG, or whole GPUs.")
            continue
        for mode in modes:
            if not seen:
                message = f"node {name} does not show how its GPUs are shared: {mode.value} is taken on trust."
                yield Finding(Severity.WARNING, "sharing", message)
            elif mode not in seen:
                message = f"node {name} shares its GPUs by {in_words(seen)}, and the campaign says {mode.value}."
                advice = (
                    f"Switch the cluster: {mode.traits.switch}; or say what there is: `sharing: [{min(seen).value}]`."
                )
                yield Finding(Severity.ERROR, "sharing", message, advice)


def observed(node: Object, pods: Sequence[Object], spec: KubernetesSpec) -> frozenset[Sharing]:
    """The modes that a node's GPUs may be said to be under, by its labels and its device plugin; empty: nobody tells."""
    labels = node["metadata"].get("labels") or {}
    configured = _configured(node, pods)
    instances = divided(labels, spec)
    if configured is not None:
        instances = instances or (configured.get("flags") or {}).get("migStrategy", "none") != "none"
        shared = {_CONFIGURED[key] for key in configured.get("sharing") or {} if key in _CONFIGURED}
    elif labels.get(STRATEGY_LABEL) in _STRATEGIES:
        shared = {_STRATEGIES[labels[STRATEGY_LABEL]]} - {WHOLE}
    elif labels.get(GKE_LABEL) in _OF_GKE:
        shared = {_OF_GKE[labels[GKE_LABEL]]}
    elif labels.get(MPS_LABEL) == "true":
        shared = {mode for mode in Sharing if mode.traits.daemon}
    elif str(labels.get(PRODUCT_LABEL, "")).endswith("-SHARED"):
        shared = set(_CONFIGURED.values())
    else:
        return frozenset({DIVIDED} if instances else ())
    if instances:
        return frozenset({DIVIDED, *shared})
    return frozenset(shared or {WHOLE})


def shown(node: Object, pods: Sequence[Object], spec: KubernetesSpec) -> str:
    """For the manifest: the modes, and the configuration that the node's label names, e.g. ``mps (mps-8)``."""
    named = (node["metadata"].get("labels") or {}).get(CONFIG_LABEL)
    return " ".join(filter(None, (in_words(observed(node, pods, spec)), f"({named})" if named else "")))


def slices(node: Object, pods: Sequence[Object], spec: KubernetesSpec) -> int | None:
    """That each GPU of a node is lent as; None: nobody tells."""
    sections = ((_configured(node, pods) or {}).get("sharing") or {}).values()
    found = [int(one["replicas"]) for section in sections for one in section.get("resources") or []]
    return mps_share.slices(node, found[0] if found else None, spec.gpu_resource)


def divided(labels: Mapping[str, str], spec: KubernetesSpec) -> bool:
    """Whether what a node with these labels lends are MIG instances."""
    return (
        spec.gpu_resource.startswith("nvidia.com/mig-") or labels.get(MIG_LABEL) == "single" or GKE_MIG_LABEL in labels
    )


def in_words(modes: Collection[Sharing]) -> str:
    """For a sentence and for the manifest; empty when nobody tells."""
    return " or ".join(sorted(mode.value for mode in modes))


def _configured(node: Object, pods: Sequence[Object]) -> Mapping[str, Any] | None:
    """The configuration of the device plugin on a node, where it is one of ours."""
    for pod in pods:
        text = (pod["metadata"].get("annotations") or {}).get(CONFIG_ANNOTATION)
        if text and pod["spec"].get("nodeName") == node["metadata"]["name"]:
            found = yaml.safe_load(text)
            return found if isinstance(found, dict) else None
    return None
