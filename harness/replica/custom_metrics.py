"""What a workload publishes on ``/metrics`` beyond requests and latencies: counters, histograms, times.

A workload makes them, updates them in ``infer()`` and hands them over by ``published()``; the replica renders them
with its own and clears them after the warm-up. All may be updated in one thread and rendered in another.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from itertools import accumulate

from harness.replica.metrics import BUCKET_BOUNDS_NS, bucket_prefixes, head, seconds


class Counter:
    """A count that only rises; its name ends in ``_total``."""

    def __init__(self, name: str, text: str) -> None:
        self.count = 0
        self._name = name
        self._head = head(name, "counter", text)

    def add(self, number: int) -> None:
        """Count ``number`` more; from one thread only."""
        self.count += number

    def reset(self) -> None:
        """Back to 0."""
        self.count = 0

    def render(self) -> str:
        """Return its lines."""
        return f"{self._head}{self._name} {self.count}\n"


class Histogram:
    """Durations in the buckets of the latencies; its name ends in ``_seconds``."""

    def __init__(self, name: str, text: str) -> None:
        self._name = name
        self._head = head(name, "histogram", text)
        self._prefixes = bucket_prefixes(name)
        self._lock = threading.Lock()
        self.reset()

    def observe(self, duration_ns: int) -> None:
        """Count one duration."""
        with self._lock:
            self._counts[bisect_left(BUCKET_BOUNDS_NS, duration_ns)] += 1
            self._sum_ns += duration_ns

    def reset(self) -> None:
        """Forget all durations."""
        with self._lock:
            self._counts = [0] * len(self._prefixes)
            self._sum_ns = 0

    def render(self) -> str:
        """Return its lines, all of the same instant."""
        with self._lock:
            cumulative, sum_ns = list(accumulate(self._counts)), self._sum_ns
        buckets = "".join(f"{prefix}{count}\n" for prefix, count in zip(self._prefixes, cumulative, strict=True))
        return f"{self._head}{buckets}{self._name}_sum {seconds(sum_ns)}\n{self._name}_count {cumulative[-1]}\n"


class Activity:
    """How long a session worked and how long it was idle, up to the instant of the scrape."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._head = {
            name: head(f"inference_{name}_seconds_total", "counter", text)
            for name, text in (("active", "Time spent in requests."), ("idle", "Time spent thinking between them."))
        }
        self.reset()

    def reset(self) -> None:
        """Begin again, idle."""
        with self._lock:
            self._spent_ns = {"active": 0, "idle": 0}
            self._state = "idle"
            self._since_ns = time.perf_counter_ns()

    def enter(self, state: str) -> None:
        """From now on the session is ``active`` or ``idle``."""
        with self._lock:
            now_ns = time.perf_counter_ns()
            self._spent_ns[self._state] += now_ns - self._since_ns
            self._state, self._since_ns = state, now_ns

    def spent_ns(self) -> dict[str, int]:
        """Return nanoseconds spent ``active`` and ``idle``."""
        with self._lock:
            spent_ns = self._spent_ns.copy()
            spent_ns[self._state] += time.perf_counter_ns() - self._since_ns
        return spent_ns

    def render(self) -> str:
        """Return its lines, both of the same instant."""
        return "".join(
            f"{self._head[name]}inference_{name}_seconds_total {seconds(spent_ns)}\n"
            for name, spent_ns in self.spent_ns().items()
        )
