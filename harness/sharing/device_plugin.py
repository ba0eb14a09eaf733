"""NVIDIA's device plugin: the configurations that a cluster has ready, and how a node shows that its GPUs are shared."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import yaml

from harness.errors import BackendError, ClusterError, Issue, IssueLevel, counted
from harness.sharing.mode import ClusterApi, ClusterSharing, Object, PodSharing, SharingMode, refusal
from harness.sharing.modes import DIVIDED, MODES, WHOLE, mode_of
from harness.sharing.node import GPU_COUNT_LABEL, PODS, labels, name, offered, resources, selected
from harness.spec import ExperimentSpec, KubernetesSpec, Sharing

CONFIG_LABEL = "nvidia.com/device-plugin.config"
MPS_LABEL = "nvidia.com/mps.capable"
"""Where it is "true", the DaemonSet of the MPS control daemon places one."""
MIG_CONFIG_LABEL = "nvidia.com/mig.config"
MIG_STATE_LABEL = "nvidia.com/mig.config.state"
UNDIVIDED = "all-disabled"
"""What the MIG manager calls whole GPUs."""
STRATEGY_LABEL = "nvidia.com/gpu.sharing-strategy"
PRODUCT_LABEL = "nvidia.com/gpu.product"
MIG_LABEL = "nvidia.com/mig.strategy"
GKE_LABEL = "cloud.google.com/gke-gpu-sharing-strategy"
GKE_MIG_LABEL = "cloud.google.com/gke-gpu-partition-size"
REPLICAS_LABEL = "nvidia.com/gpu.replicas"
"""GPU feature discovery's: slices of each GPU."""
CONFIG_ANNOTATION = "gpu-sharing-harness/config"
"""On the pods of a device plugin of ours: its configuration."""
_STRATEGIES = {mode.strategy_label: mode for mode in MODES.values() if mode.strategy_label}
_OF_GKE = {mode.gke_strategy: mode for mode in MODES.values() if mode.gke_strategy}
_CONFIGURED = {mode.plugin_section: mode for mode in MODES.values() if mode.plugin_section}


