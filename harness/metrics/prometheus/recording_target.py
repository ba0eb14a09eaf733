"""Where the metrics of one deployment are: enough to collect the same window again later."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from harness.errors import UsageError
from harness.metrics.promql import Dialect, Labels, cluster, one_of


@dataclass(frozen=True, slots=True)
class Origin:
    """Pods of a cluster and the Prometheus that scrapes them.

    Attributes:
        url: of the server, as the harness reached it.
        namespace: of the pods.
        pods: their names, in the order of ``replica-0``, ``replica-1``...
        nodes: names of the nodes that they ran on, each once; empty: every node that the server knows.
        labels: how this server names pods and nodes.
    """

    url: str
    namespace: str
    pods: tuple[str, ...]
    nodes: tuple[str, ...] = ()
    labels: Labels = field(default_factory=Labels)

    def dialect(self) -> Dialect:
        """The dialect that selects exactly these pods and nodes."""
        return cluster(self.namespace, one_of(self.pods), nodes=self.nodes, labels=self.labels)

    def to_dict(self) -> dict[str, Any]:
        """As plain data for a file."""
        return dataclasses.asdict(self)

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
            )
        except (KeyError, TypeError) as error:
            raise UsageError(
                f"This does not say where metrics were collected: {error}.",
                advice="Give --prometheus, --start and --namespace instead.",
            ) from error
