"""How long every phase of an experiment takes, and when to measure no more: as soon as what is wanted is known well enough."""

from __future__ import annotations

import math
from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from harness.spec.model import (
    KUBERNETES,
    Apart,
    Fraction,
    Lacking,
    Positive,
    StrictModel,
    UpToADay,
    UpToTenMinutes,
    WithinADay,
    checked,
)

FIRST_LOOK = 3
"""Repeats of every cell before the first look: the spread of two runs says next to nothing."""
FIRST_LOOK_AT_MODES = 2
"""The same where the best mode is asked for: modes often differ by far more than runs, and the level allows for the look."""
MOST_REPEATS = 100
_SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0}


class KnownMetric(StrEnum):
    """A figure that can be judged while it is recorded."""

    THROUGHPUT = "throughput"
    LATENCY_P50 = "latency_p50_exact"
    LATENCY_P95 = "latency_p95_exact"
    LATENCY_P99 = "latency_p99_exact"
    ENERGY = "energy"
    """GPU energy per request, which is known of whole runs alone."""
    OBJECTIVE = "objective"
    """Of the campaign, `slo`: whether it passes or fails."""

    @classmethod
    def _missing_(cls, value: object) -> KnownMetric | None:
        return cls.__members__.get(str(value).upper())  # Campaigns of earlier versions say latency_p99.


KnownMetrics = Annotated[list[KnownMetric], Field(min_length=1), Apart]


class StopWhenKnown(StrictModel):
    """Which metrics must be known, how well, and the earliest stop."""

    metrics: KnownMetrics = Field(
        [KnownMetric.THROUGHPUT, KnownMetric.LATENCY_P50, KnownMetric.LATENCY_P99],
        description="Metrics of all replicas together that must be known; objective: `slo` passes or fails.",
    )
    relative_half_width: Fraction = Field(0.02, description="Half of each 95% interval, relative to its metric.")
    min_s: float = Field(30.0, ge=1, le=86_400, description="Shortest recording; record_s is the longest.")

    @checked
    def _is_seen_in_time(self) -> Iterator[str]:
        if KnownMetric.ENERGY in self.metrics:
            yield "`metrics`: energy is known when a recording has ended: leave it out."


class UntilKnown(StrictModel):
    """Which answer the repeats must give, and their limits."""

    question: Literal["each", "best-mode"] = Field(
        "each",
        description="With each, every configuration against the first sharing mode and condition; with best-mode, the best mode at the "
        "most replicas that several modes have.",
    )
    compare: KnownMetrics = Field(
        [KnownMetric.THROUGHPUT, KnownMetric.LATENCY_P99],
        description="Metrics to compare.",
    )
    within: Fraction = Field(
        0.05,
        description="Relative difference that counts as equal; without a comparison, half the interval.",
    )
    decide: float = Field(0.95, ge=0.5, lt=1, description="Probability that all answers of the campaign are right.")
    max: int = Field(30, ge=FIRST_LOOK_AT_MODES, le=MOST_REPEATS, description="Most repeats of a configuration.")
    budget: str | None = Field(
        None,
        pattern=r"^[0-9]+(\.[0-9]+)? ?(s|min|h)$",
        description="Time limit of all steps, e.g. 2 h, 90 min or 600 s.",
    )

    @checked
    def _compares_figures(self) -> Iterator[str]:
        if KnownMetric.OBJECTIVE in self.compare:
            yield "`compare` takes figures; an objective is decided within each run: `timing.stop_when_known`."
        if self.max < self.first_look:
            yield f"`max` of {self.max} is less than the {self.first_look} repeats before the first look."

    @property
    def best_mode(self) -> bool:
        """Whether the best sharing mode is asked for, and not every difference."""
        return self.question == "best-mode"

    @property
    def first_look(self) -> int:
        """Repeats of every cell before the first look."""
        return FIRST_LOOK_AT_MODES if self.best_mode else FIRST_LOOK

    @property
    def budget_s(self) -> float:
        """The budget in seconds; infinite without one."""
        if self.budget is None:
            return math.inf
        number = self.budget.rstrip("smhin ")
        return float(number) * _SECONDS[self.budget.removeprefix(number).strip()]


class Repeats(StrictModel):
    """Repeats in blocks, one of every configuration, until the answer is known."""

    until_known: UntilKnown = Field(description="When to stop; {} means every default.")


RepeatsOrNumber = Annotated[
    Annotated[int, Field(ge=1, le=MOST_REPEATS), Tag("given number")] | Annotated[Repeats, Tag("repeats until known")],
    Discriminator(lambda given: "repeats until known" if isinstance(given, dict | Repeats) else "given number"),
]
"""Told apart by what is there, so that a fault is one of the branch that was meant."""


