"""Fills the catalogue's PromQL templates for one place: a cluster, or replicas on one machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from string import Template

from harness.metrics.catalogue import Metric
from harness.metrics.windows import range_ms


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one Prometheus names things.

    Attributes:
        by: label whose value tells replicas apart.
        replicas: matchers of the replicas' own metrics; never empty.
        containers: matchers of the replicas' CPU and memory; never empty.
        gpus: matchers of the devices' metrics.
        node: matchers of the node's metrics.
        cpu_seconds: counter of a replica's CPU seconds.
        memory_bytes: gauge of a replica's memory.
    """

    by: str
    replicas: str
    containers: str
    gpus: str = ""
    node: str = ""
    cpu_seconds: str = "container_cpu_usage_seconds_total"
    memory_bytes: str = "container_memory_working_set_bytes"


def cluster(namespace: str, pods: str, *, gpus: str = "", node: str = "") -> Dialect:
    """A Kubernetes cluster: pods whose names match the regular expression ``pods``.

    Sums over containers leave out the pod's own cgroup and the pause container, which would count
    everything twice.
    """
    replicas = f"namespace={quote(namespace)},pod=~{quote(pods)}"
    return Dialect(
        by="pod",
        replicas=replicas,
        containers=f'{replicas},container!="",container!="POD"',
        gpus=gpus,
        node=node,
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
        metric: of the catalogue.
        dialect: how this Prometheus names things.
        window_s: of rates and quantiles.
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


def quote(text: str) -> str:
    """A PromQL string literal."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
