"""When a recording may end before its time: as soon as what is wanted is known well enough."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field, field_validator

from harness.config.model import StrictModel


class KnownMetric(StrEnum):
    """A figure that can be judged while it is recorded."""

    THROUGHPUT = "throughput"
    LATENCY_P50 = "latency_p50_exact"
    LATENCY_P95 = "latency_p95_exact"
    LATENCY_P99 = "latency_p99_exact"

    @classmethod
    def _missing_(cls, value: object) -> KnownMetric | None:
        return cls.__members__.get(str(value).upper())  # Campaigns of earlier versions say latency_p99.


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

    @field_validator("metrics")
    @classmethod
    def _no_duplicates(cls, metrics: list[KnownMetric]) -> list[KnownMetric]:
        if len(set(metrics)) != len(metrics):
            raise ValueError("the same metric is listed twice.")
        return metrics
