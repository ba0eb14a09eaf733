"""Where the metrics of one deployment are: enough to collect the same window again later."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from harness.errors import NoDataError, PrometheusError, UsageError
from harness.metrics.catalogue import CATALOGUE
from harness.metrics.prometheus.adapter import Queryable, without_password
from harness.metrics.promql import Beside, Dialect, Labels, cluster, one_of, quote, render

GPU_UUID = "UUID"
"""Label of the DCGM exporter."""


@dataclass(frozen=True, slots=True)
class PrometheusSource:
    """Pods of a cluster and the Prometheus that scrapes them.

    Attributes:
        pods: their names, in the order of ``replica-0``, ``replica-1``...
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
    labels: Labels = field(default_factory=Labels)
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

    def beside(self) -> list[Beside]:
        """The neighbours, each selected by its pods alone."""
        return [
            Beside(workload, cluster(self.namespace, one_of(pods), labels=self.labels), pods)
            for workload, pods in self.neighbours.items()
        ]

    def with_gpus(self, server: Queryable, uuids: Sequence[str]) -> Self:
        """The same with the devices of the replicas alone, where each says its own and the server knows them all."""
        why = "" if uuids and all(uuids) else "not every replica says which GPU it is on"
        wanted = dataclasses.replace(self, gpus=tuple(dict.fromkeys(uuids)), gpus_why="")
        if not why:
            try:
                selector = render(CATALOGUE["gpu_utilization"], wanted.dialect(), 1.0).raw
                seen = {one.labels.get(GPU_UUID) for one in server.query(selector).series}
                why = next((f"Prometheus does not know {uuid}" for uuid in wanted.gpus if uuid not in seen), "")
            except (NoDataError, PrometheusError) as error:
                why = error.message
        return dataclasses.replace(self, gpus_why=f"every GPU of the nodes is recorded: {why}") if why else wanted

    def hottest_celsius(self, server: Queryable) -> float:
        """Temperature of the hottest of the devices now; infinite where nobody tells."""
        try:
            found = server.query(render(CATALOGUE["gpu_temperature"], self.dialect(), 1.0).raw).series
        except (NoDataError, PrometheusError):
            return math.inf
        return max(float(one.values[-1]) for one in found)

    def to_dict(self) -> dict[str, Any]:
        """As plain data for a file, without the password of an address."""
        return dataclasses.asdict(self) | {"url": without_password(self.url)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """What ``to_dict`` gave. Raises UsageError on anything else."""
        try:
            return cls(
                url=str(data["url"]),
                namespace=str(data["namespace"]),
                pods=tuple(map(str, data["pods"])),
                nodes=tuple(map(str, data["nodes"])),
                labels=Labels(**data["labels"]),
                gpus=tuple(map(str, data.get("gpus", ()))),  # older files have none
                gpus_why=str(data.get("gpus_why", "")),
                container=str(data.get("container", "")),
                neighbours={str(name): tuple(map(str, pods)) for name, pods in data.get("neighbours", {}).items()},
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise UsageError(
                f"This does not say where metrics were collected: {error}.",
                advice="Give --prometheus, --start and --namespace instead.",
            ) from error