MIN_STEP_S = 0.1
RATE_WINDOW_STEPS = 4
PRESETS: dict[str, dict[str, float]] = {
    "short": {"step_s": 1.0, "stabilise_s": 5.0, "record_s": 10.0, "cooldown_s": 0.0},
    "long": {"stabilise_s": 300.0, "record_s": 3600.0, "cooldown_s": 120.0},
}
"""Phases by name: short where the repeats decide, long for series of 721 rows; standard is what the fields default to."""
LEAST_ROWS = 9
"""By which it can be judged whether throughput was steady (``harness.metrics.quality``)."""


def short_by_scrapes(scrape_interval_s: float) -> dict[str, float]:
    """The preset short where rows follow the scrapes of a Prometheus: as short as nine of them allow."""
    short = PRESETS["short"]
    steps = max(math.ceil(short["record_s"] / scrape_interval_s), LEAST_ROWS - 1)
    return {**short, "step_s": scrape_interval_s, "record_s": steps * scrape_interval_s}


class Timing(StrictModel):
    """Seconds of every phase of an experiment."""

    preset: Literal["short", "standard", "long"] = Field(
        "standard",
        description="Sets stabilise_s, record_s and cooldown_s: standard 30, 120, 10; long 300, 3600, 120; short 5, 10, 0 "
        "with step_s 1 (on Kubernetes 8 scrapes or more); short is the default with repeats.until_known.",
    )
    step_s: float = Field(5.0, ge=MIN_STEP_S, le=3600, description="Seconds between two rows.")
    stabilise_s: UpToADay = Field(30.0, description="Seconds before the recording.")
    record_s: float = Field(120.0, gt=0, le=30 * 86_400, description="Length of the recording; a multiple of step_s.")
    stop_when_known: StopWhenKnown | None = Field(
        None,
        description="Stop the recording when these metrics are known, e.g. {metrics: [throughput, latency_p50_exact], "
        "relative_half_width: 0.02, min_s: 30}.",
    )
    cooldown_s: UpToADay = Field(
        10.0, description="Seconds of rest after clean-up; with cooldown_gpu_celsius, at most."
    )
    cooldown_gpu_celsius: float | None = Field(
        None,
        gt=0,
        lt=120,
        description="Stop the rest when every GPU is this cool.",
    )
    rate_window_s: Positive | None = Field(
        None, description="Window of rates and quantiles, at least 4 steps; null: 4 steps."
    )
    telemetry_interval_s: Annotated[
        float,
        Lacking(
            KUBERNETES,
            "a cluster's GPUs are read by their exporter, as often as Prometheus scrapes it",
            "Remove it: `telemetry.csv` has a row for each scrape.",
        ),
    ] = Field(0.25, ge=0.02, le=0.25, description="Seconds between two readings of GPU telemetry.")
    ready_timeout_s: WithinADay = Field(300.0, description="Time limit of a replica's start.")
    drain_timeout_s: UpToTenMinutes = Field(10.0, description="Time limit of a replica's end after SIGTERM.")
    start: Annotated[
        Literal["fresh", "forked"],
        Lacking(KUBERNETES, "a pod's replica is a process of its own", "Remove it."),
    ] = Field(
        "fresh",
        description="A new process per replica (fresh), or forked from a process that has imported the workload, which saves the "
        "import. Your own models, servers and replicas with `cpus_per_replica` always start fresh.",
    )

    @property
    def window_s(self) -> float:
        """Seconds that rates and quantiles look back."""
        return self.rate_window_s or RATE_WINDOW_STEPS * self.step_s

    @property
    def phases_s(self) -> float:
        """Seconds of one experiment but for the start of its replicas."""
        return self.stabilise_s + self.record_s + self.cooldown_s

    @property
    def rows(self) -> int:
        """Rows of one series: both ends of the recording included."""
        return round(self.record_s / self.step_s) + 1

    @model_validator(mode="before")
    @classmethod
    def _phases_by_name(cls, given: Any) -> Any:
        return {**PRESETS.get(str(given.get("preset")), {}), **given} if isinstance(given, dict) else given

    @checked
    def _step_divides(self) -> Iterator[str]:
        steps = self.record_s / self.step_s
        if not math.isclose(steps, round(steps), rel_tol=0, abs_tol=1e-6):
            yield (
                f"step_s {self.step_s:g} does not divide record_s {self.record_s:g}: "
                f"use record_s {math.floor(steps) * self.step_s:g} or {math.ceil(steps) * self.step_s:g}."
            )
        known = self.stop_when_known
        if known is not None and known.min_s >= self.record_s:
            yield f"stop_when_known.min_s {known.min_s:g} must be below record_s {self.record_s:g}."
        if self.rate_window_s is not None and self.rate_window_s < RATE_WINDOW_STEPS * self.step_s:
            yield f"rate_window_s is below {RATE_WINDOW_STEPS} steps ({RATE_WINDOW_STEPS * self.step_s:g} s)."
