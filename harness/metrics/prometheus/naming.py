"""Which series of an answer is which series of ours: by labels, over one node or several.

One node keeps the short names (``node``, ``gpu-3`` for the device that the driver calls 3). Over several
nodes each has its own series ``node-<name>``, and ``node`` is their mean; devices are counted through,
``gpu-0``, ``gpu-1``..., node by node. What each name stands for is kept beside the rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from harness.metrics.catalogue import Level, Metric
from harness.metrics.prometheus.adapter import Series
from harness.metrics.prometheus.staleness import Key
from harness.metrics.promql import Dialect
from harness.metrics.rows import series_name

GPU_LABEL = "gpu"
ALL_NODES = "node"
_DIGITS = re.compile(r"(\d+)")
_TELLING = {Level.REPLICA: (), Level.DEVICE: ("UUID", "modelName"), Level.NODE: ("instance",)}
"""Labels beside the key that say what a series stands for."""


def key_labels(metric: Metric, dialect: Dialect) -> tuple[str, ...]:
    """The labels whose values tell this metric's series apart."""
    if metric.level is Level.REPLICA:
        return (dialect.by,)
    if metric.level is Level.DEVICE:
        return (dialect.gpu_node_label, GPU_LABEL) if dialect.gpu_node_label else (GPU_LABEL,)
    return (dialect.node_label,) if dialect.node_label else ()


def device_names(keys: Iterable[Key]) -> dict[Key, str]:
    """Series name of each device, by key, in order."""
    ordered = sorted(set(keys), key=natural)
    if len({key[:-1] for key in ordered}) <= 1:
        return {key: f"gpu-{key[-1]}" for key in ordered}
    return {key: f"gpu-{number}" for number, key in enumerate(ordered)}


def node_names(keys: Iterable[Key]) -> dict[Key, str]:
    """Series name of each node, by key, in order."""
    ordered = sorted(set(keys), key=natural)
    return {key: f"node-{''.join(key)}" if len(ordered) > 1 else ALL_NODES for key in ordered}


def replica_names(replicas: Sequence[str], neighbour: str = "") -> dict[Key, str]:
    """Series name of each replica, of the measured workload or of a neighbour, by key, in the order given."""
    return {(label,): series_name(f"replica-{index}", neighbour) for index, label in enumerate(replicas)}


def identity(metric: Metric, dialect: Dialect, labels: Mapping[str, str]) -> dict[str, str]:
    """What a series stands for: its key and the labels that say more, as far as the server has them."""
    names = (*key_labels(metric, dialect), *_TELLING[metric.level])
    return {name: labels[name] for name in names if labels.get(name)}


def mixed(metric: Metric, samples: Sequence[Series]) -> str:
    """Why samples with one key cannot be one thing: two things had it at the same time; empty when they can.

    Args:
        metric: of the catalogue.
        samples: raw samples with the same key. One thing after another is fine: an exporter that was restarted.
    """
    names = _TELLING[metric.level][:1]
    spans: dict[str, tuple[int, int]] = {}
    for one in samples:
        for name in names:
            thing = one.labels.get(name, "")
            first, last = spans.get(thing, (int(one.times_ms[0]), int(one.times_ms[-1])))
            spans[thing] = min(first, int(one.times_ms[0])), max(last, int(one.times_ms[-1]))
    ordered = sorted(spans.items(), key=lambda item: item[1])
    for (thing, (_, last)), (other, (first, _)) in pairwise(ordered):
        if first < last:
            return (
                f"Prometheus has one {metric.level.value} under two names at once ({names[0]} {thing} and {other}): "
                "narrow the selector, or give the label that tells nodes apart"
            )
    return ""


def natural(text: str | Key) -> list[tuple[int, str]]:
    """Sort key that puts ``pod-10`` after ``pod-9``."""
    joined = text if isinstance(text, str) else "\0".join(text)
    return [(int(part), "") if part.isdigit() else (-1, part) for part in _DIGITS.split(joined)]
