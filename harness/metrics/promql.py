"""How one Prometheus names things: the catalogue's PromQL for a cluster or one machine, and where a deployment's metrics are."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from string import Template
from typing import TYPE_CHECKING, Any, Self

from pydantic import TypeAdapter, ValidationError

from harness.errors import NoDataError, PrometheusError, UsageError
from harness.metrics.catalogue import CATALOGUE, Metric
from harness.metrics.promql_math import range_ms
from harness.spec.kubernetes import PrometheusLabels

if TYPE_CHECKING:
    from harness.metrics.prometheus.client import PrometheusServer

GPU_UUID = "UUID"
"""Label of the DCGM exporter."""
_LABELS = PrometheusLabels()
_SPECIAL = re.compile(r"[.\\+*?^$|()\[\]{}]")


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one Prometheus names things.

    Attributes:
        by: label whose value tells replicas apart.
        containers: matchers of the replicas' CPU and memory; never empty.
        node_label: label that tells nodes apart on the nodes' metrics; empty: there is one node.
        gpu_node_label: the same on the devices' metrics; empty: every device is on one node.
        container_age_steps: how many steps old a sample of these two may be: a kubelet measures containers by a jittering
            clock of its own, so that two scrapes in time can bring samples nearly two steps apart.
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
class ReplicaGroup:
    """The replicas of one workload (empty: the measured one), which are pooled with each other, and with nobody else.

    ``replicas``: label values, in the order of ``replica-0``...; None: those that the server has, sorted.
    """

    workload: str
    dialect: Dialect
    replicas: Sequence[str] | None


def cluster(
    namespace: str,
    pods: str,
    *,
    nodes: Sequence[str] = (),
    gpus: str = "",
    node: str = "",
    labels: PrometheusLabels = _LABELS,
    container: str = "",
) -> Dialect:
    """A Kubernetes cluster: pods whose names match the regular expression ``pods``, and their nodes, each with series of its own.

    Sums over containers leave out the pod's own cgroup and the pause container, which would count everything twice.

    Args:
        nodes: only these nodes and their devices; none: all. ``gpus`` and ``node``: further matchers of their metrics.
        container: whose processors and memory count; empty: all of a pod.
    """
    replicas = f"namespace={quote(namespace)},{labels.pod}=~{quote(pods)}"
    which = f"container={quote(container)}" if container else 'container!="",container!="POD"'
    return Dialect(
        by=labels.pod,
        replicas=replicas,
        containers=f"{replicas},{which}",
        gpus=_among(labels.gpu_node, nodes, gpus),
        node=_among(labels.node, nodes, node),
        node_label=labels.node,
        gpu_node_label=labels.gpu_node,
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
    """PromQL of one metric; ``bounds``: values of ``le`` to read, as the server spells them, none: every bucket.

    ``merge``: add up the buckets of one replica's series; not needed where each replica has one series, and slow.
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
    matcher = f"{label}=~{quote(one_of(values))}" if values else ""
    return ",".join(filter(None, (matcher, more)))


def one_of(values: Sequence[str]) -> str:
    """A regular expression that matches exactly one of the values."""
    return "|".join(_SPECIAL.sub(r"\\\g<0>", value) for value in values)


def quote(text: str) -> str:
    """A PromQL string literal."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


@dataclass(frozen=True, slots=True)
class PrometheusSource:
    """Pods of a cluster, in the order of ``replica-0``, ``replica-1``..., and the Prometheus that scrapes them.

    Attributes:
        nodes: names of the nodes that they ran on, each once; empty: every node that the server knows.
        gpus: UUIDs of the devices that the replicas are on; empty: every device of the nodes.
        gpus_why: why it is every device of the nodes; empty when it is not.
        container: whose processors and memory are the replica's; empty: all containers' of its pod.
        neighbours: pods that ran beside these, by their workload.
    """

    url: str
    namespace: str
    pods: tuple[str, ...]
    nodes: tuple[str, ...] = ()
    labels: PrometheusLabels = _LABELS
    gpus: tuple[str, ...] = ()
    gpus_why: str = ""
    container: str = ""
    neighbours: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def on_gpus(self) -> bool:
        """Whether the replicas had GPUs, of which each is named or every one of the nodes is recorded."""
        return bool(self.gpus or self.gpus_why)

    def dialect(self) -> Dialect:
        """The dialect that selects exactly these pods, nodes and devices."""
        gpus = f"{GPU_UUID}=~{quote(one_of(self.gpus))}" if self.gpus else ""
        return cluster(
            self.namespace, one_of(self.pods), nodes=self.nodes, gpus=gpus, labels=self.labels, container=self.container
        )

    def neighbour_replicas(self) -> list[ReplicaGroup]:
        """The neighbours, each selected by its pods alone."""
        return [
            ReplicaGroup(workload, cluster(self.namespace, one_of(pods), labels=self.labels), pods)
            for workload, pods in self.neighbours.items()
        ]

    def with_gpus(self, server: PrometheusServer, uuids: Sequence[str]) -> Self:
        """The same with the devices of the replicas alone, where each says its own and the server knows them all."""
        why = "" if uuids and all(uuids) else "not every replica says which GPU it is on"
        wanted = dataclasses.replace(self, gpus=tuple(dict.fromkeys(uuids)), gpus_why="")
        if not why:
            try:
                selector = render(CATALOGUE["gpu_utilization"], wanted.dialect(), 1.0).raw
                known = {series.labels.get(GPU_UUID) for series in server.query(selector).series}
                why = next((f"Prometheus does not know {uuid}" for uuid in wanted.gpus if uuid not in known), "")
            except (NoDataError, PrometheusError) as error:
                why = error.message
        return dataclasses.replace(self, gpus_why=f"every GPU of the nodes is recorded: {why}") if why else wanted

    def hottest_celsius(self, server: PrometheusServer) -> float:
        """Temperature of the hottest of the devices now; infinite where nobody tells."""
        try:
            answer = server.query(render(CATALOGUE["gpu_temperature"], self.dialect(), 1.0).each)
        except (NoDataError, PrometheusError):
            return math.inf
        return max(float(series.values[-1]) for series in answer.series)

    def to_dict(self) -> dict[str, Any]:
        """As plain data for a file, without the password of an address."""
        hidden = {"url": without_password(self.url), "labels": self.labels.model_dump()}
        return dataclasses.asdict(self) | hidden

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """What ``to_dict`` gave, today or in an older version. Raises UsageError on anything else."""
        try:
            return TypeAdapter(cls).validate_python(data)
        except ValidationError as error:
            raise UsageError(
                f"This does not say where metrics were collected: {error.errors()[0]['loc']}: {error.errors()[0]['msg']}.",
                advice="Give --prometheus, --start and --namespace instead.",
            ) from error


def without_password(url: str) -> str:
    """The address as it may be shown: without the name and password of ``http://name:password@host``."""
    head, scheme, rest = url.rpartition("://")
    authority, slash, path = rest.partition("/")
    return f"{head}{scheme}{authority.rpartition('@')[2]}{slash}{path}"
