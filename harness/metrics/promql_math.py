"""Rates and quantiles with Prometheus's own arithmetic, in its order of operations, so that a server computes the same numbers.

A window is left-open, ``(t - window, t]``: with one scrape per step it holds ``window / step`` samples, whatever their phase.
"""

from __future__ import annotations

import math
from collections import deque

import numpy as np
from numpy.typing import NDArray

MS_PER_S = 1000.0
_GAP_FACTOR = 1.1
"""A sample further from the window's edge than this many mean intervals is a gap, not a late scrape."""

Vector = NDArray[np.float64]


def to_ms(time_s: float) -> int:
    """Whole milliseconds: the resolution of Prometheus, and of every grid here."""
    return round(time_s * MS_PER_S)


def range_ms(window_s: float) -> int:
    """Milliseconds that rates look back: one less than the window, whose start is part of a range up to Prometheus 2 and not from 3 on."""
    return to_ms(window_s) - 1


def extrapolated_rate(times_ms: list[int], samples: Vector, start_ms: int, end_ms: int) -> Vector | None:
    """Per-second rates, shape (k,), over one window, extrapolated to its edges as PromQL's ``rate()`` does.

    ``times_ms``: ascending, shape (n,); ``samples``: shape (n, k). None with fewer than two samples.
    """
    if len(times_ms) < 2:
        return None
    increase = samples[-1] - samples[0]
    falls = samples[1:] < samples[:-1]
    if falls.any():
        increase = increase + np.where(falls, samples[:-1], 0.0).sum(axis=0)
    sampled_s = (times_ms[-1] - times_ms[0]) / MS_PER_S
    mean_interval_s = sampled_s / (len(times_ms) - 1)
    to_start_s = (times_ms[0] - start_ms) / MS_PER_S
    to_end_s = (end_ms - times_ms[-1]) / MS_PER_S
    threshold_s = mean_interval_s * _GAP_FACTOR
    if to_start_s >= threshold_s:
        to_start_s = mean_interval_s / 2
    if to_end_s >= threshold_s:
        to_end_s = mean_interval_s / 2
    # A counter cannot have been negative: never extrapolate it back beyond its zero.
    rising = (increase > 0) & (samples[0] >= 0)
    to_zero_s = np.divide(sampled_s * samples[0], increase, out=np.full(increase.shape, math.inf), where=rising)
    extrapolated_s = sampled_s + np.minimum(to_start_s, to_zero_s) + to_end_s
    window_s = (end_ms - start_ms) / MS_PER_S
    rate: Vector = increase * (extrapolated_s / sampled_s / window_s)
    return rate


def histogram_quantile(quantile: float, bounds: Vector, cumulative: Vector) -> float:
    """Quantile (0 to 1) of a classic histogram, linear inside a bucket, in the bounds' unit; NaN without observations.

    ``bounds``: upper bounds, ascending, the last one +Inf; ``cumulative``: observations (or their rate) at or below each; both of
    shape (k,). In the +Inf bucket it is the highest finite bound: saturation of the histogram, not a measurement.
    """
    cumulative = np.maximum.accumulate(cumulative)
    total = cumulative[-1]
    if len(bounds) < 2 or not total > 0:
        return math.nan
    rank = quantile * total
    index = int(np.searchsorted(cumulative[:-1], rank, side="left"))
    if index == len(bounds) - 1:
        return float(bounds[-2])
    if index == 0 and bounds[0] <= 0:
        return float(bounds[0])
    lower, below = (bounds[index - 1], cumulative[index - 1]) if index else (0.0, 0.0)
    return float(lower + (bounds[index] - lower) * ((rank - below) / (cumulative[index] - below)))


class CounterWindow:
    """The samples of one target's counters inside the sliding window; memory is bounded by the window."""

    def __init__(self, window_ms: int) -> None:
        self._window_ms = window_ms
        self._samples: deque[tuple[int, float, Vector]] = deque()

    def add(self, time_ms: int, values: Vector, read_ms: float | None = None) -> None:
        """Keep one scrape of the time ``time_ms``, read at ``read_ms``; another shape (other buckets) starts afresh."""
        if self._samples and self._samples[-1][2].shape != values.shape:
            self._samples.clear()
        self._samples.append((time_ms, time_ms if read_ms is None else read_ms, values))
        self._drop_before(time_ms)

    def clear(self) -> None:
        """Forget everything: what follows is not comparable with what came before."""
        self._samples.clear()

    def rate(self, end_ms: int) -> Vector | None:
        """Per-second rates over ``(end - window, end]``; None with fewer than two samples in it."""
        self._drop_before(end_ms)
        if len(self._samples) < 2:
            return None
        times_ms = [time_ms for time_ms, _, _ in self._samples]
        values = np.stack([values for _, _, values in self._samples])
        return extrapolated_rate(times_ms, values, end_ms - self._window_ms, end_ms)

    def timed_rate(self, end_ms: int) -> float | None:
        """``rate`` of the first counter per second that really passed between its readings, which are not on the grid."""
        rates = self.rate(end_ms)
        if rates is None:
            return None
        passed_ms = self._samples[-1][1] - self._samples[0][1]
        planned_ms = self._samples[-1][0] - self._samples[0][0]
        return float(rates[0]) * planned_ms / passed_ms if passed_ms > 0 else None

    def _drop_before(self, end_ms: int) -> None:
        while self._samples and self._samples[0][0] <= end_ms - self._window_ms:
            self._samples.popleft()


class RunningTotal:
    """Counted since the recording began, from a raw counter; a counter that fell was reset and goes on."""

    def __init__(self) -> None:
        self._last: float | None = None
        self.counted: float = 0.0

    @property
    def seen(self) -> bool:
        """The counter was read at least once."""
        return self._last is not None

    def observe(self, value: float, *, counting: bool) -> None:
        """Take the counter's value; before the first row (``counting`` false) it only sets the base."""
        if counting and self._last is not None:
            self.counted += value - self._last if value >= self._last else value
        self._last = value
