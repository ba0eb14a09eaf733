"""Every Kubernetes object that this project makes, rendered in each of its shapes.

Whoever adds a template adds it here, or the policy test says that it is missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from harness.backends.kubernetes.objects import load_pods, workload
from harness.spec.kubernetes import KubernetesSpec, WorkloadKind
from harness.spec.sharing import Sharing
from tests.support.experiments import experiment
from tests.support.monitoring import manifest
from tests.unit.ansible.tree import TEMPLATE_FILES, variables

Object = dict[str, Any]

CONFIGURATION = {
    *("kubeadm-init.yaml.j2", "kubeadm-join.yaml.j2", "kubelet-housekeeping.yaml.j2", "kubelet-serving.yaml.j2"),
    *("prometheus-config.yml.j2", "recording.yml.j2"),
    *("admission.yaml.j2", "audit-policy.yaml.j2", "authentication.yaml.j2", "encryption.yaml.j2"),
}
"""Read by programs, not by the API server."""

GPU = {
    "gpu_nodes": {"controlplane": {"nvidia.com/gpu": 10}, "second.example": {"nvidia.com/mig-1g.5gb": 70}},
    "gpu_features": {"controlplane": {"nvidia.com/gpu.product": "NVIDIA-H200"}},
    "gpu_resources": ["nvidia.com/gpu"],
    "gpu_divisions": {},
    "gpu_smoke_id": "0123abcd",
}
ACCESS = {
    "access_namespace": "inference",
    "access_account": "gpu-sharing-harness",
    "access_replica_account": "replica",
    "access_monitoring_namespace": "monitoring",
    "access_prometheus": "prometheus:9090",
    "access_grafana": "grafana",
    "namespace_sources": ["192.0.2.10"],
}
SHAPES: dict[str, list[dict[str, Any]]] = {
    "device-plugin.yaml.j2": [
        {"device_plugin_sharing": sharing, "device_plugin_mig_strategy": mig}
        for sharing, mig in (
            *(("exclusive", strategy) for strategy in ("none", "single", "mixed")),
            *(("time-slicing", strategy) for strategy in ("none", "mixed")),
            ("mps", "none"),
        )
    ],
    "dra-driver.yaml.j2": [{}, {"dra_driver_features": []}],
    "cuda-smoke.yaml.j2": [
        {},
        {"__device_plugin_by_claims": True, "gpu_nodes": {"second.example": {"mig.nvidia.com": 1}}},
    ],
    "gpu/node-labels.yaml.j2": [{"device_plugin_sharing": sharing} for sharing in ("time-slicing", "mps")],
    "dcgm-exporter.yaml.j2": [
        {"dcgm_exporter_per_pod": per_pod, "dcgm_exporter_profiling": profiling}
        for per_pod in (False, True)
        for profiling in (False, True)
    ],
    "prometheus.yaml.j2": [
        {},
        {
            "prometheus_allowed_cidrs": ["192.0.2.0/24"],
            "prometheus_storage_class": "fast",
            "prometheus_admin_api": True,
        },
    ],
    "grafana.yaml.j2": [{}, {"grafana_allowed_cidrs": ["192.0.2.0/24"], "grafana_storage_class": "fast"}],
    "monitoring/service.yaml.j2": [
        {},
        {
            "service_name": "grafana",
            "service_port": 3000,
            "service_target": "https",
            "service_exposure": "nodeport",
            "service_node_port": 30030,
        },
    ],
}
REPLICAS = "workloads/replicas.yaml.j2"


def templates() -> list[str]:
    """Every template of objects."""
    return sorted(set(TEMPLATE_FILES) - CONFIGURATION)


def documents(name: str) -> list[Object]:
    """The objects of one template in all its shapes."""
    if name == REPLICAS:
        return list(_replicas())
    found = []
    for shape in SHAPES.get(name, [{}]):
        text = manifest(TEMPLATE_FILES[name], **{**GPU, **ACCESS, **shape})
        found += [one for one in yaml.load_all(text, yaml.CSafeLoader) if one]
    return found


def everything() -> Iterator[tuple[str, Object]]:
    """Template and object of every shape."""
    for name in templates():
        for one in documents(name):
            yield name, one


def _replicas() -> Iterator[Object]:
    """As the harness renders them: both kinds of workload, with and without a GPU, by claim, measured and beside, and their load."""
    for kind in WorkloadKind:
        for gpus in (0, 1):
            spec = KubernetesSpec(kind=kind, gpus_per_replica=gpus)
            measured = workload(experiment(), Path("attempt-1"), spec, "campaign-1")
            yield measured.body
            yield workload(experiment(), Path("noisy"), spec, "campaign-1", measured=measured).body
        for mode in (Sharing.EXCLUSIVE, Sharing.MPS):
            claimed = workload(
                experiment(sharing=mode), Path("a"), KubernetesSpec(kind=kind, sharing_by="dra"), "campaign-1"
            )
            yield claimed.body
            yield from (one.body for one in claimed.beside)
    stated = {"reserve": {"cpu": "500m"}, "limit": {"memory": "4Gi"}}
    yield workload(experiment(), Path("stated"), KubernetesSpec(**stated), "campaign-1").body
    yield load_pods(experiment(), Path("load"), KubernetesSpec(**stated), "campaign-1", plan="{}").body


def images_of_the_table() -> set[str]:
    """Every image that the table of versions names."""
    values = variables()
    calico = values["versions_calico"][values["calico_version"]]["images"]
    return {*values["versions"]["images"].values(), *calico.values()}
