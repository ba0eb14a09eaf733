"""How a node's GPUs are lent: one answer from everything that says something of it, and every source that says otherwise.

A label is a claim: what a node has in its capacity counts for more, the device plugin's own configuration for more than labels,
and what a pod sees of itself for most (``SharingMode.contradiction``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from harness.errors import Issue, IssueLevel
from harness.sharing.device_plugin import (
    CONFIG_LABEL,
    CONFIGURED,
    INSTANCES,
    MIG_CONFIG_LABEL,
    MPS_LABEL,
    SHARED_SUFFIX,
    UNDIVIDED,
    Configuration,
    configuration,
)
from harness.sharing.mode import Object, SharingMode, refusal
from harness.sharing.modes import DIVIDED, MODES, WHOLE, mode_of
from harness.sharing.node import GPU_COUNT_LABEL, labels, name, notes, offered, resources
from harness.spec import ExperimentSpec, KubernetesSpec, Sharing

STRATEGY_LABEL = "nvidia.com/gpu.sharing-strategy"
PRODUCT_LABEL = "nvidia.com/gpu.product"
MIG_LABEL = "nvidia.com/mig.strategy"
"""The GPU operator sets it on every node, instances or not."""
REPLICAS_LABEL = "nvidia.com/gpu.replicas"
"""GPU feature discovery's: slices of each GPU."""
GKE_LABEL = "cloud.google.com/gke-gpu-sharing-strategy"
GKE_MIG_LABEL = "cloud.google.com/gke-gpu-partition-size"
CONFIG_ANNOTATION = "gpu-sharing-harness/config"
"""On the pods of a device plugin of ours: its configuration."""
SHARING_LABELS = (CONFIG_LABEL, MIG_CONFIG_LABEL, STRATEGY_LABEL)
"""A change of one while replicas run is a change of how they share."""
STRANGERS = {"hami.io/node-nvidia-register": "HAMi"}
"""Who lends GPUs by a way of their own, by the annotation of theirs on a node."""
_LABELLED = {
    STRATEGY_LABEL: {mode.strategy_label: mode.sharing for mode in MODES.values() if mode.strategy_label},
    GKE_LABEL: {mode.gke_strategy: mode.sharing for mode in MODES.values() if mode.gke_strategy},
    MPS_LABEL: {"true": Sharing.MPS},
}
"""Labels whose value is a mode, the stronger first."""
_SHARED = frozenset(CONFIGURED.values())


class Claim(NamedTuple):
    """What one source says: the modes that it leaves open."""

    source: str
    modes: frozenset[Sharing]


@dataclass(frozen=True, slots=True)
class Lending:
    """How a node's GPUs are lent: the modes that replicas may be under, and slices of each GPU; empty and None: nobody tells.

    ``source`` decided, those of ``denied`` say otherwise; ``stranger``: who lends more than labels and configuration say.
    """

    modes: frozenset[Sharing]
    slices: int | None = None
    source: str = ""
    denied: tuple[str, ...] = ()
    stranger: str = ""
    configuration: str = ""

    def in_words(self, status: Object | None = None) -> str:
        """The modes and the configuration, e.g. ``mps (mps-8)``; of a pod those that its own ``status`` leaves open."""
        open_to_it = [mode for mode in self.modes if not mode_of(mode).contradiction(status or {})]
        named = f"({self.configuration})" if self.configuration else ""
        return " ".join(filter(None, (in_words(open_to_it or self.modes), named)))


