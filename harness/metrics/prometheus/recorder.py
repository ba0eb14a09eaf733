"""A recording by a Prometheus server: it scrapes, the harness watches over it and collects the rows at the end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from harness.clock import Clock
from harness.errors import MetricsError, PrometheusUnavailableError, UsageError
from harness.metrics.catalogue import Metric
from harness.metrics.prometheus.adapter import PrometheusServer, RetryingServer
from harness.metrics.prometheus.exporter import ExportSummary, export
from harness.metrics.prometheus.series import replica_names
from harness.metrics.prometheus.watch import Watch
from harness.metrics.promql import Beside, Dialect
from harness.metrics.promql_math import MS_PER_S, to_ms
from harness.metrics.rows import Lateness, RecordingSummary, RowSink, missing_warnings

PATIENCE_S = 300.0
WOKEN_PATIENCE_S = 10.0
"""Whoever ends a recording early is waiting."""
LOOK_S = 2.0
"""Between two looks at the server, at least; otherwise every step."""
LOOK_TIMEOUT_S = 2.0
MAX_WARNINGS = 200
"""A target that comes and goes for hours must not fill the manifest."""


class PrometheusRecorder:
    """Records one experiment from the server that scrapes it.

    Args:
        replicas: label values (pod names), in the order of ``replica-0``...
        step_s: seconds between rows; the server should scrape as often.
        clock: real time; a server has no other.
        wake: ends the recording early when set.
        on_tick: called at each grid time with rows done and rows in all.
        notice: told at once what the server stops seeing, a sentence each.
        enough: asked at each grid time, with the rows done, whether it may be the last one.
        remarks: what is known to be amiss from the beginning; kept with the recording.
        patience_s: how long the server may be away at the end before collecting is given up.
    """

    def __init__(
        self,
        server: PrometheusServer,
        *,
        dialect: Dialect,
        replicas: Sequence[str],
        beside: Sequence[Beside] = (),
        metrics: Sequence[Metric],
        step_s: float,
        window_s: float,
        sink: RowSink,
        clock: Clock,
        wake: threading.Event | None = None,
        on_tick: Callable[[int, int], None] | None = None,
        notice: Callable[[str], None] | None = None,
        enough: Callable[[int], bool] | None = None,
        remarks: Sequence[str] = (),
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._server = server
        self._dialect = dialect
        self._replicas = list(replicas)
        self._beside = list(beside)
        self._metrics = list(metrics)
        self._step_s = step_s
        self._window_s = window_s
        self._sink = sink
        self._clock = clock
        self._wake = wake
        self._on_tick = on_tick
        self._notice = notice
        self._enough = enough
        self._patience_s = patience_s
        self._warnings = [*remarks]

    def record(self, start_s: float, rows: int) -> RecordingSummary:
        """Wait until ``rows`` rows are scraped, then collect them; fewer when enough is known, or when woken.

        Args:
            start_s: grid time of row 0, seconds since the epoch; a whole multiple of the step.

        Raises:
            UsageError: ``start_s`` is not on the grid.
            MetricsError: the server was away at the end for longer than it may, or refused; says how to
                collect the same rows later.
            StorageError: the sink cannot write.
        """
        if to_ms(start_s) % to_ms(self._step_s):
            raise UsageError(
                f"The recording cannot start at {start_s:.3f}: it is no whole multiple of the step.",
                advice="Floor the start to the step, so that all metrics share timestamps.",
            )
        done, woken = self._wait(start_s, rows)
        if not woken:
            # The last row's own scrape may come up to one interval after its grid time.
            self._clock.wait_until(start_s + done * self._step_s)
        found = self._collect(start_s, done, WOKEN_PATIENCE_S if woken else self._patience_s) if done else None
        return self._summary(start_s, done, found, stopped=woken)

    def _wait(self, start_s: float, rows: int) -> tuple[int, bool]:
        """Watch until the last grid time; the rows whose scrapes are over, and whether it was woken before."""
        names = replica_names(self._replicas)
        for one in self._beside:
            names |= replica_names(one.replicas, one.workload)
        with self._server.impatient(LOOK_TIMEOUT_S) as server:
            watch = Watch(
                server,
                metrics=self._metrics,
                dialect=self._dialect,
                names=names,
                stale_s=self._window_s,
                beside=self._beside,
            )
            looked_s = 0.0
            for index in range(rows):
                if self._clock.wait_until(start_s + index * self._step_s, self._wake):
                    over = (self._clock.now_s() - start_s) / self._step_s
                    return min(max(int(over), 0), index), True
                if self._clock.now_s() - looked_s >= LOOK_S:
                    looked_s = self._clock.now_s()
                    for sentence in watch.poll(looked_s):
                        self._warn(sentence)
                if self._on_tick is not None:
                    self._on_tick(index + 1, rows)
                if self._enough is not None and self._enough(index + 1):
                    return index + 1, False
        return rows, False

    def _collect(self, start_s: float, rows: int, patience_s: float) -> ExportSummary:
        patient = RetryingServer(self._server, clock=self._clock, patience_s=patience_s, notice=self._warn)
        try:
            return export(
                patient,
                metrics=self._metrics,
                dialect=self._dialect,
                start_s=start_s,
                rows=rows,
                step_s=self._step_s,
                window_s=self._window_s,
                sink=self._sink,
                replicas=self._replicas,
                beside=self._beside,
            )
        except PrometheusUnavailableError as error:
            raise MetricsError(
                f"{rows} rows were scraped and could not be collected: {error.message}",
                advice="Prometheus keeps them for its retention time. When it answers again, collect them with: "
                "harness export NEW_FOLDER --from THIS_EXPERIMENT",
            ) from error

    def _warn(self, sentence: str) -> None:
        if len(self._warnings) < MAX_WARNINGS:
            self._warnings.append(sentence)
        if self._notice is not None:
            self._notice(sentence)

    def _summary(self, start_s: float, rows: int, found: ExportSummary | None, *, stopped: bool) -> RecordingSummary:
        metrics = found.metrics if found else {}
        remarks = [f"Prometheus remarked: {note}" for note in found.notes] if found else []
        return RecordingSummary(
            start_s=to_ms(start_s) / MS_PER_S,
            end_s=found.end_s if found else None,
            step_s=self._step_s,
            rows=rows,
            stopped=stopped,
            lateness=Lateness(ticks=0, missed=0, p50_s=None, p99_s=None, max_s=None),
            metrics=metrics,
            absent=found.absent if found else {},
            warnings=[*self._warnings, *remarks, *missing_warnings(metrics)],
            identities=found.identities if found else {},
        )
