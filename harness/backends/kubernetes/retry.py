"""How long to try again: growing pauses with jitter, as long as the server asks for, up to a limit."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping

TRANSIENT = frozenset({429, 500, 502, 503, 504})
"""Answers of a server that is busy, starting, or behind a proxy that lost it."""

SETTLING = frozenset({401, 403})
"""Answers of a server that has just started, too: its rules are not loaded yet."""

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0
LONGEST_RETRY_AFTER_S = 30.0


class Patience:
    """The pauses between the tries of one request.

    Args:
        limit_s: seconds from now after which nothing is tried any more.
        longest_pause_s: no pause is longer, unless the server asks for it.
    """

    def __init__(self, limit_s: float, *, longest_pause_s: float) -> None:
        self._begun_s = time.monotonic()
        self._limit_s = limit_s
        self._longest_s = longest_pause_s
        self._pause_s = min(FIRST_PAUSE_S, longest_pause_s)
        self.tries = 0

    @property
    def spent_s(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self._begun_s

    def progress(self) -> None:
        """Something got through: begin anew."""
        self._begun_s = time.monotonic()
        self._pause_s = min(FIRST_PAUSE_S, self._longest_s)

    def pause_s(self, headers: Mapping[str, str] | None = None) -> float | None:
        """How long to wait before the next try; None: it is over."""
        self.tries += 1
        wanted_s = self._pause_s * random.uniform(0.5, 1.0)  # noqa: S311 - jitter, no secret
        self._pause_s = min(2 * self._pause_s, self._longest_s)
        wanted_s = max(wanted_s, _retry_after_s(headers or {}))
        return None if self.spent_s + wanted_s > self._limit_s else wanted_s


def _retry_after_s(headers: Mapping[str, str]) -> float:
    """What the server asks for; 0 when it asks for nothing, or for a date."""
    try:
        return min(max(float(headers.get("Retry-After", "0")), 0.0), LONGEST_RETRY_AFTER_S)
    except ValueError:
        return 0.0
