"""What MPS can allow a replica on a cluster: the device plugin gives each slice its part of a GPU, and a client may only lower its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from harness.errors import Finding, Severity, counted
from harness.spec import ExperimentSpec, MpsLimits

Object = Mapping[str, Any]

REPLICAS_LABEL = "nvidia.com/gpu.replicas"
COUNT_LABEL = "nvidia.com/gpu.count"
MEMORY_LABEL = "nvidia.com/gpu.memory"
"""GPU feature discovery's: slices of each GPU, GPUs, MiB of one GPU."""
_ROUNDING = 1.005
"""The plugin gives whole percents."""


def slices(node: Object, configured: int | None, resource: str) -> int | None:
    """Slices that each GPU of a node is lent as: by the plugin's configuration, else as the node shows it; None: nobody tells."""
    labels, lent = node["metadata"].get("labels") or {}, (node.get("status") or {}).get("allocatable") or {}
    if configured is not None:
        return configured
    if str(labels.get(REPLICAS_LABEL, "")).isdigit():
        return int(labels[REPLICAS_LABEL])
    count = int(labels[COUNT_LABEL]) if str(labels.get(COUNT_LABEL, "")).isdigit() else 0
    return int(lent.get(resource, 0)) // count or None if count else None


def check(experiment: ExperimentSpec, nodes: Iterable[tuple[Object, int | None]]) -> Iterator[Finding]:
    """Whether a replica of an experiment can have what it asks for.

    Args:
        experiment: with its limits.
        nodes: that it may run on, each with the slices that a GPU is lent as; None: nobody tells.
    """
    if experiment.mps is not None and experiment.sharing.traits.daemon:
        for node, lent_as in nodes:
            yield from _check(experiment, experiment.mps, node, lent_as)


def _check(experiment: ExperimentSpec, limits: MpsLimits, node: Object, lent_as: int | None) -> Iterator[Finding]:
    name = node["metadata"]["name"]
    if not lent_as:
        message = (
            f"node {name} does not show how many slices a GPU has: that each has {limits.in_words()} is taken on trust."
        )
        yield Finding(Severity.WARNING, "sharing", message)
        return
    asked, most = limits.percentage(experiment.replicas_per_gpu) or 100.0, 100.0 / lent_as
    if asked > most * _ROUNDING:
        verb = "is" if experiment.replicas == 1 else "are"
        yield Finding(
            Severity.ERROR,
            "sharing",
            f"{counted(experiment.replicas, 'replica')} of {experiment.workload.name} {verb} to have {asked:g} % of a GPU's "
            "multiprocessors each, "
            f"and the device plugin gives each of {lent_as} slices of node {name} {most:g} %.",
            "A client of MPS can only lower its share: ask for less (`mps.share`), lend fewer slices, or leave `mps` out and take "
            "the plugin's part.",
        )
    memory = str((node["metadata"].get("labels") or {}).get(MEMORY_LABEL, ""))
    part_gb = int(memory) * 2**20 / 1e9 / lent_as if memory.isdigit() else None
    if limits.pinned_memory_gb is not None and part_gb is not None and limits.pinned_memory_gb > part_gb * _ROUNDING:
        yield Finding(
            Severity.ERROR,
            "sharing",
            f"`mps.pinned_memory_gb` of {limits.pinned_memory_gb:g} is more than the {part_gb:.3g} GB that the device plugin gives each "
            f"of {lent_as} slices of node {name}.",
            "A client of MPS can only lower its limit: ask for less, or lend fewer slices.",
        )
