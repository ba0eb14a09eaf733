"""When to measure no more: a recording, or the repeats of a cell, end as soon as what is wanted is known well enough."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Annotated

from pydantic import Discriminator, Field, Tag, field_validator

from harness.spec.model import StrictModel

FIRST_LOOK = 3
"""Repeats of every cell before the first look: the spread of two runs says next to nothing."""
MOST_REPEATS = 100
_SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0}


class KnownMetric(StrEnum):
    """A figure that can be judged while it is recorded."""

    THROUGHPUT = "throughput"
    LATENCY_P50 = "latency_p50_exact"
    LATENCY_P95 = "latency_p95_exact"
    LATENCY_P99 = "latency_p99_exact"

    @classmethod
    def _missing_(cls, value: object) -> KnownMetric | None:
        return cls.__members__.get(str(value).upper())  # Campaigns of earlier versions say latency_p99.


def _no_duplicates(metrics: list[KnownMetric]) -> list[KnownMetric]:
    if len(set(metrics)) != len(metrics):
        raise ValueError("the same metric is listed twice.")
    return metrics


class StopWhenKnown(StrictModel):
    """What has to be known, how well, and how soon that may be believed."""

    metrics: list[KnownMetric] = Field(
        default=[KnownMetric.THROUGHPUT, KnownMetric.LATENCY_P50, KnownMetric.LATENCY_P99],
        min_length=1,
        description="Figures that must be known: throughput, latency_p50_exact, latency_p95_exact, latency_p99_exact; of all replicas together.",
    )
    relative_half_width: float = Field(
        default=0.02,
        gt=0,
        lt=1,
        description="Half of each figure's 95 % interval, as a share of the figure, at which it counts as known.",
    )
    min_s: float = Field(
        default=30.0, ge=1, le=86_400, description="Seconds recorded in any case; record_s is the most."
    )

    _each_once = field_validator("metrics")(_no_duplicates)


class UntilKnown(StrictModel):
    """What the repeats have to tell, and how long they may take."""

    compare: list[KnownMetric] = Field(
        default=[KnownMetric.THROUGHPUT, KnownMetric.LATENCY_P99],
        min_length=1,
        description="Figures to tell apart: throughput, latency_p50_exact, latency_p95_exact, latency_p99_exact.",
    )
    within: float = Field(
        default=0.05,
        gt=0,
        lt=1,
        description="Share by which two figures may differ and count as equal; of a cell that is compared with none, "
        "half of the interval, as a share of the figure.",
    )
    decide: float = Field(
        default=0.95,
        ge=0.5,
        lt=1,
        description="Probability with which all answers of the campaign are right, over all looks.",
    )
    max: int = Field(default=30, ge=FIRST_LOOK, le=MOST_REPEATS, description="Most repeats of a cell.")
    budget: str | None = Field(
        default=None,
        pattern=r"^[0-9]+(\.[0-9]+)? ?(s|min|h)$",
        description="Time that all steps may take together, e.g. 2 h, 90 min or 600 s; null means as long as it takes.",
    )

    _each_once = field_validator("compare")(_no_duplicates)

    @property
    def budget_s(self) -> float:
        """The budget in seconds; infinite without one."""
        if self.budget is None:
            return math.inf
        number = self.budget.rstrip("smhin ")
        return float(number) * _SECONDS[self.budget.removeprefix(number).strip()]


class Repeats(StrictModel):
    """Repeats in blocks of one of every cell, until what is asked is known."""

    until_known: UntilKnown = Field(description="What is asked; {} takes every default.")


RepeatsOrNumber = Annotated[
    Annotated[int, Field(ge=1, le=MOST_REPEATS), Tag("given number")] | Annotated[Repeats, Tag("repeats until known")],
    Discriminator(lambda given: "repeats until known" if isinstance(given, dict | Repeats) else "given number"),
]
"""Told apart by what is there, so that a fault is one of the branch that was meant."""
