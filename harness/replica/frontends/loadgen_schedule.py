"""When LoadGen meant to send each query of its Server scenario.

LoadGen counts latency from the scheduled time and does not tell it to the system that serves. The schedule follows
from its seed: intervals of ``std::exponential_distribution`` over ``std::mt19937``, in whole nanoseconds, the
first query at 0. The tests hold it against LoadGen's own percentiles.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

_CHUNK = 4096
_NS_PER_S = 1_000_000_000


def offsets_ns(seed: int, rate: float) -> Iterator[int]:
    """Scheduled times after the start of a test at ``rate`` queries per second, nanoseconds."""
    twister = np.random.RandomState(seed)  # LoadGen's generator, not a newer one
    at_ns = 0
    while True:
        words = twister.randint(0, 2**32, size=2 * _CHUNK, dtype=np.uint32).astype(np.float64)
        uniform = (words[0::2] + words[1::2] * 2.0**32) / 2.0**64
        for interval_ns in (-np.log(1.0 - uniform) / rate * _NS_PER_S).astype(np.int64).tolist():
            yield at_ns
            at_ns += interval_ns


class ScheduledTimes:
    """Scheduled times by the clock that the queries are seen with."""

    def __init__(self, seed: int, rate: float) -> None:
        self._offsets = offsets_ns(seed, rate)
        self._start_ns: int | None = None

    def next_ns(self, seen_ns: int) -> int:
        """Scheduled time of the next query, which was seen at ``seen_ns``.

        The start is the earliest that any query so far allows: a query is never seen before its time.
        """
        offset_ns = next(self._offsets)
        start_ns = seen_ns - offset_ns
        if self._start_ns is None or start_ns < self._start_ns:
            self._start_ns = start_ns
        return self._start_ns + offset_ns
