"""One value of one metric at one instant: what both readers of metrics produce and every writer takes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Row:
    """One value of one series.

    Attributes:
        metric: name in the catalogue, e.g. ``latency_p95``.
        series: ``all`` (pooled over replicas), ``replica-0``..., ``gpu-0``..., or ``node``.
        timestamp_s: grid time, seconds since the epoch; a whole multiple of the step.
        value: in the catalogue's unit, or None when it is missing.
        reason: why the value is missing; empty when it is not.
    """

    metric: str
    series: str
    timestamp_s: float
    value: float | None
    reason: str = ""

    def __post_init__(self) -> None:
        if (self.value is None) == (not self.reason):
            raise ValueError(f"a row has either a value or a reason for its absence: {self.metric} {self.series}")


class RowSink(Protocol):
    """Takes the rows of one grid time at once; must not hold them."""

    def write(self, rows: Iterable[Row]) -> None:
        """Write the rows. Raises StorageError when they cannot be written."""
        ...
