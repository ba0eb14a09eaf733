"""The campaign file: what to run, how long, and within which limits."""

from harness.spec.campaign import (
    CampaignSpec,
    CellSpec,
    ExperimentSpec,
    Limits,
    MetricSelection,
    OnReplicaDeath,
    Order,
    Timing,
)
from harness.spec.condition import ConditionSpec, LayerSpec, NeighbourSpec
from harness.spec.kubernetes import GrafanaCost, KubernetesSpec, PrometheusLabels, PullPolicy, Toleration, WorkloadKind
from harness.spec.sharing import MpsSpec, Sharing
from harness.spec.workload import Device, Execution, Precision, WorkloadSpec

__all__ = [
    "CampaignSpec",
    "CellSpec",
    "ConditionSpec",
    "Device",
    "Execution",
    "ExperimentSpec",
    "GrafanaCost",
    "KubernetesSpec",
    "LayerSpec",
    "Limits",
    "MetricSelection",
    "MpsSpec",
    "NeighbourSpec",
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
