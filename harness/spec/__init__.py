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
from harness.spec.scenario import Arrivals, ScenarioKind, ScenarioSpec
from harness.spec.sharing import MpsSpec, Sharing
from harness.spec.stopping import KnownMetric, StopWhenKnown
from harness.spec.stress import Percentile, StressLoad, StressSpec
from harness.spec.workload import Device, Execution, Precision, WorkloadSpec

__all__ = [
    "Arrivals",
    "CampaignSpec",
    "CellSpec",
    "ConditionSpec",
    "Device",
    "Execution",
    "ExperimentSpec",
    "GrafanaCost",
    "KnownMetric",
    "KubernetesSpec",
    "LayerSpec",
    "Limits",
    "MetricSelection",
    "MpsSpec",
    "NeighbourSpec",
    "OnReplicaDeath",
    "Order",
    "Percentile",
    "Precision",
    "PrometheusLabels",
    "PullPolicy",
    "ScenarioKind",
    "ScenarioSpec",
    "Sharing",
    "StopWhenKnown",
    "StressLoad",
    "StressSpec",
    "Timing",
    "Toleration",
    "WorkloadKind",
    "WorkloadSpec",
]
