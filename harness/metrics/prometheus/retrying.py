"""A Prometheus that may be away for a while: it keeps its data over a restart, so asking again is worth it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from harness.clock import Clock
from harness.errors import PrometheusUnavailableError
from harness.metrics.prometheus.adapter import Answer, PrometheusServer

PAUSE_S = 1.0
"""Between two attempts: a server that has just started is not asked harder than it is scraped."""


class PatientServer:
    """Asks a server as often as it takes; safe to use from several threads.

    Args:
        server: the one that is asked.
        clock: real or simulated.
        patience_s: for how long the server may be away at a stretch.
        notice: told once per stretch that it is away.
    """

    def __init__(
        self, server: PrometheusServer, *, clock: Clock, patience_s: float, notice: Callable[[str], None]
    ) -> None:
        self._server = server
        self._clock = clock
        self._patience_s = patience_s
        self._notice = notice
        self._lock = threading.Lock()
        self._away_since_s: float | None = None

    def query(self, promql: str, time_s: float | None = None) -> Answer:
        """As the server's own."""
        return self._ask(lambda: self._server.query(promql, time_s))

    def query_range(self, promql: str, start_ms: int, end_ms: int, step_ms: int) -> Answer:
        """As the server's own."""
        return self._ask(lambda: self._server.query_range(promql, start_ms, end_ms, step_ms))

    def raw(self, selector: str, start_ms: int, end_ms: int) -> Answer:
        """As the server's own."""
        return self._ask(lambda: self._server.raw(selector, start_ms, end_ms))

    def _ask(self, call: Callable[[], Answer]) -> Answer:
        while True:
            try:
                answer = call()
            except PrometheusUnavailableError as error:
                if self._given_up(error):
                    raise
                self._clock.wait_until(self._clock.now_s() + PAUSE_S)
            else:
                with self._lock:
                    self._away_since_s = None
                return answer

    def _given_up(self, error: PrometheusUnavailableError) -> bool:
        """Whether the server has been away for too long; begins to count at the first failure."""
        with self._lock:
            now_s = self._clock.now_s()
            if self._away_since_s is None:
                self._away_since_s = now_s
                self._notice(f"{error.message} It is asked again for {self._patience_s:.0f} s.")
            return now_s - self._away_since_s >= self._patience_s
