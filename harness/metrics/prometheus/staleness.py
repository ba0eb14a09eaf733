"""What was really measured: raw samples against the grid.

A server answers a grid time with the last sample of the five minutes before it, so that a gap, a slow
scrape or the time after the end look like data. Here a row counts only if one of the metric's own
samples lies in its step, ``(t - step, t]``: the same rule by which the embedded recorder has a row. (In a
cluster a container's sample may be two steps old: see ``Dialect.container_age_steps``.)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from harness.metrics.prometheus.adapter import Series
from harness.metrics.promql_math import RunningTotal

Flags = NDArray[np.bool_]
Key = tuple[str, ...]
"""Values of the labels that tell series apart."""


def by_labels(series: Sequence[Series], names: Sequence[str]) -> dict[Key, list[Series]]:
    """The series grouped by the values of some labels (several in a group: a container that was restarted)."""
    groups: dict[Key, list[Series]] = defaultdict(list)
    for one in series:
        groups[tuple(one.labels.get(name, "") for name in names)].append(one)
    return dict(groups)


def measured(samples: Sequence[Series], grid_ms: NDArray[np.int64], age_ms: int) -> Flags:
    """For each grid time, whether a sample is at most ``age_ms`` old (a step, as a rule); shape (rows,)."""
    flags = np.zeros(len(grid_ms), dtype=np.bool_)
    for series in samples:
        ended = np.searchsorted(series.times_ms, grid_ms, side="right")
        began = np.searchsorted(series.times_ms, grid_ms - age_ms, side="right")
        flags |= ended > began
    return flags


def has_reset(samples: Sequence[Series]) -> bool:
    """A counter fell somewhere in the range."""
    return any(bool((np.diff(series.values) < 0).any()) for series in samples)


class CountedTotal:
    """Growth of one replica's counters since the first grid time; fed chunk by chunk, resets handled.

    Args:
        start_ms: the first grid time. The last sample up to it is the base; without one, the first after it.
    """

    def __init__(self, start_ms: int) -> None:
        self._start_ms = start_ms
        self._totals: dict[tuple[tuple[str, str], ...], RunningTotal] = defaultdict(RunningTotal)

    def advance(self, samples: Sequence[Series], grid_ms: NDArray[np.int64]) -> NDArray[np.float64]:
        """The total at each grid time, NaN before the first sample; shape (rows,).

        Args:
            samples: raw samples that no earlier call was given.
            grid_ms: the chunk's grid times.
        """
        new = {tuple(sorted(one.labels.items())): one for one in samples}
        columns = [
            self._one(self._totals[key], new.get(key), grid_ms) for key in sorted(new.keys() | self._totals.keys())
        ]
        if not columns:
            return np.full(len(grid_ms), np.nan)
        stacked = np.stack(columns)
        return np.where(np.isnan(stacked).all(axis=0), np.nan, np.nansum(stacked, axis=0))

    def _one(self, total: RunningTotal, series: Series | None, grid_ms: NDArray[np.int64]) -> NDArray[np.float64]:
        history = [total.counted if total.seen else np.nan]
        times_ms = series.times_ms if series is not None else np.empty(0, dtype=np.int64)
        for time_ms, value in zip(times_ms.tolist(), series.values.tolist() if series is not None else (), strict=True):
            total.observe(value, counting=time_ms > self._start_ms)
            history.append(total.counted)
        return np.array(history)[np.searchsorted(times_ms, grid_ms, side="right")]
