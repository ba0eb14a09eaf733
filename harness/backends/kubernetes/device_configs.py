"""The configurations of NVIDIA's device plugin that a cluster has ready: which modes, with how many slices."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from harness.backends.kubernetes.api import Api
from harness.errors import BackendError, counted
from harness.spec import ExperimentSpec, KubernetesSpec, Sharing
from harness.spec.sharing import DIVIDED, WHOLE

CONFIG_LABEL = "nvidia.com/device-plugin.config"
MPS_LABEL = "nvidia.com/mps.capable"
"""Where it is "true", the DaemonSet of the MPS control daemon places one."""
MIG_CONFIG_LABEL = "nvidia.com/mig.config"
MIG_STATE_LABEL = "nvidia.com/mig.config.state"
UNDIVIDED = "all-disabled"
"""What the MIG manager calls whole GPUs."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """One way to lend GPUs.

    Attributes:
        name: key in the ConfigMap, and value of the nodes' label.
        slices: that each GPU, or MIG instance, is lent as.
    """

    name: str
    mode: Sharing
    slices: int

    def lent(self, gpus: int | None) -> int | None:
        """What a node with so many GPUs lends; None where only the node knows: MIG instances."""
        return None if self.mode.traits.instances or gpus is None else gpus * self.slices


def path(spec: KubernetesSpec) -> str:
    """Path of the ConfigMap."""
    namespace, _, name = (spec.device_plugin_configs or "").partition("/")
    return f"/api/v1/namespaces/{namespace}/configmaps/{name}"


def read(api: Api, spec: KubernetesSpec) -> list[Configuration]:
    """The configurations whose mode can be told, by name. Raises ClusterError, BackendError where there is no ConfigMap."""
    found = api.find(path(spec))
    if found is None:
        raise BackendError(
            f"there is no ConfigMap {spec.device_plugin_configs}.",
            advice="Name the one that the device plugin's config manager reads in `kubernetes.device_plugin_configs`.",
        )
    texts = found.get("data") or {}
    read = (_configuration(name, str(texts[name]), spec.gpu_resource) for name in sorted(texts))
    return [one for one in read if one is not None]


def choose(
    found: Sequence[Configuration], experiment: ExperimentSpec, gpus: Collection[int | None], spec: KubernetesSpec
) -> Configuration:
    """The configuration for an experiment.

    Time-sliced replicas are the same with any number of slices, so that the largest serves all of a campaign. A client
    of MPS gets its slice's share of processors and memory: the smallest number that is enough.

    Args:
        found: what there is.
        experiment: its mode and its number of replicas, the neighbours' among them.
        gpus: of each node; None where it cannot be told.
        spec: how many slices a replica asks for.

    Raises:
        BackendError: there is none; the message names those that there are.
    """
    fit = [
        one for one in found if one.mode is experiment.sharing and _room(one, gpus, spec) >= experiment.cell.processes
    ]
    if not fit:
        have = ", ".join(f"{one.name} ({one.mode.value}, {one.slices} a GPU)" for one in found) or "none"
        raise BackendError(
            f"no configuration of {spec.device_plugin_configs} gives {counted(experiment.cell.processes, 'replica')} a GPU by "
            f"{experiment.sharing.value}; it has: {have}.",
            advice="Add one to the ConfigMap (docs/cluster.md has an example), or use fewer replicas.",
        )
    return (max if experiment.sharing.traits.turns else min)(fit, key=lambda one: one.slices)


def labels(wanted: Configuration, spec: KubernetesSpec) -> dict[str, str]:
    """The labels of a node under a configuration."""
    mps = {MPS_LABEL: "true" if wanted.mode.traits.daemon else "false"}
    divided = (
        {MIG_CONFIG_LABEL: spec.mig_config if wanted.mode.traits.instances else UNDIVIDED} if spec.mig_config else {}
    )
    return {CONFIG_LABEL: wanted.name, **mps, **divided}


def _room(one: Configuration, gpus: Collection[int | None], spec: KubernetesSpec) -> float:
    """Replicas that fit on all nodes; without bound where only the nodes can tell."""
    lent = [one.lent(count) for count in gpus]
    return sum(float("inf") if count is None else count // spec.gpus_per_replica for count in lent)


def _configuration(name: str, text: str, resource: str) -> Configuration | None:
    """What a text of the plugin's format sets up; None for one that is of no use here."""
    try:
        return _parsed(name, yaml.safe_load(text), resource)
    except (yaml.YAMLError, AttributeError, LookupError, TypeError, ValueError):
        return None  # nothing of the plugin's: a ConfigMap may hold other things


def _parsed(name: str, found: Mapping[str, Any], resource: str) -> Configuration | None:
    if not found["version"]:
        return None
    shared = found.get("sharing") or {}
    divided = str((found.get("flags") or {}).get("migStrategy") or "none") != "none"
    for mode in reversed(Sharing):
        section = shared.get(mode.traits.plugin) or {}
        replicas = [
            int(one.get("replicas", 1)) for one in section.get("resources") or [] if one.get("name") == resource
        ]
        if not replicas or max(replicas) < 2:
            continue  # one slice is no sharing, to the plugin either
        renamed = section.get("renameByDefault") or any("rename" in one for one in section["resources"])
        return None if divided or renamed else Configuration(name, mode, replicas[0])
    return Configuration(name, DIVIDED if divided else WHOLE, 1)
