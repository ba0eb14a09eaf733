"""One value of one metric at one instant, as both readers of metrics produce it, and what a recording says of itself."""

from __future__ import annotations

import dataclasses
import math
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from harness.clock import Clock
from harness.errors import UsageError
from harness.metrics.catalogue import Metric
from harness.metrics.promql_math import to_ms

POOLED = "all"
"""The series over all measured replicas."""
NO_REQUESTS = "no request finished in the window"
TOO_FEW = "fewer than two scrapes in the window"
MIXED_BUCKETS = "the replicas have different latency buckets"
NO_REPLICA = "no replica could be read"
NO_TIME = "the workload counted neither part of its time in the window"
LATE_TICK = "the recorder itself was late by a whole step or more: the machine was overloaded or suspended"
_BINS_PER_DECADE = 50
_LOWEST_S = 1e-6
_DECADES = 10
_MAX_REASONS = 20
_OTHER_REASONS = "other reasons"


def series_name(name: str, neighbour: str = "") -> str:
    """A series of the measured replicas under its own name, one of a neighbour after its workload: ``whisper/all``."""
    return f"{neighbour}/{name}" if neighbour else name


def neighbour_of(series: str) -> str:
    """The neighbour's workload that a series belongs to; empty for the measured replicas, devices and the node."""
    return series.rpartition("/")[0]


def grid_ms(start_s: float, step_s: float) -> int:
    """The time of row 0, in ms since the epoch. Raises UsageError where it is not a whole multiple of the step."""
    if to_ms(start_s) % to_ms(step_s):
        raise UsageError(
            f"The rows cannot begin at {start_s:.3f}: it is not a whole multiple of the step.",
            advice="Floor the start to the step, so that all metrics share timestamps.",
        )
    return to_ms(start_s)


@dataclass(frozen=True, slots=True)
class Missing:
    """Why a value could not be read; short and constant, because it becomes a row's reason."""

    reason: str


@dataclass(frozen=True, slots=True)
class MetricRow:
    """One value of one series at a grid time (seconds since the epoch), in the catalogue's unit; None with the reason where missing.

    ``series``: ``all`` (pooled over replicas), ``replica-0``..., the same after a neighbour's workload (``whisper/all``),
    ``gpu-0``..., or ``node``.
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
class MetricColumn:
    """One series over many grid times: one value per time (anything where it is missing) and one reason (empty where not)."""

    metric: str
    series: str
    values: Sequence[float]
    reasons: Sequence[str]


class RowSink(Protocol):
    """Takes the rows of one grid time at once, or whole columns, which is much faster; must not hold them."""

    def write(self, rows: Iterable[MetricRow]) -> None:
        """Write the rows. Raises StorageError when they cannot be written."""
        ...

    def write_columns(self, times_s: Sequence[float], columns: Sequence[MetricColumn]) -> None:
        """Write what ``write`` would for one grid time (seconds since the epoch) after another. Raises StorageError as it does."""
        ...


@dataclass(frozen=True, slots=True)
class Lateness:
    """How late ticks began, in seconds after their schedule; quantiles are at most 5% too high."""

    ticks: int = 0
    missed: int = 0
    p50_s: float | None = None
    p99_s: float | None = None
    max_s: float | None = None


@dataclass(frozen=True, slots=True)
class MetricSummary:
    """One metric's rows: the series seen, and how many values are missing, by reason."""

    series: list[str]
    values: int
    missing: int
    reasons: dict[str, int]


