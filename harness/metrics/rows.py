"""One value of one metric at one instant: what both readers of metrics produce and every writer takes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

POOLED = "all"
"""The series over all measured replicas."""


def series_name(name: str, neighbour: str = "") -> str:
    """A series of the measured replicas under its own name, one of a neighbour after its workload: ``whisper/all``."""
    return f"{neighbour}/{name}" if neighbour else name


def neighbour_of(series: str) -> str:
    """The neighbour's workload that a series belongs to; empty for the measured replicas, devices and the node."""
    return series.rpartition("/")[0]


@dataclass(frozen=True, slots=True)
class Row:
    """One value of one series.

    Attributes:
        metric: name in the catalogue, e.g. ``latency_p95``.
        series: ``all`` (pooled over replicas), ``replica-0``..., the same after a neighbour's workload
            (``whisper/all``), ``gpu-0``..., or ``node``.
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


@dataclass(frozen=True, slots=True)
class Column:
    """One series over many grid times.

    Attributes:
        values: one per grid time; anything where ``reasons`` says why there is none.
        reasons: why the value is missing; empty when it is not.
    """

    metric: str
    series: str
    values: Sequence[float]
    reasons: Sequence[str]

    def row(self, place: int, time_s: float) -> Row:
        """The value at one grid time."""
        reason = self.reasons[place]
        return Row(self.metric, self.series, time_s, None if reason else self.values[place], reason)


class RowSink(Protocol):
    """Takes the rows of one grid time at once; must not hold them."""

    def write(self, rows: Iterable[Row]) -> None:
        """Write the rows. Raises StorageError when they cannot be written."""
        ...


@runtime_checkable
class ColumnSink(RowSink, Protocol):
    """Takes many grid times at once, too, which is much faster."""

    def write_columns(self, times_s: Sequence[float], columns: Sequence[Column]) -> None:
        """Write what ``write`` would, called with the rows of all columns for one grid time after another.

        Args:
            times_s: grid times, seconds since the epoch.
            columns: every series, each with one value per grid time.

        Raises:
            StorageError: they cannot be written.
        """
        ...
