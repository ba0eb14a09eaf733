"""An interactive session, as in a notebook: bursts of work, and time to think in between.

The work is that of ``resnet50.py``, so that a request here and one there take as long when nothing disturbs them. A
burst has a random number of requests (geometric), a pause a random length (exponential); both come from the seed
and the replica, so that sessions differ from each other and a session does not from run to run. Pauses are no
latency: the session holds its memory and asks for nothing.
"""

from __future__ import annotations

import dataclasses
import random

from harness.replica.custom_metrics import Activity
from harness.replica.models import resnet50
from harness.replica.settings import Settings

_OWN_OPTIONS = ("burst_requests", "think_s")


class Notebook:
    """One session."""

    name = "notebook"

    def __init__(self, settings: Settings) -> None:
        self._mean_requests = settings.whole("burst_requests", 100, 1)
        self._mean_think_s = settings.number("think_s", 2.0)
        options = {name: value for name, value in settings.options.items() if name not in _OWN_OPTIONS}
        self._work = resnet50.ResNet50(dataclasses.replace(settings, options=options))
        self.model, self.pool = self._work.model, self._work.pool
        self.answer, self.serving, self.describe = self._work.answer, self._work.serving, self._work.describe
        seed = settings.seed * 1_000_003 + settings.replica
        self._random = random.Random(seed)  # noqa: S311 - a session to repeat, not a secret
        self._activity = Activity()

    def published(self) -> tuple[Activity]:
        """Return what ``/metrics`` shows besides latencies."""
        return (self._activity,)

    def outcome(self) -> dict[str, object]:
        """Return the seconds spent working and thinking since the warm-up."""
        return {f"{state}_seconds": round(spent_ns / 1e9, 6) for state, spent_ns in self._activity.spent_ns().items()}

    def think_s(self) -> float:
        """Return the pause before the next request, in seconds: 0 inside of a burst."""
        if self._random.random() * self._mean_requests >= 1.0:
            return 0.0
        return self._random.expovariate(1.0) * self._mean_think_s

    def infer(self) -> int:
        """Serve one batch; returns its size."""
        self._activity.enter("active")
        try:
            return self._work.infer()
        finally:
            self._activity.enter("idle")


make = Notebook
