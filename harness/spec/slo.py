"""A service level objective: limits of what a request may take, and of how many may fail."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

from harness.spec.model import Fraction, Positive, StrictModel, checked

_OF_TOKENS = frozenset({"ttft", "ttfo", "itl", "tpot"})


def _limit(percent: int, what: str) -> float | None:
    limit: Positive | None = Field(None, description=f"{percent}% of {what} within it.")
    return limit


_LATENCY = "the requests are answered"
_TTFT = "the requests have their first token"
_TTFO = "the requests have their first token after reasoning"
_ITL = "the gaps between two tokens are"
_TPOT = "the answers have their mean time per later token"


class SloSpec(StrictModel):
    """A service level objective (SLO); times count from the intended time of a request."""

    ttft_p50_ms: Positive | None = _limit(50, _TTFT)
    ttft_p90_ms: Positive | None = _limit(90, _TTFT)
    ttft_p95_ms: Positive | None = _limit(95, _TTFT)
    ttft_p99_ms: Positive | None = _limit(99, _TTFT)
    ttfo_p50_ms: Positive | None = _limit(50, _TTFO)
    ttfo_p90_ms: Positive | None = _limit(90, _TTFO)
    ttfo_p95_ms: Positive | None = _limit(95, _TTFO)
    ttfo_p99_ms: Positive | None = _limit(99, _TTFO)
    itl_p50_ms: Positive | None = _limit(50, _ITL)
    itl_p90_ms: Positive | None = _limit(90, _ITL)
    itl_p95_ms: Positive | None = _limit(95, _ITL)
    itl_p99_ms: Positive | None = _limit(99, _ITL)
    tpot_p50_ms: Positive | None = _limit(50, _TPOT)
    tpot_p90_ms: Positive | None = _limit(90, _TPOT)
    tpot_p95_ms: Positive | None = _limit(95, _TPOT)
    tpot_p99_ms: Positive | None = _limit(99, _TPOT)
    latency_p50_ms: Positive | None = _limit(50, _LATENCY)
    latency_p90_ms: Positive | None = _limit(90, _LATENCY)
    latency_p95_ms: Positive | None = _limit(95, _LATENCY)
    latency_p99_ms: Positive | None = _limit(99, _LATENCY)
    error_rate: Fraction | None = Field(None, description="Share of the requests that may fail, e.g. 0.001.")

    @checked
    def _says_something(self) -> Iterator[str]:
        if not self.model_dump(exclude_none=True):
            yield "it needs a limit, e.g. latency_p99_ms, ttft_p99_ms, itl_p99_ms or error_rate."

    def limits(self) -> Iterator[tuple[str, str, float, float]]:
        """Name, what of a request is limited (``latency``, ``ttft``, ``ttfo``, ``itl``, ``tpot``), quantile, and limit in milliseconds."""
        for name, value in self.model_dump(exclude_none=True, exclude={"error_rate"}).items():
            what, percent, _ = name.split("_")
            yield name, what, int(percent[1:]) / 100, value

    @property
    def of_tokens(self) -> bool:
        """It limits times of tokens, which only streams have."""
        return any(what in _OF_TOKENS for _, what, _, _ in self.limits())