@dataclass(frozen=True, slots=True)
class RecordingSummary:
    """One recording.

    Attributes:
        end_s: grid time of the last row written; None when there is none.
        answered_within_s: how long after its row's time, at most, a reading had its last answer; None: a server scraped, which
            reads before that time.
        identities: what a series stands for, by series name (pod, node, device), where names alone do not say.
    """

    start_s: float
    end_s: float | None
    step_s: float
    rows: int
    stopped: bool
    lateness: Lateness
    metrics: dict[str, MetricSummary]
    absent: dict[str, str]
    warnings: list[str] = field(default_factory=list)
    answered_within_s: float | None = None
    identities: dict[str, dict[str, str]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """As plain data for the manifest."""
        return dataclasses.asdict(self)


class Enough(Protocol):
    """Who says when a recording may end."""

    def due(self, rows: int) -> bool:
        """Whether it would look at what the replicas have logged after this many rows, or keeps to what it said."""
        ...

    def __call__(self, rows: int) -> bool:
        """Whether the last of this many rows may be the last one. Raises StorageError."""
        ...


def _unheard(*_: object) -> None:
    """Nobody listens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingRequest:
    """What is recorded, and who hears of it.

    Attributes:
        step_s: seconds between rows; whole milliseconds.
        window_s: how far rates and quantiles look back; a whole number of steps, at least two.
        wake: ends the recording early when set.
        on_tick: called after each row with rows done and rows in all.
        notice: told at once what goes wrong while recording, a sentence each.
        enough: asked after each row whether it may be the last one; None: all rows are wanted.
    """

    metrics: Sequence[Metric]
    step_s: float
    window_s: float
    sink: RowSink
    clock: Clock
    wake: threading.Event | None = None
    on_tick: Callable[[int, int], None] = _unheard
    notice: Callable[[str], None] = _unheard
    enough: Enough | None = None

    def ends_with(self, done: int, rows: int) -> bool:
        """Tell of a row that is done; whether it may be the last."""
        self.on_tick(done, rows)
        return self.enough is not None and self.enough(done)


class Recording(Protocol):
    """Rows of every series, from a start on the grid."""

    def record(self, start_s: float, rows: int) -> RecordingSummary:
        """Record ``rows`` rows of every series, fewer when enough is known; call it one window and a step before ``start_s``.

        ``start_s``: grid time of row 0, seconds since the epoch; a whole multiple of the step. Raises UsageError (it is not),
        MetricsError (nothing can be recorded at all; what is missing in part is in the rows, with its reason), StorageError.
        """
        ...


class LatenessHistogram:
    """Quantiles of lateness in constant memory: 50 bins a decade from a microsecond to hours."""

    def __init__(self) -> None:
        self._bins = [0] * (_BINS_PER_DECADE * _DECADES + 1)
        self._count = 0
        self._max_s = 0.0

    def add(self, lateness_s: float) -> None:
        """Count one tick."""
        lateness_s = max(lateness_s, 0.0)
        self._count += 1
        self._max_s = max(self._max_s, lateness_s)
        place = math.ceil(_BINS_PER_DECADE * math.log10(max(lateness_s, _LOWEST_S) / _LOWEST_S))
        self._bins[min(place, len(self._bins) - 1)] += 1

    def quantile(self, quantile: float) -> float | None:
        """Upper edge of the bin that holds the quantile, in seconds; None without ticks."""
        if not self._count:
            return None
        rank, counted = quantile * self._count, 0
        for place, count in enumerate(self._bins):
            counted += count
            if counted >= rank:
                return min(_LOWEST_S * 10 ** (place / _BINS_PER_DECADE), self._max_s)
        return self._max_s

    def summary(self, missed: int) -> Lateness:
        """The figures."""
        highest_s = self._max_s if self._count else None
        return Lateness(self._count, missed, self.quantile(0.5), self.quantile(0.99), highest_s)


class RowStatistics:
    """Counts rows by metric; memory grows with the number of series, not of rows."""

    def __init__(self) -> None:
        self._values: Counter[str] = Counter()
        self._series: dict[str, dict[str, None]] = defaultdict(dict)
        self._reasons: dict[str, Counter[str]] = defaultdict(Counter)

    def add(self, rows: Iterable[MetricRow]) -> None:
        """Count the rows of one tick."""
        for row in rows:
            self._count(row.metric, row.series, row.reason, 1)

    def add_column(self, column: MetricColumn) -> None:
        """Count the rows of one series."""
        for reason, count in Counter(column.reasons).items():
            self._count(column.metric, column.series, reason, count)

    def _count(self, metric: str, series: str, reason: str, count: int) -> None:
        if not reason:
            self._values[metric] += count
            self._series[metric][series] = None
            return
        reasons = self._reasons[metric]
        known = reason in reasons or len(reasons) < _MAX_REASONS
        reasons[reason if known else _OTHER_REASONS] += count

    def summaries(self, names: Sequence[str]) -> dict[str, MetricSummary]:
        """One summary per metric, in the order given."""
        return {
            name: MetricSummary(
                list(self._series[name]), self._values[name], self._reasons[name].total(), dict(self._reasons[name])
            )
            for name in names
        }


def missing_warnings(metrics: Mapping[str, MetricSummary]) -> Iterator[str]:
    """A sentence for each metric that misses values, with the commonest reason."""
    for name, summary in metrics.items():
        if summary.missing:
            reason = max(summary.reasons, key=summary.reasons.__getitem__)
            yield (
                f"{name}: {summary.missing} of {summary.missing + summary.values} values are missing, most often: {reason}."
            )
