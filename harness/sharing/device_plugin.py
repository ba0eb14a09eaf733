"""The configurations of NVIDIA's device plugin that a cluster has ready: what each lends, and which an experiment needs."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import yaml

from harness.errors import BackendError, counted
from harness.sharing.mode import Object
from harness.sharing.modes import MODES, WHOLE, mode_of
from harness.spec import ExperimentSpec, KubernetesSpec, Sharing

CONFIG_LABEL = "nvidia.com/device-plugin.config"
MPS_LABEL = "nvidia.com/mps.capable"
"""Where it is "true", the DaemonSet of the MPS control daemon places one."""
MIG_CONFIG_LABEL = "nvidia.com/mig.config"
UNDIVIDED = "all-disabled"
"""What the MIG manager calls whole GPUs."""
INSTANCES, SHARED_SUFFIX = "nvidia.com/mig-", ".shared"
"""How resources of MIG instances begin, and how those end that the plugin renames by default."""
CONFIGURED = {mode.plugin_section: mode.sharing for mode in MODES.values() if mode.plugin_section}
"""Modes by the section of a configuration."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """What a configuration of the device plugin lends, called as the key in the ConfigMap."""

    name: str
    mode: Sharing
    """Of whole GPUs."""
    slices: int
    """That each GPU, or MIG instance, is lent as."""
    single: bool = False
    """It calls instances ``nvidia.com/gpu``, where GPUs are divided."""
    resource: str = "nvidia.com/gpu"

    def gives(self, sharing: Sharing) -> bool:
        """Whether replicas that have its slices can be under a mode."""
        instances = self.resource.startswith(INSTANCES)
        if mode_of(sharing).own_instance:
            return self.slices == 1 and (self.single or instances)
        return self.mode is sharing and not (mode_of(sharing).own_gpu and instances)

    def in_words(self, spec: KubernetesSpec) -> str:
        """E.g. ``mps-8 (mps, 8 a GPU)``, with its resource where the campaign has another."""
        lends = "" if self.resource == spec.gpu_resource else f", as {self.resource}"
        return f"{self.name} ({self.mode.value}, {self.slices} a GPU{lends})"

    def lent(self, gpus: int | None) -> int | None:
        """What a node with so many GPUs lends; None where only the node knows: MIG instances."""
        divided = mode_of(self.mode).own_instance or self.resource.startswith(INSTANCES)
        return None if divided or gpus is None else gpus * self.slices

    def labels(self, spec: KubernetesSpec) -> dict[str, str]:
        """Of a node under it."""
        mode = mode_of(self.mode)
        divided = {MIG_CONFIG_LABEL: spec.mig_config if mode.own_instance else UNDIVIDED} if spec.mig_config else {}
        return {CONFIG_LABEL: self.name, MPS_LABEL: "true" if mode.concurrent else "false", **divided}


def configuration(name: str, text: str, resource: str) -> Configuration | None:
    """What a text of the plugin's format lends as a resource, else as others; None for one that is of no use here."""
    try:
        return _parsed(name, yaml.safe_load(text), resource)
    except (yaml.YAMLError, AttributeError, LookupError, TypeError, ValueError):
        return None  # nothing of the plugin's: a ConfigMap may hold other things


def _parsed(name: str, content: Mapping[str, Any], resource: str) -> Configuration | None:
    if not content["version"]:
        return None
    single = (content.get("flags") or {}).get("migStrategy") == "single"
    lends: dict[str, Configuration] = {}
    renamed = set()
    for key, mode in CONFIGURED.items():
        section = (content.get("sharing") or {}).get(key) or {}
        by_default = SHARED_SUFFIX if section.get("renameByDefault") else ""
        for entry in section.get("resources") or []:
            slices, lent_as = int(entry.get("replicas", 1)), entry.get("rename") or entry["name"] + by_default
            if slices > 1:  # one slice is no sharing, to the plugin either
                lends[lent_as] = Configuration(name, mode, slices, single, lent_as)
                renamed |= {entry["name"]} - {lent_as}
    if resource in lends:
        return lends[resource]
    if resource in renamed or resource.endswith(SHARED_SUFFIX):
        return next(iter(lends.values()), None)
    return Configuration(name, WHOLE.sharing, 1, single, resource)


def read(find: Callable[[str], Object | None], spec: KubernetesSpec) -> list[Configuration]:
    """The configurations of which something can be told, by name. Raises ClusterError, BackendError where there is no ConfigMap."""
    namespace, _, key = (spec.device_plugin_configs or "").partition("/")
    config_map = find(f"/api/v1/namespaces/{namespace}/configmaps/{key}")
    if config_map is None:
        raise BackendError(
            f"there is no ConfigMap {spec.device_plugin_configs}.",
            advice="Name the one that the device plugin's config manager reads in `kubernetes.device_plugin_configs`.",
        )
    texts = config_map.get("data") or {}
    parsed = (configuration(name, str(texts[name]), str(spec.gpu_resource)) for name in sorted(texts))
    return [entry for entry in parsed if entry is not None]


def choose(
    configurations: Sequence[Configuration],
    experiment: ExperimentSpec,
    gpus: Collection[int | None],
    spec: KubernetesSpec,
) -> Configuration:
    """The configuration for an experiment, its neighbours included, on nodes with so many GPUs; None where it cannot be told.

    Time-sliced replicas are the same with any number of slices, so that the largest serves all of a campaign. A client
    of MPS gets its slice's share of processors and memory: the smallest number that is enough. Raises BackendError.
    """
    needed, sharing = experiment.cell.processes, experiment.sharing
    ours = [entry for entry in configurations if entry.resource == spec.gpu_resource and entry.gives(sharing)]

    def room(entry: Configuration) -> float:  # without bound where only the nodes can tell
        lent = map(entry.lent, gpus)
        return sum(math.inf if count is None else count // spec.gpus_per_replica for count in lent)

    fit = [entry for entry in (replace(entry, mode=sharing) for entry in ours) if room(entry) >= needed]
    if not fit:
        have = ", ".join(entry.in_words(spec) for entry in configurations) or "none"
        raise BackendError(
            f"no configuration of {spec.device_plugin_configs} gives {counted(needed, 'replica')} a GPU by "
            f"{sharing.value}; it has: {have}.",
            advice="Add one to the ConfigMap (docs/cluster.md has an example), or use fewer replicas.",
        )
    best = max if mode_of(sharing).takes_turns else min
    slices = best(entry.slices for entry in fit)
    # One that leaves GPUs whole by itself comes first.
    return min((entry for entry in fit if entry.slices == slices), key=lambda entry: entry.single)