@dataclass(frozen=True, slots=True)
class Configuration:
    """One way to lend GPUs, called as the key in the ConfigMap; each GPU, or MIG instance, is lent as so many slices."""

    name: str
    mode: Sharing
    slices: int

    def lent(self, gpus: int | None) -> int | None:
        """What a node with so many GPUs lends; None where only the node knows: MIG instances."""
        return None if mode_of(self.mode).own_instance or gpus is None else gpus * self.slices

    def room(self, gpus: Collection[int | None], gpus_per_replica: int) -> float:
        """Replicas that fit on nodes with so many GPUs; without bound where only the nodes can tell."""
        lent = [self.lent(count) for count in gpus]
        return sum(float("inf") if count is None else count // gpus_per_replica for count in lent)

    def labels(self, spec: KubernetesSpec) -> dict[str, str]:
        """Of a node under it."""
        mode = mode_of(self.mode)
        divided = {MIG_CONFIG_LABEL: spec.mig_config if mode.own_instance else UNDIVIDED} if spec.mig_config else {}
        return {CONFIG_LABEL: self.name, MPS_LABEL: "true" if mode.concurrent else "false", **divided}


def read(find: Callable[[str], Object | None], spec: KubernetesSpec) -> list[Configuration]:
    """The configurations whose mode can be told, by name. Raises ClusterError, BackendError where there is no ConfigMap."""
    namespace, _, key = (spec.device_plugin_configs or "").partition("/")
    config_map = find(f"/api/v1/namespaces/{namespace}/configmaps/{key}")
    if config_map is None:
        raise BackendError(
            f"there is no ConfigMap {spec.device_plugin_configs}.",
            advice="Name the one that the device plugin's config manager reads in `kubernetes.device_plugin_configs`.",
        )
    texts = config_map.get("data") or {}
    parsed = (_configuration(name, str(texts[name]), spec.gpu_resource) for name in sorted(texts))
    return [configuration for configuration in parsed if configuration is not None]


def choose(
    configurations: Sequence[Configuration],
    experiment: ExperimentSpec,
    gpus: Collection[int | None],
    spec: KubernetesSpec,
) -> Configuration:
    """The configuration for an experiment, its neighbours included, on nodes with so many GPUs; None where it cannot be told.

    Time-sliced replicas are the same with any number of slices, so that the largest serves all of a campaign. A client
    of MPS gets its slice's share of processors and memory: the smallest number that is enough.

    Raises:
        BackendError: there is none; the message names those that there are.
    """
    needed = experiment.cell.processes
    fit = [
        configuration
        for configuration in configurations
        if configuration.mode is experiment.sharing and configuration.room(gpus, spec.gpus_per_replica) >= needed
    ]
    if not fit:
        have = ", ".join(f"{it.name} ({it.mode.value}, {it.slices} a GPU)" for it in configurations) or "none"
        raise BackendError(
            f"no configuration of {spec.device_plugin_configs} gives {counted(needed, 'replica')} a GPU by "
            f"{experiment.sharing.value}; it has: {have}.",
            advice="Add one to the ConfigMap (docs/cluster.md has an example), or use fewer replicas.",
        )
    best = max if mode_of(experiment.sharing).takes_turns else min
    return best(fit, key=lambda configuration: configuration.slices)


@dataclass(slots=True)
class AsLent(ClusterSharing):
    """The GPUs as the device plugin lends them when the campaign begins."""

    fixed_slices: ClassVar[bool] = True
    sets_mode: ClassVar[bool] = False

    def check(self, api: ClusterApi, nodes: Sequence[Object], experiments: Sequence[ExperimentSpec]) -> Iterable[Issue]:
        """Whether the GPUs are shared as the experiments say."""
        wanted = [node for node in nodes if selected(node, self.spec)]
        return check_sharing(wanted, api.list(PODS), self.spec, experiments)

    def observe(
        self,
        api: ClusterApi,
        experiment: ExperimentSpec,  # noqa: ARG002 - a node may show several modes, or none
        nodes: Sequence[Object],
        pods: Sequence[Object],
        statuses: Sequence[Object],  # noqa: ARG002
    ) -> list[PodSharing]:
        """By the labels of each pod's node, and by its device plugin where pods of others may be read."""
        try:
            around = api.list(PODS)
        except ClusterError:
            around = []
        by_node = {
            name(node): PodSharing(shown(node, around, self.spec), slices_per_gpu(node, around, self.spec))
            for node in nodes
        }
        return [by_node.get(str(pod["spec"].get("nodeName")), PodSharing()) for pod in pods]


def check_sharing(
    nodes: Sequence[Object], pods: Sequence[Object], spec: KubernetesSpec, experiments: Sequence[ExperimentSpec]
) -> Iterator[Issue]:
    """Whether the GPUs of the nodes that replicas may be placed on are shared as the experiments say; ``pods``: of the whole cluster."""
    modes = [mode_of(sharing) for sharing in dict.fromkeys(experiment.sharing for experiment in experiments)]
    if not spec.gpus_per_replica:
        for mode in modes:
            if mode.needs_gpu:
                message = f"sharing {mode.sharing.value} means nothing for replicas without a GPU."
                yield refusal(message, "Use time-slicing, or ask for a GPU.")
        return
    lending = [node for node in nodes if spec.gpu_resource in resources(node)]
    for experiment in experiments:
        sliced = [(node, slices_per_gpu(node, pods, spec)) for node in lending]
        yield from mode_of(experiment.sharing).check_slices(experiment, sliced)
    for node in lending:
        yield from _check_node(node, observed(node, pods, spec), modes)


def _check_node(node: Object, seen: Collection[Sharing], modes: Sequence[SharingMode]) -> Iterator[Issue]:
    of_gke = _OF_GKE.get(labels(node).get(GKE_LABEL, ""))
    if of_gke is not None and of_gke.gke_refusal:
        yield refusal(
            f"node {name(node)} has {of_gke.gke_refusal}.", "Take a node pool with time-sharing, MIG, or whole GPUs."
        )
        return
    for mode in modes:
        if not seen:
            message = (
                f"node {name(node)} does not show how its GPUs are shared: {mode.sharing.value} is taken on trust."
            )
            yield Issue(IssueLevel.WARNING, "sharing", message)
        elif mode.sharing not in seen:
            message = (
                f"node {name(node)} shares its GPUs by {in_words(seen)}, and the campaign says {mode.sharing.value}."
            )
            advice = f"Switch the cluster: {mode.switch_command}; or say what there is: `sharing: [{min(seen).value}]`."
            yield refusal(message, advice)


def observed(node: Object, pods: Sequence[Object], spec: KubernetesSpec) -> frozenset[Sharing]:
    """The modes that a node's GPUs may be said to be under, by its labels and its device plugin; empty: nobody tells."""
    marks, configured = labels(node), _configured(node, pods)
    instances = divided(marks, spec)
    if configured is not None:
        instances = instances or (configured.get("flags") or {}).get("migStrategy", "none") != "none"
        shared = {_CONFIGURED[key] for key in configured.get("sharing") or {} if key in _CONFIGURED}
    elif marks.get(STRATEGY_LABEL) in _STRATEGIES:
        shared = {_STRATEGIES[marks[STRATEGY_LABEL]]} - {WHOLE}
    elif marks.get(GKE_LABEL) in _OF_GKE:
        shared = {_OF_GKE[marks[GKE_LABEL]]}
    elif marks.get(MPS_LABEL) == "true":
        shared = {mode for mode in MODES.values() if mode.concurrent}
    elif str(marks.get(PRODUCT_LABEL, "")).endswith("-SHARED"):
        shared = set(_CONFIGURED.values())
    else:
        return frozenset({DIVIDED.sharing} if instances else ())
    modes = {DIVIDED, *shared} if instances else shared or {WHOLE}
    return frozenset(mode.sharing for mode in modes)


def slices_per_gpu(node: Object, pods: Sequence[Object], spec: KubernetesSpec) -> int | None:
    """That each GPU of a node is lent as: by the plugin's configuration, else as the node shows it; None: nobody tells."""
    sections = ((_configured(node, pods) or {}).get("sharing") or {}).values()
    for section in sections:
        for resource in section.get("resources") or []:
            return int(resource["replicas"])
    marks = labels(node)
    if str(marks.get(REPLICAS_LABEL, "")).isdigit():
        return int(marks[REPLICAS_LABEL])
    count = int(marks[GPU_COUNT_LABEL]) if str(marks.get(GPU_COUNT_LABEL, "")).isdigit() else 0
    return offered(node, spec) // count or None if count else None


def shown(node: Object, pods: Sequence[Object], spec: KubernetesSpec) -> str:
    """For the manifest: the modes, and the configuration that the node's label names, e.g. ``mps (mps-8)``."""
    named = labels(node).get(CONFIG_LABEL)
    return " ".join(filter(None, (in_words(observed(node, pods, spec)), f"({named})" if named else "")))


def divided(marks: Mapping[str, str], spec: KubernetesSpec) -> bool:
    """Whether what a node with these labels lends are MIG instances."""
    return spec.gpu_resource.startswith("nvidia.com/mig-") or marks.get(MIG_LABEL) == "single" or GKE_MIG_LABEL in marks


def in_words(modes: Collection[Sharing]) -> str:
    """For a sentence and for the manifest; empty when nobody tells."""
    return " or ".join(sorted(mode.value for mode in modes))


def _configured(node: Object, pods: Sequence[Object]) -> Mapping[str, Any] | None:
    """The configuration of the device plugin on a node, where it is one of ours."""
    for pod in pods:
        text = (pod["metadata"].get("annotations") or {}).get(CONFIG_ANNOTATION)
        if text and pod["spec"].get("nodeName") == name(node):
            content = yaml.safe_load(text)
            return content if isinstance(content, dict) else None
    return None


def _configuration(name: str, text: str, resource: str) -> Configuration | None:
    """What a text of the plugin's format sets up; None for one that is of no use here."""
    try:
        return _parsed(name, yaml.safe_load(text), resource)
    except (yaml.YAMLError, AttributeError, LookupError, TypeError, ValueError):
        return None  # nothing of the plugin's: a ConfigMap may hold other things


def _parsed(name: str, content: Mapping[str, Any], resource: str) -> Configuration | None:
    if not content["version"]:
        return None
    shared = content.get("sharing") or {}
    divided = str((content.get("flags") or {}).get("migStrategy") or "none") != "none"
    for mode in reversed(_CONFIGURED.values()):
        section = shared.get(mode.plugin_section) or {}
        replicas = [
            int(entry.get("replicas", 1)) for entry in section.get("resources") or [] if entry.get("name") == resource
        ]
        if not replicas or max(replicas) < 2:
            continue  # one slice is no sharing, to the plugin either
        renamed = section.get("renameByDefault") or any("rename" in entry for entry in section["resources"])
        return None if divided or renamed else Configuration(name, mode.sharing, replicas[0])
    return Configuration(name, (DIVIDED if divided else WHOLE).sharing, 1)
