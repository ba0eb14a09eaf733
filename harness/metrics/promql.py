"""Fills the catalogue's PromQL templates for one place: a cluster, or replicas on one machine."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from string import Template

from harness.metrics.catalogue import Metric
from harness.metrics.promql_math import range_ms

_SPECIAL = re.compile(r"[.\\+*?^$|()\[\]{}]")


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one Prometheus names things.

    Attributes:
        by: label whose value tells replicas apart.
        containers: matchers of the replicas' CPU and memory; never empty.
        node_label: label that tells nodes apart on the nodes' metrics; empty: there is one node.
        gpu_node_label: the same on the devices' metrics; empty: every device is on one node.
        container_age_steps: how many steps old a sample of these two may be. A kubelet measures containers by a jittering
            clock of its own and its samples keep that time, so that two scrapes in time can bring samples nearly two
            steps apart.
    """

    by: str
    replicas: str
    containers: str
    gpus: str = ""
    node: str = ""
    node_label: str = ""
    gpu_node_label: str = ""
    cpu_seconds: str = "container_cpu_usage_seconds_total"
    memory_bytes: str = "container_memory_working_set_bytes"
    container_age_steps: int = 1


@dataclass(frozen=True, slots=True)
class Labels:
    """Names of the labels by which a cluster's Prometheus tells things apart.

    Attributes:
        pod: of a replica's own metrics and of its containers'.
        node: of the nodes' metrics: the Kubernetes node name.
        gpu_node: the same on the devices' metrics, e.g. ``Hostname`` where DCGM's own label is all there is.
    """

    pod: str = "pod"
    node: str = "node"
    gpu_node: str = "node"


@dataclass(frozen=True, slots=True)
class Beside:
    """A neighbour's replicas, whose figures are of their own: they are pooled with each other, and with nobody else.

    Attributes:
        workload: what they run; it begins the names of their series.
        replicas: label values, in the order of ``<workload>/replica-0``...
    """

    workload: str
    dialect: Dialect
    replicas: tuple[str, ...]


def cluster(
    namespace: str,
    pods: str,
    *,
    nodes: Sequence[str] = (),
    gpus: str = "",
    node: str = "",
    labels: Labels | None = None,
    container: str = "",
) -> Dialect:
    """A Kubernetes cluster: pods whose names match the regular expression ``pods``.

    Sums over containers leave out the pod's own cgroup and the pause container, which would count
    everything twice. Nodes are never mixed: each has series of its own.

    Args:
        nodes: only these nodes and their devices; none: all.
        gpus: further matchers of the devices' metrics.
        node: further matchers of the nodes' metrics.
        container: whose processors and memory count; empty: all of a pod.
    """
    names = labels or Labels()
    replicas = f"namespace={quote(namespace)},{names.pod}=~{quote(pods)}"
    return Dialect(
        by=names.pod,
        replicas=replicas,
        containers=f"{replicas},container={quote(container)}"
        if container
        else f'{replicas},container!="",container!="POD"',
        gpus=_among(names.gpu_node, nodes, gpus),
        node=_among(names.node, nodes, node),
        node_label=names.node,
        gpu_node_label=names.gpu_node,
        container_age_steps=2,
    )


def local(job: str, *, by: str = "replica", gpus: str = "", node: str = "") -> Dialect:
    """Replicas scraped on one machine under one job; CPU and memory are what each process says of itself."""
    replicas = f"job={quote(job)}"
    return Dialect(
        by=by,
        replicas=replicas,
        containers=replicas,
        gpus=gpus,
        node=node,
        cpu_seconds="process_cpu_seconds_total",
        memory_bytes="process_resident_memory_bytes",
    )


@dataclass(frozen=True, slots=True)
class Queries:
    """PromQL of one metric: one series each, the pool of them, and the selector of the raw samples."""

    each: str
    pooled: str
    raw: str


def render(
    metric: Metric, dialect: Dialect, window_s: float, *, bounds: Sequence[str] = (), merge: bool = True
) -> Queries:
    """PromQL of one metric.

    Args:
        bounds: values of ``le`` to read, as the server spells them; none: every bucket.
        merge: add up the buckets of one replica's series; not needed where each replica has one series, and slow.
    """
    alternatives = "|".join(bound.replace(".", "\\.").replace("+", "\\+") for bound in bounds)
    values = {
        "by": dialect.by,
        "replicas": dialect.replicas,
        "containers": dialect.containers,
        "gpus": dialect.gpus,
        "node": dialect.node,
        "device": f"{dialect.gpu_node_label}, gpu" if dialect.gpu_node_label else "gpu",
        "per_node": f"max by ({dialect.node_label}) " if dialect.node_label else "",
        "cpu_seconds": dialect.cpu_seconds,
        "memory_bytes": dialect.memory_bytes,
        "window": f"{range_ms(window_s)}ms",
        "buckets": f",le=~{quote(alternatives)}" if bounds else "",
        "merge": f"sum by ({dialect.by}, le) " if merge else "",
    }
    return Queries(
        each=Template(metric.promql).substitute(values),
        pooled=Template(metric.promql_pooled).substitute(values),
        raw=Template(metric.promql_raw).substitute(values),
    )


def _among(label: str, values: Sequence[str], more: str) -> str:
    """Matchers: ``label`` is one of ``values``, where there are any, and ``more``."""
    if not values:
        return more
    matcher = f"{label}=~{quote(one_of(values))}"
    return f"{matcher},{more}" if more else matcher


def one_of(values: Sequence[str]) -> str:
    """A regular expression that matches exactly one of the values."""
    return "|".join(_SPECIAL.sub(r"\\\g<0>", value) for value in values)


def quote(text: str) -> str:
    """A PromQL string literal."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