def lending(node: Object, pods: Sequence[Object], spec: KubernetesSpec) -> Lending:
    """How a node's GPUs are lent, by its capacity, its labels and annotations, and its device plugin among ``pods``."""
    if spec.gpu_resource is None:
        scheduler = f"the scheduler {spec.scheduler_name}" if spec.scheduler_name else "what reads the annotations"
        return Lending(_SHARED, source=scheduler, stranger=scheduler)
    configured = _configured(node, pods, spec)
    seen, promised = _per_gpu(node, spec), _promised(node, configured)
    stranger = _stranger(node, seen, promised, spec)
    claims = list(_claims(node, configured, stranger, spec))
    if seen == 1 and promised is not None and promised > 1:
        claims.insert(0, Claim(f"its capacity of {spec.gpu_resource}", frozenset({WHOLE.sharing})))
    modes = frozenset[Sharing]()
    for claim in claims:
        modes = (modes & claim.modes) or modes or claim.modes
    denied = [f"{claim.source} says {in_words(claim.modes)}" for claim in claims if claim.modes.isdisjoint(modes)]
    if divided(node, spec) or (configured is not None and configured.single):  # ours is so where there are instances
        modes = (modes | {DIVIDED.sharing}) - {WHOLE.sharing}
    counted = configured is not None or REPLICAS_LABEL in labels(node)
    slices = seen if seen == 1 or stranger or promised is None or not counted else promised
    return Lending(
        modes, slices, claims[0].source if claims else "", tuple(denied), stranger, labels(node).get(CONFIG_LABEL, "")
    )


def _claims(node: Object, configured: Configuration | None, stranger: str, spec: KubernetesSpec) -> Iterator[Claim]:
    """What says how whole GPUs, or instances, are shared, the strongest first."""
    marks = labels(node)
    if stranger:
        yield Claim(stranger, _SHARED)
    if configured is not None:
        yield Claim("its device plugin's configuration", frozenset({configured.mode}))
    for label, modes in _LABELLED.items():
        if marks.get(label) in modes:
            yield Claim(f"the label {label}={marks[label]}", frozenset({modes[marks[label]]}))
    if str(marks.get(PRODUCT_LABEL, "")).endswith("-SHARED"):
        yield Claim(f"the label {PRODUCT_LABEL}={marks[PRODUCT_LABEL]}", _SHARED)
    if str(spec.gpu_resource).endswith(SHARED_SUFFIX):
        yield Claim(f"the resource {spec.gpu_resource}", _SHARED)


def _stranger(node: Object, seen: int | None, promised: int | None, spec: KubernetesSpec) -> str:
    """Who lends more than GPUs times the slices that anybody promises; empty: nobody does."""
    names = strangers(node)
    if seen is None:
        return names
    if promised is None or seen <= promised:
        return ""
    return f"{names or 'an unknown program'}, by whom each GPU is {seen} {spec.gpu_resource}"


def strangers(node: Object) -> str:
    """Who lends a node's GPUs by a way of their own and says so; empty: nobody says it."""
    return " and ".join(f"{who} (annotation {mark})" for mark, who in STRANGERS.items() if mark in notes(node))


def _promised(node: Object, configured: Configuration | None) -> int | None:
    """Slices of each GPU by configuration or labels; None where they say that there are some, and not how many."""
    if configured is not None:
        return configured.slices
    marks = labels(node)
    if str(marks.get(REPLICAS_LABEL, "")).isdigit():
        return int(marks[REPLICAS_LABEL])
    said = [modes[marks[label]] for label, modes in _LABELLED.items() if marks.get(label) in modes]
    shared = _SHARED.intersection(said) or str(marks.get(PRODUCT_LABEL, "")).endswith("-SHARED")
    return None if shared else 1


def _per_gpu(node: Object, spec: KubernetesSpec) -> int | None:
    """Slices that each GPU comes to in the node's capacity; None where it does not say how many GPUs those are."""
    marks = labels(node)
    count = int(marks[GPU_COUNT_LABEL]) if str(marks.get(GPU_COUNT_LABEL, "")).isdigit() else 0
    if not count or str(spec.gpu_resource).startswith(INSTANCES) or marks.get(MIG_LABEL) == "mixed":
        return None
    return max(offered(node, spec), offered(node, spec, "capacity")) // count or None


