"""The grid of an export: its times, its chunks, and answers laid out on it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.errors import PrometheusError
from harness.metrics.catalogue import Metric
from harness.metrics.prometheus.adapter import MAX_POINTS, Series
from harness.metrics.row_builder import NO_REPLICA, NO_REQUESTS, TOO_FEW
from harness.metrics.rows import Column

NO_SAMPLE = "Prometheus holds no sample of this step: a gap, or it scrapes more rarely than the step"
NOT_A_NUMBER = "Prometheus answered NaN"


@dataclass(frozen=True, slots=True)
class Grid:
    """Row ``k`` of an export is at ``start + k * step``, in ms since the epoch."""

    start_ms: int
    step_ms: int
    window_ms: int
    rows: int

    @property
    def end_ms(self) -> int:
        """Time of the last row."""
        return self.start_ms + (self.rows - 1) * self.step_ms

    def times_ms(self) -> NDArray[np.int64]:
        """Every grid time; shape (rows,)."""
        return self.start_ms + self.step_ms * np.arange(self.rows, dtype=np.int64)

    def chunks(self, limit: int = MAX_POINTS) -> Iterator[Grid]:
        """Consecutive grids of at most ``limit`` rows, without gap or duplicate."""
        for first in range(0, self.rows, limit):
            rows = min(limit, self.rows - first)
            yield Grid(self.start_ms + first * self.step_ms, self.step_ms, self.window_ms, rows)


def column(
    metric: Metric,
    name: str,
    chunk: Grid,
    answers: Sequence[Series],
    present: NDArray[np.bool_],
    unmeasured: str = NO_SAMPLE,
) -> Column:
    """One series of an answer on the grid; a grid time that the answer leaves out had too few scrapes.

    Raises:
        PrometheusError: the answer has times that are not on the grid.
    """
    values = np.full(chunk.rows, np.nan)
    answered = np.zeros(chunk.rows, dtype=np.bool_)
    for answer in answers:
        places, rest = np.divmod(answer.times_ms - chunk.start_ms, chunk.step_ms)
        if rest.any() or places[0] < 0 or places[-1] >= chunk.rows:
            raise PrometheusError(f"{metric.name}: Prometheus answered times that are not on the grid.")
        values[places] = answer.values
        answered[places] = True
    return cells(metric, name, values, present, unmeasured, answered)


def summed(metric: Metric, name: str, columns: Sequence[Column]) -> Column:
    """Series ``name``, which pools a gauge: the sum of the replicas that were measured at each grid time."""
    values, present = _stacked(columns)
    return cells(metric, name, np.where(present, values, 0.0).sum(axis=0), np.asarray(present.any(axis=0)), NO_REPLICA)


def averaged(metric: Metric, name: str, columns: Sequence[Column]) -> Column:
    """Series ``name``: the mean of those columns that were measured at each grid time."""
    values, present = _stacked(columns)
    count = present.sum(axis=0)
    means = np.where(present, values, 0.0).sum(axis=0) / np.maximum(count, 1)
    return cells(metric, name, means, count > 0, NO_SAMPLE)


def _stacked(columns: Sequence[Column]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Values and whether they are there; both of shape (columns, rows)."""
    values = np.array([column.values for column in columns])
    return values, np.array([[not reason for reason in column.reasons] for column in columns])


def cells(
    metric: Metric,
    name: str,
    values: NDArray[np.float64],
    present: NDArray[np.bool_],
    unmeasured: str,
    answered: NDArray[np.bool_] | None = None,
) -> Column:
    """Values with a reason wherever there is none: not measured, not answered, or not a number."""
    nan_reason = NO_REQUESTS if metric.of_histogram else NOT_A_NUMBER
    reasons = np.full(len(values), "", dtype=object)
    reasons[~np.isfinite(values)] = nan_reason
    if answered is not None:
        reasons[~answered] = TOO_FEW
    reasons[~present] = unmeasured
    return Column(metric.name, name, values.tolist(), reasons.tolist())
