"""A workload whose counters stand still most of each second: two scrapers at different phases see the same values."""

from __future__ import annotations

import time
from typing import Any

PHASE_S = 0.1
"""A burst begins this long after each full second, and is over about 0.1 s later."""


class Bursts:
    """A handful of sleeps just after each full second; another number of them, of other lengths, every time."""

    name = "bursts"

    def __init__(self, replica: int) -> None:
        self._replica = replica
        self._sleeps_s: list[float] = []

    def infer(self) -> int:
        if not self._sleeps_s:
            second = int(time.time() - PHASE_S) + 1
            time.sleep(max(second + PHASE_S - time.time(), 0))
            count = 4 + (7 * second + 3 * self._replica) % 8
            self._sleeps_s = [0.001 + 0.0013 * ((second + 5 * place) % 11) for place in range(count)]
        time.sleep(self._sleeps_s.pop())
        return 1


def make(settings: Any) -> Bursts:
    return Bursts(settings.replica)
