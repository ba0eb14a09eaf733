"""The campaign file and what a replica is told: what to run, how long, and within which limits.

Names are imported when they are first used: a replica takes a few of these modules, and starts the sooner.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.spec.campaign import CampaignSpec, Order
    from harness.spec.condition import ConditionSpec, LayerSpec, NeighbourSpec
    from harness.spec.experiment import CellSpec, ExperimentSpec, Limits, OnReplicaDeath
    from harness.spec.kubernetes import GrafanaCost, KubernetesSpec, SharingBy, WorkloadKind
    from harness.spec.pods import Toleration
    from harness.spec.scenario import ScenarioKind, ScenarioSpec
    from harness.spec.server import ServerSpec
    from harness.spec.sharing import MpsLimits, MpsSpec, Sharing
    from harness.spec.slo import SloSpec
    from harness.spec.stress import StressLoad, StressSpec
    from harness.spec.sweep import SweepSpec, SweptLoad
    from harness.spec.timing import FIRST_LOOK, MOST_REPEATS, Repeats, StopWhenKnown, Timing, UntilKnown
    from harness.spec.workload import Device, Execution, WorkloadSpec

__all__ = [
    "FIRST_LOOK", "MOST_REPEATS", "CampaignSpec", "CellSpec", "ConditionSpec", "Device", "Execution",
    "ExperimentSpec", "GrafanaCost", "KubernetesSpec", "LayerSpec", "Limits", "MpsLimits",
    "MpsSpec", "NeighbourSpec", "OnReplicaDeath", "Order", "Repeats", "ScenarioKind", "ScenarioSpec",
    "ServerSpec", "Sharing", "SharingBy", "SloSpec", "StopWhenKnown", "StressLoad", "StressSpec", "SweepSpec",
    "SweptLoad", "Timing", "Toleration", "UntilKnown", "WorkloadKind", "WorkloadSpec",
]  # fmt: skip

_MODULES = (
    *("workload", "server", "scenario", "timing", "slo", "sharing", "condition", "sweep", "experiment", "stress"),
    *("pods", "kubernetes", "campaign"),
)


def __getattr__(name: str) -> Any:
    """A name of ``__all__``, out of the module that has it."""
    if name in __all__:
        for module in _MODULES:
            loaded = vars(importlib.import_module(f"harness.spec.{module}"))
            if name in loaded:
                globals()[name] = loaded[name]
                return loaded[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
