"""The campaign file: what to run, how long, and within which limits."""

from harness.config.campaign import (
    CampaignSpec,
    ExperimentSpec,
    Limits,
    MetricSelection,
    OnReplicaDeath,
    Order,
)
from harness.config.cell import CellSpec
from harness.config.condition import ConditionSpec, LayerSpec, NeighbourSpec
from harness.config.kubernetes import (
    GrafanaCost,
    KubernetesSpec,
    PullPolicy,
    SharingBy,
    WorkloadKind,
)
from harness.config.pods import Toleration
from harness.config.prometheus import PrometheusLabels
from harness.config.scenario import Arrivals, ScenarioKind, ScenarioSpec
from harness.config.server import Protocol, ServerSpec
from harness.config.sharing import Interval, MpsLimits, MpsSpec, Sharing, TimeSlice
from harness.config.slo import SloSpec
from harness.config.stopping import FIRST_LOOK, MOST_REPEATS, KnownMetric, Repeats, StopWhenKnown, UntilKnown
from harness.config.stress import Percentile, StressLoad, StressSpec
from harness.config.timing import Timing
from harness.config.workload import Device, Execution, Precision, WorkloadSpec

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
