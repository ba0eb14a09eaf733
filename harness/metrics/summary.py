"""What a recording says of itself: how punctual it was, what it saw, what it missed and why."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from harness.metrics.rows import Column, Row

_BINS_PER_DECADE = 50
_LOWEST_S = 1e-6
_DECADES = 10
_MAX_REASONS = 20
_OTHER_REASONS = "other reasons"


@dataclass(frozen=True, slots=True)
class Lateness:
    """How late ticks began, in seconds after their schedule; quantiles are at most 5 % too high."""

    ticks: int
    missed: int
    p50_s: float | None
    p99_s: float | None
    max_s: float | None


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
        start_s: grid time of row 0, seconds since the epoch.
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
        rank = quantile * self._count
        seen = 0
        for place, count in enumerate(self._bins):
            seen += count
            if seen >= rank:
                return min(_LOWEST_S * 10 ** (place / _BINS_PER_DECADE), self._max_s)
        return self._max_s

    def summary(self, missed: int) -> Lateness:
        """The figures."""
        return Lateness(
            ticks=self._count,
            missed=missed,
            p50_s=self.quantile(0.5),
            p99_s=self.quantile(0.99),
            max_s=self._max_s if self._count else None,
        )


class RowStatistics:
    """Counts rows by metric; memory grows with the number of series, not of rows."""

    def __init__(self) -> None:
        self._values: Counter[str] = Counter()
        self._series: dict[str, dict[str, None]] = defaultdict(dict)
        self._reasons: dict[str, Counter[str]] = defaultdict(Counter)

    def add(self, rows: Sequence[Row]) -> None:
        """Count the rows of one tick."""
        for row in rows:
            if row.value is not None:
                self._values[row.metric] += 1
                self._series[row.metric][row.series] = None
                continue
            reasons = self._reasons[row.metric]
            known = row.reason in reasons or len(reasons) < _MAX_REASONS
            reasons[row.reason if known else _OTHER_REASONS] += 1

    def add_column(self, column: Column) -> None:
        """Count the rows of one series."""
        counted = Counter(column.reasons)
        present = counted.pop("", 0)
        if present:
            self._values[column.metric] += present
            self._series[column.metric][column.series] = None
        reasons = self._reasons[column.metric]
        for reason, count in counted.items():
            known = reason in reasons or len(reasons) < _MAX_REASONS
            reasons[reason if known else _OTHER_REASONS] += count

    def summaries(self, names: Sequence[str]) -> dict[str, MetricSummary]:
        """One summary per metric, in the order given."""
        return {
            name: MetricSummary(
                series=list(self._series[name]),
                values=self._values[name],
                missing=self._reasons[name].total(),
                reasons=dict(self._reasons[name]),
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


class Recording(Protocol):
    """Rows of every series, from a start on the grid."""

    def record(self, start_s: float, rows: int) -> RecordingSummary:
        """Record ``rows`` rows of every series; call it one window and a step before ``start_s``.

        Args:
            start_s: grid time of row 0, seconds since the epoch; a whole multiple of the step.

        Raises:
            MetricsError: nothing can be recorded at all; what is missing in part is in the rows, with its reason.
            StorageError: the rows cannot be written.
        """
        ...