def divided(node: Object, spec: KubernetesSpec) -> bool:
    """Whether labels, or the resource's name, say that MIG instances exist: the strategy alone does not."""
    marks = labels(node)
    configured = marks.get(MIG_CONFIG_LABEL, UNDIVIDED) != UNDIVIDED and marks.get("nvidia.com/mig.capable") == "true"
    return (
        str(spec.gpu_resource).startswith(INSTANCES)
        or "-MIG-" in marks.get(PRODUCT_LABEL, "")
        or any(key.startswith("nvidia.com/gpu.slices.") for key in marks)
        or (configured and marks.get(MIG_LABEL) != "mixed")
        or GKE_MIG_LABEL in marks
    )


def in_words(modes: Collection[Sharing]) -> str:
    """For a sentence and for the manifest; empty when nobody tells."""
    return " or ".join(sorted(mode.value for mode in modes))


def _configured(node: Object, pods: Sequence[Object], spec: KubernetesSpec) -> Configuration | None:
    """The configuration of the device plugin on a node, where it is one of ours."""
    for pod in pods:
        text = notes(pod).get(CONFIG_ANNOTATION)
        if text and pod["spec"].get("nodeName") == name(node):
            return configuration(CONFIG_ANNOTATION, text, str(spec.gpu_resource))
    return None


def check_sharing(
    nodes: Sequence[Object], pods: Sequence[Object], spec: KubernetesSpec, experiments: Sequence[ExperimentSpec]
) -> Iterator[Issue]:
    """Whether the GPUs of the nodes that replicas may be placed on are lent as the experiments say; ``pods``: of the whole cluster."""
    modes = [mode_of(sharing) for sharing in dict.fromkeys(experiment.sharing for experiment in experiments)]
    if not spec.gpus_per_replica:
        for mode in modes:
            if mode.needs_gpu:
                message = f"sharing {mode.sharing.value} means nothing for replicas without a GPU."
                yield refusal(message, "Use time-slicing, or ask for a GPU.")
        return
    lends = [
        (node, lending(node, pods, spec))
        for node in nodes
        if spec.gpu_resource is None or spec.gpu_resource in resources(node)
    ]
    for experiment in experiments:
        yield from mode_of(experiment.sharing).check_slices(experiment, [(node, how.slices) for node, how in lends])
    for node, how in lends:
        yield from _check_node(node, how, modes)


def _check_node(node: Object, how: Lending, modes: Sequence[SharingMode]) -> Iterator[Issue]:
    place, of_gke = f"node {name(node)}", _LABELLED[GKE_LABEL].get(labels(node).get(GKE_LABEL, ""))
    if of_gke is not None and mode_of(of_gke).gke_refusal:
        advice = "Use a node pool with time-sharing, MIG, or whole GPUs."
        yield refusal(f"{place} has {mode_of(of_gke).gke_refusal}.", advice)
        return
    denied, by = f" ({'; '.join(how.denied)})" if how.denied else "", in_words(how.modes)
    for mode in modes:
        trusted = f"{mode.sharing.value} is taken on trust{denied}."
        if mode.sharing not in how.modes and how.modes:
            shown = f"{place} shares its GPUs by {by}, as {how.source or 'its labels'} shows{denied}"
            advice = (
                f"Switch the cluster: {mode.switch_command}; or say what there is: `sharing: [{min(how.modes).value}]`."
            )
            yield refusal(f"{shown}, and the campaign says {mode.sharing.value}.", advice)
        elif not how.modes:
            yield Issue(IssueLevel.WARNING, "sharing", f"{place} does not show how its GPUs are shared: {trusted}")
        elif how.stranger:
            yield Issue(IssueLevel.WARNING, "sharing", f"{place} has its GPUs shared by {how.stranger}: {trusted}")
        elif how.denied:
            advice = "Which is right? Fix the other: it was set by hand, or the plugin restarts."
            message = f"{place} shares its GPUs by {by}, as {how.source} shows{denied}."
            yield Issue(IssueLevel.WARNING, "sharing", message, advice)
