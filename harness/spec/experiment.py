"""One cell of a campaign's matrix, and one experiment: a repeat of it with everything needed to run it."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

from pydantic import Field

from harness.spec.condition import ConditionSpec, NeighbourSpec
from harness.spec.model import Count, Positive, StrictModel, checked
from harness.spec.sharing import MpsLimits, Share, Sharing, TimeSlice, mode_in_words
from harness.spec.slo import SloSpec
from harness.spec.sweep import SweptLoad
from harness.spec.timing import Timing
from harness.spec.workload import WorkloadSpec

TRACE_S = 60.0
"""What a replica may take to trace its kernels, of which the profiler's start and the reading of the trace are the most."""
END_OF_REPLICA_S = 13.0
"""What a replica takes to end beside the server in it: 10 s of them for the last answers."""


class OnReplicaDeath(StrEnum):
    """What to do when a replica ends by itself in mid-experiment."""

    DEGRADE = "degrade"
    RETRY = "retry"


class Limits(StrictModel):
    """Limits of the campaign."""

    max_hours: Positive | None = Field(None, description="Refuse a plan that takes longer.")
    max_disk_gb: Positive | None = Field(None, description="Refuse a plan that writes more; null: the free disk space.")
    on_replica_death: OnReplicaDeath = Field(
        OnReplicaDeath.DEGRADE,
        description="When a replica dies: degrade (keep recording) or retry (start the run again).",
    )
    retries: int = Field(1, ge=0, le=10, description="How often a failed run is repeated.")
    wait_s: float = Field(
        3600.0,
        ge=0,
        le=30 * 86_400,
        description="Wait between runs for an absent Prometheus, API server, node, GPU or registry, then pause; 0 pauses at "
        "once.",
    )


class CellSpec(NamedTuple):
    """One cell of the matrix: what is measured, under which condition, limits of MPS, time slice and load; None where the campaign names none.

    The workload of a swept load has the load in its name, and its part of it.
    """

    workload: WorkloadSpec
    sharing: Sharing
    replicas: int
    condition: ConditionSpec | None = None
    mps: MpsLimits | None = None
    turns: TimeSlice | None = None
    load: SweptLoad | None = None

    def experiment_id(self, repeat: int) -> str:
        """Folder name of one of its repeats, e.g. ``resnet50_r3_time-slicing_rep1``; with limits of MPS or the time slice, and condition, before ``rep``."""
        return "_".join(self._names(repeat, self.sharing.value))

    def title(self, repeat: int, mode: str) -> str:
        """The same for people, with another word for the mode: ``resnet50 r3 CPU rep1``."""
        return " ".join(self._names(repeat, mode))

    def _names(self, repeat: int, mode: str) -> list[str]:
        names = [
            self.workload.name,
            f"r{self.replicas}",
            mode,
            self.mps.identity if self.mps else "",
            self.turns.interval if self.turns and self.turns.swept else "",
            self.condition_name,
            f"rep{repeat}",
        ]
        return [name for name in names if name]

    def whatever_load(self, repeat: int) -> str:
        """The same name of all cells that differ in their load alone."""
        workload = self.workload.model_copy(update={"name": self.workload.family})
        return self._replace(workload=workload).experiment_id(repeat)

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
        return self.turns.interval if self.turns else ""

    @property
    def mode(self) -> str:
        """The sharing mode with either, e.g. ``mps (1/N)``."""
        return mode_in_words(self.sharing.value, self.mps_limits, self.time_slice)

    @property
    def processes(self) -> int:
        """Replicas that share the machine, the neighbours' among them."""
        return self.replicas + (self.condition.neighbour_replicas if self.condition else 0)


class ExcludeSpec(StrictModel):
    """Configurations that are not run: those that match every field given here."""

    sharing: Sharing | None = Field(None, description="Sharing mode; null: any.")
    replicas: Count | None = Field(None, description="Number of replicas; null: any.")
    share: Share | None = Field(None, description="Share of the SMs under mps; null: any mode and share.")

    @checked
    def _says_something(self) -> Iterator[str]:
        if not self.differs("sharing", "replicas", "share"):
            yield "say at least one of `sharing`, `replicas` and `share`."

    def matches(self, cell: CellSpec) -> bool:
        """Whether a cell is one of them."""
        share = cell.mps.share if cell.mps else None
        pairs = ((self.sharing, cell.sharing), (self.replicas, cell.replicas), (self.share, share))
        return all(said in (None, its_own) for said, its_own in pairs)


class ExperimentSpec(StrictModel):
    """One cell of the matrix, with everything needed to run it."""

    workload: WorkloadSpec
    replicas: int
    sharing: Sharing
    gpus: int = 1
    mps: MpsLimits | None = None
    time_slice: TimeSlice | None = Field(None, description="None: the campaign does not say.")
    repeat: Count = Field(description="1-based.")
    timing: Timing
    metrics: list[str]
    limits: Limits
    condition: ConditionSpec | None = Field(None, description="None: the campaign names no conditions.")
    slo: SloSpec | None = Field(None, description="None: the campaign names no objective.")
    load: SweptLoad | None = Field(None, description="None: the campaign sweeps no load.")
    one_start: bool = Field(
        False, description="The other loads of its sweep are served by the same start of the replicas."
    )

    @property
    def start(self) -> str:
        """What starts its replicas: the experiment itself, or the repeat of a configuration, whatever its load."""
        return self.cell.whatever_load(self.repeat) if self.one_start else self.experiment_id

    @property
    def cell(self) -> CellSpec:
        """The cell that this is a repeat of."""
        setting = (self.condition, self.mps, self.time_slice, self.load)
        return CellSpec(self.workload, self.sharing, self.replicas, *setting)

    @property
    def replicas_per_gpu(self) -> int:
        """Replicas, the neighbours' among them, on the GPU that has the most."""
        return -(-self.cell.processes // self.gpus)

    @property
    def experiment_id(self) -> str:
        """Folder name, e.g. ``resnet50_r3_time-slicing_rep1``."""
        return self.cell.experiment_id(self.repeat)

    @property
    def drain_timeout_s(self) -> float:
        """Seconds a replica may take to end after SIGTERM, the server in it included."""
        server = self.workload.server
        trace_s = TRACE_S if self.workload.trace else 0.0
        return max(self.timing.drain_timeout_s, server.stop_timeout_s + END_OF_REPLICA_S if server else trace_s)

    @property
    def answers_timeout_s(self) -> float:
        """Seconds that the answers to all requests that are on their way may take."""
        return self.workload.server.request_timeout_s if self.workload.server else 0.0

    @property
    def condition_name(self) -> str:
        """Name of the condition; empty where the campaign names none."""
        return self.cell.condition_name

    @property
    def neighbours(self) -> list[NeighbourSpec]:
        """What runs beside the measured replicas."""
        return self.condition.neighbours if self.condition else []
