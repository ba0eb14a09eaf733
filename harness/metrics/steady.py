"""Steady state: had the machine settled while it was recorded?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

WINDOWS = 10
CONSECUTIVE = 3
TOLERANCE = 0.10
MIN_ROWS_PER_WINDOW = 3


@dataclass(frozen=True, slots=True)
class SteadyState:
    """The judgement on one series.

    Attributes:
        steady: at least its last three windows agree within 10 %.
        from_row: first row of the windows that agree; None when not steady.
    """

    judged: bool
    steady: bool
    from_row: int | None
    means: tuple[float, ...]


def steady_state(values: Sequence[float] | NDArray[np.float64]) -> SteadyState:
    """Judge a series, usually throughput: ten windows (fewer of a short one), of which the last three or more agree.

    Windows agree when the highest mean is at most 10 % of their common mean above the lowest. Missing
    values (NaN) are left out of their window's mean.
    """
    series = np.asarray(values, dtype=np.float64)
    count = min(WINDOWS, len(series) // MIN_ROWS_PER_WINDOW)
    if count < CONSECUTIVE or np.isnan(series).all():
        return SteadyState(judged=False, steady=False, from_row=None, means=())
    parts = [part[~np.isnan(part)] for part in np.array_split(series, count)]
    means = np.array([part.mean() if len(part) else 0.0 for part in parts])
    starts = np.cumsum([0, *(len(part) for part in np.array_split(series, count))])
    for first in range(count - CONSECUTIVE + 1):
        if _agree(means[first:]):
            return SteadyState(True, True, int(starts[first]), tuple(means.tolist()))
    return SteadyState(judged=True, steady=False, from_row=None, means=tuple(means.tolist()))


def _agree(means: NDArray[np.float64]) -> bool:
    return bool(means.mean() > 0 and means.max() - means.min() <= TOLERANCE * means.mean())
