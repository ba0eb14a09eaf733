"""The campaign file: what to run, how long, and within which limits."""

from harness.spec.campaign import (
    CampaignSpec,
    ExperimentSpec,
    Limits,
    MetricSelection,
    OnReplicaDeath,
    Order,
)
from harness.spec.cell import CellSpec
from harness.spec.condition import ConditionSpec, LayerSpec, NeighbourSpec
from harness.spec.kubernetes import (
    GrafanaCost,
    KubernetesSpec,
    PullPolicy,
    SharingBy,
    WorkloadKind,
)
from harness.spec.pods import Toleration
from harness.spec.prometheus import PrometheusLabels
from harness.spec.scenario import Arrivals, ScenarioKind, ScenarioSpec
from harness.spec.server import Protocol, ServerSpec
from harness.spec.sharing import Interval, MpsLimits, MpsSpec, Sharing, TimeSlice
from harness.spec.slo import SloSpec
from harness.spec.stopping import FIRST_LOOK, MOST_REPEATS, KnownMetric, Repeats, StopWhenKnown, UntilKnown
from harness.spec.stress import Percentile, StressLoad, StressSpec
from harness.spec.timing import Timing
from harness.spec.workload import Device, Execution, Precision, WorkloadSpec

__all__ = [
    "FIRST_LOOK",
    "MOST_REPEATS",
    "Arrivals",
    "CampaignSpec",
    "CellSpec",
    "ConditionSpec",
    "Device",
    "Execution",
    "ExperimentSpec",
    "GrafanaCost",
    "Interval",
    "KnownMetric",
    "KubernetesSpec",
    "LayerSpec",
    "Limits",
    "MetricSelection",
    "MpsLimits",
    "MpsSpec",
    "NeighbourSpec",
    "OnReplicaDeath",
    "Order",
    "Percentile",
    "Precision",
    "PrometheusLabels",
    "Protocol",
    "PullPolicy",
    "Repeats",
    "ScenarioKind",
    "ScenarioSpec",
    "ServerSpec",
    "Sharing",
    "SharingBy",
    "SloSpec",
    "StopWhenKnown",
    "StressLoad",
    "StressSpec",
    "TimeSlice",
    "Timing",
    "Toleration",
    "UntilKnown",
    "WorkloadKind",
    "WorkloadSpec",
]
