"""Time as the harness sees it.

All times are seconds since the Unix epoch (UTC) as floats. A clock is read through ``now_s`` and
never jumps backwards: it is anchored to the wall clock once and driven by the monotonic clock,
so that a step of NTP in mid-record cannot tear a recording grid.
"""

from __future__ import annotations

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """What every module that waits takes as an argument."""

    def now_s(self) -> float:
        """Seconds since the epoch, never going backwards."""

    def wait_until(self, deadline_s: float, wake: threading.Event | None = None) -> bool:
        """Sleep until ``deadline_s`` or until ``wake`` is set; True when ``wake`` ended the sleep."""


class SystemClock:
    """Real time."""

    def __init__(self) -> None:
        self._anchor_s = time.time() - time.monotonic()

    def now_s(self) -> float:
        """Seconds since the epoch, never going backwards."""
        return self._anchor_s + time.monotonic()

    def wait_until(self, deadline_s: float, wake: threading.Event | None = None) -> bool:
        """Sleep until ``deadline_s`` or until ``wake`` is set; True when ``wake`` ended the sleep."""
        remaining_s = deadline_s - self.now_s()
        if wake is None:
            if remaining_s > 0:
                time.sleep(remaining_s)
            return False
        return wake.wait(max(remaining_s, 0.0))
