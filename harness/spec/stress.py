"""A stress campaign: replicas, a rate or the batch are raised from point to point until something breaks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from enum import StrEnum
from typing import Literal

from pydantic import Field

from harness.spec.condition import MAX_REPLICAS
from harness.spec.model import Load, NotNegative, Positive, StrictModel, checked
from harness.spec.workload import WorkloadSpec

DEFAULT_FACTOR = 2.0
MAX_POINTS = 256
DIGITS = 4
"""Of a load between two points; the finest `precision` needs no more."""
NAMED_DIGITS = 6
EXACT_DIGITS = 17


class StressLoad(StrEnum):
    """What is raised."""

    REPLICAS = "replicas"
    RATE = "rate"
    BATCH = "batch"


class StressSpec(StrictModel):
    """How the load is raised, and when it counts as broken besides death, errors and memory."""

    load: StressLoad = Field(
        StressLoad.REPLICAS,
        description="What is raised: replicas, rate (requests/s per replica of a server or scenario) or batch.",
    )
    first: Load = Field(1.0, description="First load.")
    most: Load = Field(64.0, description="Last load if nothing breaks.")
    factor: float | None = Field(None, gt=1, le=100, description="Factor from point to point; null: 2, or `step`.")
    step: Load | None = Field(None, description="Increment from point to point.")
    latency_limit_ms: dict[Literal["p50", "p95", "p99"], Positive] = Field(
        {}, description="Limits of percentiles, e.g. {p99: 50}."
    )
    least_gain_percent: float = Field(
        5.0,
        ge=0,
        le=100,
        description="Stop when a doubled load raises throughput by less; 0: never.",
    )
    memory_limit_percent: float = Field(85.0, gt=0, le=100, description="Limit of GPU memory for `load: batch`.")

    precision: float | None = Field(
        None,
        ge=0.01,
        le=1,
        description="Bisect between the last good and first bad point to this precision, e.g. 0.1: 10%.",
    )
    price_per_gpu_hour: NotNegative | None = Field(
        None, description="With `slo`: price of a GPU hour, for the price of a million tokens."
    )
    price_per_kwh: NotNegative | None = Field(None, description="With `slo`: price of the GPUs' energy.")

    @checked
    def _loads_can_be(self) -> Iterator[str]:
        if self.factor is not None and self.step is not None:
            yield "`factor` and `step` are two ways of raising the load: keep one of them."
        if self.most < self.first:
            yield f"`most` {self.most:g} is below `first` {self.first:g}: no load lies between."
        if self.load is not StressLoad.RATE:
            odd = next((x for x in (self.first, self.most, self.step or 1.0) if x != int(x)), None)
            if odd is not None:
                kind = "replicas" if self.load is StressLoad.REPLICAS else "batches"
                yield f"{kind} are whole numbers, and {odd:g} is none."
        if self.load is StressLoad.REPLICAS:
            if self.most > MAX_REPLICAS:
                yield f"`most` {self.most:g} is above the {MAX_REPLICAS} replicas that can be run."
        elif self._steps() > MAX_POINTS:
            yield f"more than {MAX_POINTS} points up to `most`: raise `step` or `factor`, or lower it."

    def _steps(self) -> float:
        """How often the load is raised on the way to the most."""
        if self.step is not None:
            return (self.most - self.first) / self.step
        return math.log(self.most / self.first) / math.log(self.factor or DEFAULT_FACTOR)

    def loads(self) -> list[float]:
        """Every load up to the most, ascending; the last is ``most`` itself."""
        loads = [self.first]
        while loads[-1] < self.most:
            following = loads[-1] + self.step if self.step else loads[-1] * (self.factor or DEFAULT_FACTOR)
            if self.load is not StressLoad.RATE:
                following = max(math.floor(following), loads[-1] + 1)
            loads.append(min(following, self.most))
        return loads

    def grid(self) -> list[float]:
        """Every load that may be measured, ascending: ``loads``, and between them those that halving can come to."""
        loads = self.loads()
        if self.precision is None:
            return loads
        grid = [loads[0]]
        for low, high in itertools.pairwise(loads):
            parts = 2 ** max(0, math.ceil(math.log2(math.log(high / low) / math.log1p(self.precision))))
            between = [low * (high / low) ** (part / parts) for part in range(1, parts)]
            rounded = {self._rounded(load) for load in between}
            grid += [*sorted(load for load in rounded if low < load < high), high]
        return grid

    def _rounded(self, load: float) -> float:
        return float(f"{load:.{DIGITS}g}") if self.load is StressLoad.RATE else float(round(load))

    def at_most(self) -> list[float]:
        """As many loads as are measured at most: every point, and one for each time that the way between two is halved."""
        loads, grid = self.loads(), self.grid()
        between = [[load for load in grid if low < load < high] for low, high in itertools.pairwise(loads)] or [[]]
        widest = max(between, key=len)
        return sorted({*loads, *widest[: len(widest).bit_length()]})

    def at(self, workload: WorkloadSpec, load: float) -> WorkloadSpec:
        """The workload at one load. Raises ValueError where a rate is raised and the workload has none."""
        if self.load is StressLoad.REPLICAS:
            return workload
        family = {"model": workload.model if workload.own else workload.target, "variant_of": workload.name}
        if self.load is StressLoad.BATCH:
            batch = {"name": f"{workload.name}-b{load:.0f}", "batch_size": int(load)}
            return workload.model_copy(update=family | batch)
        name = f"{workload.name}-rate-{self._named(load)}".replace(".", "-").replace("+", "")
        return workload.at_rate(load).model_copy(update=family | {"name": name})

    def _named(self, load: float) -> str:
        """The load in as few digits, from six on, as tell all loads apart."""
        loads = self.grid()
        for digits in range(NAMED_DIGITS, EXACT_DIGITS):
            if len({f"{other:.{digits}g}" for other in loads}) == len(loads):
                return f"{load:.{digits}g}"
        return f"{load:.{EXACT_DIGITS}g}"
