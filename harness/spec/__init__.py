"""The campaign file: what to run, how long, and within which limits."""

from harness.spec.campaign import (
    CampaignSpec,
    ExperimentSpec,
    Limits,
    MetricSelection,
    OnReplicaDeath,
    Order,
    Timing,
)
from harness.spec.kubernetes import GrafanaCost, KubernetesSpec, PrometheusLabels, PullPolicy, Toleration, WorkloadKind
from harness.spec.sharing import MpsSpec, Sharing
from harness.spec.workload import Device, Execution, Precision, WorkloadSpec

__all__ = [
    "CampaignSpec",
    "Device",
    "Execution",
    "ExperimentSpec",
    "GrafanaCost",
    "KubernetesSpec",
    "Limits",
    "MetricSelection",
    "MpsSpec",
    "OnReplicaDeath",
    "Order",
    "Precision",
    "PrometheusLabels",
    "PullPolicy",
    "Sharing",
    "Timing",
    "Toleration",
    "WorkloadKind",
    "WorkloadSpec",
]
