"""One cell of the matrix of a campaign."""

from __future__ import annotations

from typing import NamedTuple

from harness.spec.condition import ConditionSpec
from harness.spec.sharing import MpsLimits, Sharing, TimeSlice, mode_in_words
from harness.spec.workload import WorkloadSpec


class CellSpec(NamedTuple):
    """One cell of the matrix: what is measured, under which condition, limits of MPS and time slice; None where the campaign names none."""

    workload: WorkloadSpec
    sharing: Sharing
    replicas: int
    condition: ConditionSpec | None = None
    mps: MpsLimits | None = None
    turns: TimeSlice | None = None

    def experiment_id(self, repeat: int) -> str:
        """Folder name of one of its repeats, e.g. ``resnet50_r3_time-slicing_rep1``; with limits of MPS or the time slice, and condition, before ``rep``."""
        limits = self.mps.identity if self.mps else ""
        names = [
            self.workload.name,
            f"r{self.replicas}",
            self.sharing.value,
            limits,
            self.turns.interval.value if self.turns and self.turns.swept else "",
            self.condition_name,
            f"rep{repeat}",
        ]
        return "_".join(filter(None, names))

    @property
    def condition_name(self) -> str:
        """Name of the condition; empty where the campaign names none."""
        return self.condition.name if self.condition else ""

    @property
    def mps_limits(self) -> str:
        """What MPS allows each replica, in a few words; empty where it sets no limit."""
        return self.mps.label if self.mps else ""

    @property
    def time_slice(self) -> str:
        """How long a process has the GPU before the next one; empty where the campaign does not say."""
        return self.turns.interval.value if self.turns else ""

    @property
    def mode(self) -> str:
        """The sharing mode with either, e.g. ``mps (1/N)``."""
        return mode_in_words(self.sharing.value, self.mps_limits, self.time_slice)

    @property
    def processes(self) -> int:
        """Replicas that share the machine, the neighbours' among them."""
        return self.replicas + (self.condition.neighbour_replicas if self.condition else 0)
