"""What a profile measures: one workload at every batch size, precision, execution and size asked for."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from enum import StrEnum

from pydantic import Field, model_validator

from harness.spec.model import StrictModel
from harness.spec.workload import Execution, Precision, WorkloadSpec


class CapacityGoal(StrEnum):
    """How far the batch is raised."""

    KNEE = "knee"
    MEMORY = "memory"


class ProfileCell(StrictModel):
    """One setting of the workload.

    Attributes:
        batch_size: inputs in one request.
        precision: number format.
        execution: how torch runs it.
        size: of the model, its option ``model_size``; None: the workload's own.
        epochs: times that the samples are gone through; None: it runs for a time.
        samples: in an epoch.
    """

    batch_size: int = Field(ge=1)
    precision: Precision
    execution: Execution
    size: str | None = None
    epochs: int | None = None
    samples: int | None = None

    @property
    def name(self) -> str:
        """For folders, e.g. ``b64-fp16-eager-small-e2-s1000``."""
        more = [self.size or "", f"e{self.epochs}" if self.epochs else "", f"s{self.samples}" if self.samples else ""]
        return "-".join([f"b{self.batch_size}", self.precision.value, self.execution.value, *filter(None, more)])

    @property
    def series(self) -> str:
        """The same without the batch size, for legends."""
        return self.name.partition("-")[2]

    @property
    def requests(self) -> int | None:
        """Whole batches in all epochs; None: it runs for a time."""
        if self.epochs is None or self.samples is None:
            return None
        return self.epochs * max(self.samples // self.batch_size, 1)


class ProfileSpec(StrictModel):
    """What one profile measures, and how."""

    workload: WorkloadSpec
    batches: list[int] = Field(min_length=1, max_length=32)
    precisions: list[Precision] = Field(min_length=1)
    executions: list[Execution] = Field(min_length=1)
    sizes: list[str] = Field(default_factory=list)
    epochs: list[int] = Field(default_factory=list)
    samples: list[int] = Field(default_factory=list)
    repeats: int = Field(ge=1, le=30)
    seconds: float = Field(gt=0, le=3600)
    capacity: CapacityGoal | None = None
    most_batch: int = Field(ge=1, le=2**24)
    trace: bool = False
    timeout_s: float = Field(gt=0)

    @model_validator(mode="after")
    def _can_be(self) -> ProfileSpec:
        if bool(self.epochs) != bool(self.samples):
            raise ValueError("--epochs and --samples go together: an epoch is so many samples.")
        if any(each < 1 for each in (*self.batches, *self.epochs, *self.samples)):
            raise ValueError("batch sizes, epochs and samples are whole numbers of 1 or more.")
        if self.capacity and self.epochs:
            raise ValueError("--capacity measures for a time: leave --epochs and --samples out.")
        if self.workload.server is not None or self.workload.scenario is not None:
            raise ValueError("a profile runs a model in the closed loop, without a server or a scenario.")
        return self

    def cells(self) -> list[ProfileCell]:
        """Every combination, in the order in which they were given."""
        return [
            series.model_copy(update={"batch_size": batch})
            for series in self.series()
            for batch in dict.fromkeys(self.batches)
        ]

    def series(self) -> Iterator[ProfileCell]:
        """Every combination at the first batch size: one curve each."""
        sizes: list[str | None] = [*self.sizes] or [None]
        works: list[tuple[int | None, int | None]] = [*itertools.product(self.epochs, self.samples)] or [(None, None)]
        for precision, execution, size, (epochs, samples) in itertools.product(
            dict.fromkeys(self.precisions), dict.fromkeys(self.executions), dict.fromkeys(sizes), dict.fromkeys(works)
        ):
            yield ProfileCell(
                batch_size=self.batches[0],
                precision=precision,
                execution=execution,
                size=size,
                epochs=epochs,
                samples=samples,
            )

    def workload_of(self, cell: ProfileCell) -> WorkloadSpec:
        """What the process of a point runs."""
        options = dict(self.workload.options)
        if cell.size is not None:
            options["model_size"] = cell.size
        if cell.samples is not None:
            options["samples"] = cell.samples
        return self.workload.model_copy(
            update={
                "batch_size": cell.batch_size,
                "precision": cell.precision,
                "execution": cell.execution,
                "options": options,
            }
        )
