"""How requests come to a replica: by itself in a closed loop, by MLPerf's LoadGen, or over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Literal

from pydantic import Field

from harness.spec.model import Load, StrictModel, UpTo4096, WithinADay, checked

TEST_SHARE = 0.85
"""Share of the recording that LoadGen's test takes when none is given: it must begin and end within it."""
OFFLINE_SHARE = 0.75
"""The same for offline, whose length is an estimate that LoadGen adds a tenth to."""


class ScenarioKind(StrEnum):
    """Who makes the requests, and when."""

    OFFLINE = "offline"
    """LoadGen hands over all samples at once: the most samples per second."""
    SERVER = "server"
    """LoadGen sends single samples at Poisson arrivals, whether or not the last one is answered."""
    SINGLE_STREAM = "single-stream"
    """LoadGen sends the next sample when the last one is answered."""
    MULTI_STREAM = "multi-stream"
    """LoadGen sends the next query of several samples when the last one is answered."""
    HTTP = "http"
    """The replica is an HTTP server; the harness's load generator sends it requests at their times."""


OPEN_LOOP = frozenset({ScenarioKind.SERVER, ScenarioKind.HTTP})
_HAS_EFFECT = {
    "rate": OPEN_LOOP,
    "arrivals": frozenset({ScenarioKind.HTTP}),
    "latency_limit_ms": OPEN_LOOP,
    "samples_per_query": frozenset({ScenarioKind.MULTI_STREAM}),
    "duration_s": frozenset(ScenarioKind) - {ScenarioKind.HTTP},
    "max_wait_ms": OPEN_LOOP,
    "max_queue": frozenset({ScenarioKind.HTTP}),
    "max_clients": frozenset({ScenarioKind.HTTP}),
}


class ScenarioSpec(StrictModel):
    """A scenario like MLPerf's; results are not MLPerf results."""

    kind: ScenarioKind = Field(description="http, or a scenario of LoadGen.")
    rate: Load | None = Field(None, description="server, http: requests per second and replica.")
    arrivals: Literal["poisson", "constant"] | None = Field(None, description="http: poisson (default) or constant.")
    latency_limit_ms: float | None = Field(
        None,
        gt=0,
        le=3_600_000,
        description="99% of the requests must be answered in time.",
    )
    samples_per_query: UpTo4096 | None = Field(None, description="multi-stream: samples per query; null means 8.")
    duration_s: WithinADay | None = Field(
        None, description="Length of LoadGen's test; null: 85% of the recording (offline 75%)."
    )
    max_wait_ms: float | None = Field(
        None,
        ge=0,
        le=60_000,
        description="How long a request waits for a full batch; null: 0.",
    )
    max_queue: int | None = Field(
        None, ge=1, le=1_000_000, description="http: inputs that may wait, others get 429; null: 256."
    )
    max_clients: int | None = Field(None, ge=1, le=900, description="http: connections of the client; null: 512.")

    @property
    def open_loop(self) -> bool:
        """Requests come at times of their own, however long answers take."""
        return self.kind in OPEN_LOOP

    @property
    def inputs_per_query(self) -> int:
        """Inputs that are sent together."""
        return (self.samples_per_query or 8) if self.kind is ScenarioKind.MULTI_STREAM else 1

    @checked
    def _fields_fit_the_kind(self) -> Iterator[str]:
        yield from self.without_effect(self.kind, _HAS_EFFECT)
        if self.open_loop and self.rate is None:
            yield f"scenario {self.kind.value} needs `rate`: requests per second and replica."

    def test_s(self, record_s: float) -> float:
        """Seconds of LoadGen's test in a recording of ``record_s``."""
        share = OFFLINE_SHARE if self.kind is ScenarioKind.OFFLINE else TEST_SHARE
        return self.duration_s or share * record_s
