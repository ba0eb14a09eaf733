"""When processes that share a GPU had their turns: how long a turn lasts, what a switch takes, and what of the GPU's time goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

from harness.analysis.format import DASH, quantity, with_interval
from harness.analysis.statistics import Estimate, t_interval

Slices = npt.NDArray[np.int64]
"""Begin and end of each time that a process was on the GPU, ns of the GPU's clock, shape (n, 2), in order."""
_SIDE_BY_SIDE_PERCENT = 50.0
"""Of the time that two or more ran at once: where they take turns it is next to nothing, and without turns nearly all."""


@dataclass(frozen=True, slots=True)
class Turns:
    """What one measurement showed, in the ``seconds`` in which every process ran.

    Attributes:
        slice_s: length of each whole turn; those that the time cuts off at its ends are left out.
        switch_s: from the end of a process's turn to the beginning of another's.
        switching_share: share of the time in which nobody ran.
        together_share: share of the time in which two or more ran at once: 1 where nobody takes turns.
    """

    seconds: float
    slice_s: Sequence[float]
    switch_s: Sequence[float]
    switching_share: float
    together_share: float


def turns(processes: Sequence[Slices]) -> Turns | None:
    """The turns of ``processes``; None where they did not run at the same time."""
    begin = max(int(slices[0, 0]) for slices in processes)
    end = min(int(slices[-1, 1]) for slices in processes)
    if end <= begin:
        return None
    rows = np.concatenate([np.column_stack([s, np.full(len(s), owner)]) for owner, s in enumerate(processes)])
    rows = rows[np.argsort(rows[:, 0], kind="stable")]
    whole = (rows[:, 0] > begin) & (rows[:, 1] < end)
    clipped = np.clip(rows[:, :2], begin, end)
    # +1 where somebody begins, -1 where somebody ends: between two such moments the number at work is constant.
    moments = np.concatenate([clipped[:, 0], clipped[:, 1]])
    steps = np.repeat([1, -1], len(rows))
    order = np.argsort(moments, kind="stable")
    at_work = np.cumsum(steps[order])[:-1]
    lengths = np.diff(moments[order])
    # What lies between the first and the last moment, and what lies outside of them, where nobody is at work.
    nobody = lengths[at_work == 0].sum() + (end - begin) - lengths.sum()
    between = rows[1:, 0] - rows[:-1, 1]
    switches = (between > 0) & (rows[1:, 2] != rows[:-1, 2]) & (rows[:-1, 1] >= begin) & (rows[1:, 0] <= end)
    alternating = len(processes) > 1
    return Turns(
        seconds=(end - begin) / 1e9,
        slice_s=[float(length) / 1e9 for length in rows[whole, 1] - rows[whole, 0]] if alternating else [],
        switch_s=[float(gap) / 1e9 for gap in between[switches]],
        switching_share=float(nobody / (end - begin)),
        together_share=float(lengths[at_work > 1].sum() / (end - begin)),
    )


@dataclass(frozen=True, slots=True)
class TimeSlices:
    """Over repeats: means of each repeat's own figure, with 95% intervals between the repeats.

    Medians of turns and switches, None where there was none, with the 5th and 95th percentile over all of them; how many
    switches were seen; percent of the GPU's time in which nobody ran, and in which two or more did.
    """

    slice_s: Estimate | None
    slice_s_range: tuple[float, float] | None
    switch_s: Estimate | None
    switch_s_range: tuple[float, float] | None
    switches: int
    switching_percent: Estimate
    together_percent: Estimate


def time_slices(repeats: Sequence[Turns]) -> TimeSlices:
    """What the repeats say together; there must be one at least."""
    switches = [turn.switch_s for turn in repeats]
    return TimeSlices(
        *_spread([turn.slice_s for turn in repeats]),
        *_spread(switches),
        switches=sum(map(len, switches)),
        switching_percent=t_interval([100 * turn.switching_share for turn in repeats]),
        together_percent=t_interval([100 * turn.together_share for turn in repeats]),
    )


def sentence(seen: TimeSlices, processes: int) -> str:
    """The answer, for people."""
    if seen.slice_s is None or seen.switch_s is None:
        if seen.together_percent.mean < _SIDE_BY_SIDE_PERCENT:
            return f"No whole time slice of the {processes} processes was seen: record longer with --seconds."
        return f"The {processes} processes ran at the same time: none waited for a time slice."
    return (
        f"Each of the {processes} processes gets time slices of {with_interval(seen.slice_s, 's')}. A context switch takes "
        f"{with_interval(seen.switch_s, 's')}: {seen.switching_percent.mean:.1f}% of the GPU's time."
    )


def rows(seen: TimeSlices) -> list[tuple[str, str, str]]:
    """A table of the figures: name, value with its interval between repeats, range of the single turns."""
    lines = []
    for name, median, ends in (
        ("time slice", seen.slice_s, seen.slice_s_range),
        ("context switch", seen.switch_s, seen.switch_s_range),
    ):
        span = " to ".join(quantity(end, "s") for end in ends) if ends else DASH
        lines.append((name, with_interval(median, "s") if median else DASH, span))
    return [
        *lines,
        ("GPU time lost to switching", with_interval(seen.switching_percent, "%"), DASH),
        ("time in which two or more run", with_interval(seen.together_percent, "%"), DASH),
    ]


def _spread(repeats: Sequence[Sequence[float]]) -> tuple[Estimate | None, tuple[float, float] | None]:
    """The median of each repeat, and the 5th and 95th percentile of all."""
    values = list(chain.from_iterable(repeats))
    if not values:
        return None, None
    medians = t_interval([float(np.median(repeat)) for repeat in repeats if repeat])
    return medians, (float(np.percentile(values, 5)), float(np.percentile(values, 95)))
