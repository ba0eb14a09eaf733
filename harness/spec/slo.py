"""A service level objective of servers: what users are promised, and what decides pass or fail."""

from __future__ import annotations

from pydantic import Field, model_validator

from harness.spec.model import StrictModel


class SloSpec(StrictModel):
    """Each part is given or left out. Measured at the client, from the intended time of a request."""

    ttft_p99_ms: float | None = Field(
        default=None, gt=0, description="99 % of the requests have their first token within it, milliseconds."
    )
    itl_p99_ms: float | None = Field(
        default=None, gt=0, description="99 % of the gaps between two tokens are within it, milliseconds."
    )
    latency_p99_ms: float | None = Field(
        default=None, gt=0, description="99 % of the requests are answered within it, milliseconds."
    )
    error_rate: float | None = Field(
        default=None, gt=0, lt=1, description="Share of the requests that may fail, e.g. 0.001."
    )

    @model_validator(mode="after")
    def _says_something(self) -> SloSpec:
        if not self.model_dump(exclude_none=True):
            raise ValueError("it needs one of ttft_p99_ms, itl_p99_ms, latency_p99_ms and error_rate.")
        return self

    @property
    def of_tokens(self) -> bool:
        """It limits times of tokens, which only streams have."""
        return self.ttft_p99_ms is not None or self.itl_p99_ms is not None
