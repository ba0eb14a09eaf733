"""NVIDIA's device plugin with its config manager and feature discovery on one node of the fake cluster.

It heeds the node's label at a later reading of the node, never at the next one, as a real one takes its time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.support.fake_cluster import FakeCluster
from tests.support.fake_cluster_store import Target

LABEL = "nvidia.com/device-plugin.config"
GPU = "nvidia.com/gpu"
NODES = Target("api/v1", "", "nodes")
PODS = Target("api/v1", "gpu", "pods")
CONFIGS = {
    "whole": {"version": "v1"},
    "sliced-4": {"version": "v1", "sharing": {"timeSlicing": {"resources": [{"name": GPU, "replicas": 4}]}}},
    "sliced-8": {"version": "v1", "sharing": {"timeSlicing": {"resources": [{"name": GPU, "replicas": 8}]}}},
    "mps-2": {"version": "v1", "sharing": {"mps": {"resources": [{"name": GPU, "replicas": 2}]}}},
    "mps-8": {"version": "v1", "sharing": {"mps": {"resources": [{"name": GPU, "replicas": 8}]}}},
    "divided": {"version": "v1", "flags": {"migStrategy": "single"}},
}


def slices(name: str) -> int:
    """Slices of a GPU under one of the configurations."""
    shared = CONFIGS[name].get("sharing") or {}
    return max((one["replicas"] for each in shared.values() for one in each["resources"]), default=1)


def mode(name: str) -> str:
    """As feature discovery labels it."""
    return {"sliced": "time-slicing", "mps": "mps"}.get(name.partition("-")[0], "none")


@dataclass
class DevicePlugin:
    """Set it as ``before`` of the cluster.

    Attributes:
        gpus: of the node.
        discovery: whether feature discovery labels the node.
        daemon: whether an MPS control daemon becomes ready when one is wanted.
        deaf: configurations that it never comes to lend by.
        looks: readings of the node until it heeds a new label.
        applied: configurations in the order in which it lent by them.
    """

    cluster: FakeCluster
    node: str = "n1"
    gpus: int = 1
    discovery: bool = True
    daemon: bool = True
    deaf: frozenset[str] = frozenset()
    looks: int = 3
    applied: list[str] = field(default_factory=lambda: ["sliced-4"])
    _seen: int = 0

    def __post_init__(self) -> None:
        node = {"metadata": {"labels": {"nvidia.com/gpu.count": str(self.gpus)}}, "spec": {}}
        self.cluster.store.create(NODES, node | {"metadata": {"name": self.node, **node["metadata"]}})
        container = {"name": "sidecar", "env": [{"name": "NODE_LABEL", "value": LABEL}]}
        self.pod("plugin", container)
        self._lend("sliced-4")

    @property
    def at(self) -> Target:
        """The node."""
        return NODES.named(self.node)

    @property
    def labels(self) -> dict[str, str]:
        """Of the node."""
        return self.cluster.store.get(self.at)["metadata"]["labels"]

    def pod(self, name: str, container: dict[str, Any]) -> None:
        """Put a ready pod onto the node."""
        spec = {"nodeName": self.node, "containers": [container]}
        self.cluster.store.create(PODS, {"metadata": {"name": name, "namespace": "gpu"}, "spec": spec})
        ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        status = Target("api/v1", "gpu", "pods", name, "status")
        self.cluster.store.merge(status, {"status": ready})

    def __call__(self, verb: str, target: Target) -> None:
        if verb != "get" or target != self.at:
            return
        wanted = self.labels.get(LABEL, "sliced-4")
        if wanted == self.applied[-1] or wanted in self.deaf:
            return
        self._seen += 1
        if self._seen >= self.looks:
            self._seen = 0
            self.applied.append(wanted)
            self._lend(wanted)

    def _lend(self, name: str) -> None:
        store = self.cluster.store
        instances = 7 * self.gpus if name == "divided" else self.gpus
        status = {
            "conditions": [{"type": "Ready", "status": "True"}],
            "capacity": {GPU: str(instances * slices(name))},
            "allocatable": {GPU: str(instances * slices(name))},
        }
        store.merge(Target("api/v1", "", "nodes", self.node, "status"), {"status": status})
        if self.discovery:
            divided = "single" if name == "divided" else "none"
            instance = "1" if name == "divided" else None
            told = {"nvidia.com/gpu.sharing-strategy": mode(name), "nvidia.com/mig.strategy": divided}
            told["nvidia.com/gpu.slices.gi"] = instance
            store.merge(self.at, {"metadata": {"labels": told | {"nvidia.com/gpu.count": str(instances)}}})
        there = any(one["metadata"]["name"] == "mps-daemon" for one in store.listing(PODS, {})["items"])
        if mode(name) == "mps" and self.daemon and not there:
            self.pod("mps-daemon", {"name": "mps-control-daemon-ctr"})
        elif mode(name) != "mps" and there:
            store.delete(PODS.named("mps-daemon"), {"gracePeriodSeconds": 0})
