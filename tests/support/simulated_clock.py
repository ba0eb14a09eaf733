"""A clock that skips its sleeps."""

from __future__ import annotations

import threading
import time


class SimulatedClock:
    """Real time plus every sleep, taken at once.

    Work still costs what it costs, so that the wall time of a simulated campaign minus the sum of
    its phases is the harness's own overhead.
    """

    def __init__(self, start_s: float | None = None) -> None:
        self._offset_s = (time.time() if start_s is None else start_s) - time.monotonic()

    def now_s(self) -> float:
        """Seconds since the epoch, never going backwards."""
        return self._offset_s + time.monotonic()

    def wait_until(self, deadline_s: float, wake: threading.Event | None = None) -> bool:
        """Jump to ``deadline_s`` unless ``wake`` is set already."""
        if wake is not None and wake.is_set():
            return True
        self._offset_s += max(deadline_s - self.now_s(), 0.0)
        return False


class StillClock:
    """Time passes while somebody waits, and only then."""

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = start_s

    def now_s(self) -> float:
        """Seconds."""
        return self._now_s

    def wait_until(self, deadline_s: float, wake: threading.Event | None = None) -> bool:
        """Let the time pass."""
        self._now_s = max(self._now_s, deadline_s)
        return wake is not None and wake.is_set()
