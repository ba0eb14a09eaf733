"""A workload whose counters stand still most of each second: two scrapers at different phases see the same values."""

from __future__ import annotations

import time
from typing import Any

PHASE_S = 0.2
"""A burst begins this long after each full second."""
END_S = 0.4
"""No request begins later than this after a full second, however slow the machine."""


class Bursts:
    """A handful of sleeps just after each full second; another number of them, of other lengths, every time."""

    name = "bursts"

    def __init__(self, replica: int) -> None:
        self._replica = replica
        self._sleeps_s: list[float] = []

    def infer(self) -> int:
        if not self._sleeps_s or time.time() % 1 > END_S:
            second = int(time.time() - PHASE_S) + 1
            if second % 5 == self._replica:
                second += 1  # now and then a second is left out, so that the slowest request is sometimes twice as slow
            time.sleep(max(second + PHASE_S - time.time(), 0))
            count = 5 + (13 * second + 3 * self._replica) % 35
            unit_s = 0.0002 * (1 + second % 3)
            self._sleeps_s = [unit_s * (1 + (second + 5 * place) % 7) for place in range(count)]
        time.sleep(self._sleeps_s.pop())
        return 1


def make(settings: Any) -> Bursts:
    return Bursts(settings.replica)
