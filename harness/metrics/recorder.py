"""The embedded recorder: every metric of every replica, device and node, on a drift-free grid.

Row ``k`` belongs to ``start + k * step`` and nothing else. A tick that begins late is counted as
late and its row keeps its grid time; a tick that is late by a whole step or more is missed, and its
rows say so. Before row 0 the recorder scrapes for one window, so that row 0 has its rates.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from harness.clock import Clock
from harness.errors import UsageError
from harness.metrics.catalogue import GPU_SOURCES, PRESSURE_SOURCES, PROCESS_SOURCES, REPLICA_SOURCES, Metric, Source
from harness.metrics.machine import KernelPressure, ProcessTrees
from harness.metrics.nvml import NvmlGpus
from harness.metrics.promql_math import MS_PER_S, range_ms, to_ms
from harness.metrics.row_builder import Reading, ReplicaTarget, TickComputer
from harness.metrics.rows import (
    LATE_TICK,
    LatenessHistogram,
    MetricRow,
    MetricSummary,
    Missing,
    RecordingSummary,
    RowSink,
    RowStatistics,
    grid_ms,
    missing_warnings,
)
from harness.metrics.scrape import Scraper

SCRAPE_TIMEOUT_STEPS = 0.8
MAX_SCRAPE_TIMEOUT_S = 2.0
"""A replica gets most of a step to answer, but never so long that the other readings grow old."""

PRIORITY = 10
"""Steps of niceness that the recording thread takes for itself where it may."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Everything one recorder reads. None raises while recording: what cannot be read is ``Missing``, with its reason.

    Each has one fake, in ``tests/support/fake_metrics.py``.
    """

    replicas: Scraper
    processes: ProcessTrees
    gpus: NvmlGpus
    pressure: KernelPressure

    def absent(self, metric: Metric) -> str:
        """Why this machine cannot give a metric; empty where it can."""
        if metric.source in GPU_SOURCES:
            return self.gpus.absent
        if metric.source in PRESSURE_SOURCES:
            stalled_s = self.pressure.read(metric.source)
            return stalled_s.reason if isinstance(stalled_s, Missing) else ""
        return ""


class Recorder:
    """Records one experiment.

    Args:
        step_s: seconds between rows; whole milliseconds.
        window_s: how far rates and quantiles look back; a whole number of steps, at least two.
        used_gpus: UUIDs of the devices that are read of this machine; None: all of them.
        wake: ends the recording early when set.
        on_tick: called after each row with rows done and rows in all.
        enough: asked after each row, with the rows done, whether it may be the last one.
    """

    def __init__(
        self,
        targets: Sequence[ReplicaTarget],
        *,
        metrics: Sequence[Metric],
        step_s: float,
        window_s: float,
        sink: RowSink,
        clock: Clock,
        sources: Sources | None = None,
        used_gpus: Collection[str] | None = None,
        wake: threading.Event | None = None,
        on_tick: Callable[[int, int], None] | None = None,
        enough: Callable[[int], bool] | None = None,
    ) -> None:
        self._targets = list(targets)
        self._metrics = list(metrics)
        self._step_s = step_s
        self._step_ms = to_ms(step_s)
        self._window_ms = to_ms(window_s)
        self._range_ms = range_ms(window_s)
        if self._step_ms <= 0 or self._window_ms < 2 * self._step_ms:
            raise UsageError(
                f"A window of {window_s:g} s with a step of {step_s:g} s holds fewer than two scrapes.",
                advice="Use a window of 4 steps.",
            )
        self._timeout_s = min(SCRAPE_TIMEOUT_STEPS * step_s, MAX_SCRAPE_TIMEOUT_S)
        self._sink = sink
        self._clock = clock
        self._sources = sources
        self._used_gpus = used_gpus
        self._wake = wake
        self._on_tick = on_tick
        self._enough = enough

    def record(self, start_s: float, rows: int) -> RecordingSummary:
        """See ``Recording``."""
        start_ms = grid_ms(start_s, self._step_s)
        sources = self._sources or Sources(
            replicas=Scraper([target.metrics_url for target in self._targets]),
            processes=ProcessTrees([target.pid for target in self._targets]),
            gpus=NvmlGpus(used=self._used_gpus),
            pressure=KernelPressure(),
        )
        with contextlib.closing(sources.replicas), contextlib.closing(sources.gpus):
            recording = _Recording(sources, self._targets, self._metrics, self._range_ms)
            with _punctual():
                stopped = self._run(recording, start_ms, rows)
        return recording.summary(start_ms, self._step_s, stopped=stopped)

    def _run(self, recording: _Recording, start_ms: int, rows: int) -> bool:
        """Tick from one window before the start to the last row; True when woken before it."""
        for index in range(1 - self._window_ms // self._step_ms, rows):
            time_ms = start_ms + index * self._step_ms
            if self._clock.wait_until(time_ms / MS_PER_S, self._wake):
                return True
            lateness_s = self._clock.now_s() - time_ms / MS_PER_S
            too_late = lateness_s >= self._step_s
            if not too_late:
                recording.punctuality.add(lateness_s)
                deadline_s = time_ms / MS_PER_S + self._timeout_s
                recording.observe(time_ms, deadline_s, self._clock, index)
            if index >= 0:
                self._sink.write(recording.rows(time_ms, missed=too_late))
                if self._on_tick is not None:
                    self._on_tick(index + 1, rows)
                if self._enough is not None and self._enough(index + 1):
                    return False
        return False


class _Recording:
    """The state of one recording: windows, counts, punctuality."""

    def __init__(
        self, sources: Sources, targets: Sequence[ReplicaTarget], metrics: Sequence[Metric], range_ms: int
    ) -> None:
        self._sources = sources
        self._metrics = metrics
        self._absent = {metric.name: reason for metric in metrics if (reason := sources.absent(metric))}
        present = [metric for metric in metrics if metric.name not in self._absent]
        self._wanted = {metric.source for metric in present}
        self._computer = TickComputer(targets, present, sources.gpus.count, range_ms, sources.processes.pids)
        self._statistics = RowStatistics()
        self._rows = 0
        self._missed = 0
        self._answered_within_s = 0.0
        self.punctuality = LatenessHistogram()

    def observe(self, time_ms: int, deadline_s: float, clock: Clock, row: int) -> None:
        """Read everything once: ask the replicas, read the machine while they answer, take the answers. ``row`` < 0: before row 0."""
        sources, wanted = self._sources, self._wanted
        scraping = bool(wanted & REPLICA_SOURCES)
        if scraping:
            sources.replicas.begin()
        pids_wanted = wanted & PROCESS_SOURCES or Source.GPU_MEMORY in wanted
        processes_ms = clock.now_s() * MS_PER_S
        processes = sources.processes.read() if pids_wanted else []
        pressure_ms = clock.now_s() * MS_PER_S
        pressure = {source: sources.pressure.read(source) for source in wanted & PRESSURE_SOURCES}
        gpus = sources.gpus.read() if wanted & GPU_SOURCES else []
        replicas = sources.replicas.collect(deadline_s - clock.now_s()) if scraping else []
        if row >= 0:
            self._answered_within_s = max(self._answered_within_s, clock.now_s() - time_ms / MS_PER_S)
        self._computer.observe(
            time_ms, Reading(replicas, processes, gpus, pressure, processes_ms, pressure_ms), counting=row > 0
        )

    def rows(self, time_ms: int, *, missed: bool) -> list[MetricRow]:
        """Every row of one grid time, those of absent metrics included."""
        rows = self._computer.missing_rows(time_ms, LATE_TICK) if missed else self._computer.rows(time_ms)
        self._statistics.add(rows)
        self._rows += 1
        self._missed += missed
        for metric in self._metrics:
            if metric.name in self._absent:
                reason = self._absent[metric.name]
                rows.append(MetricRow(metric.name, metric.level.absent_series, time_ms / MS_PER_S, None, reason))
        return rows

    def summary(self, start_ms: int, step_s: float, *, stopped: bool) -> RecordingSummary:
        """What the recording says of itself."""
        metrics = self._statistics.summaries([m.name for m in self._metrics if m.name not in self._absent])
        last_ms = start_ms + (self._rows - 1) * to_ms(step_s)
        return RecordingSummary(
            start_s=start_ms / MS_PER_S,
            end_s=last_ms / MS_PER_S if self._rows else None,
            step_s=step_s,
            rows=self._rows,
            stopped=stopped,
            lateness=self.punctuality.summary(self._missed),
            metrics=metrics,
            absent=self._absent,
            warnings=list(_warnings(metrics, self._rows, self._missed)),
            answered_within_s=self._answered_within_s,
        )


@contextlib.contextmanager
def _punctual() -> Iterator[None]:
    """Put this thread before the replicas' in the kernel's queue, where the user may (root, CAP_SYS_NICE).

    Replicas that fill every CPU would otherwise make ticks late; the recorder itself needs few milliseconds.
    """
    thread = threading.get_native_id()
    before = os.getpriority(os.PRIO_PROCESS, thread)
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, thread, before - PRIORITY)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, thread, before)


def _warnings(metrics: dict[str, MetricSummary], rows: int, missed: int) -> Iterator[str]:
    if missed:
        yield f"{missed} of {rows} ticks were missed: {LATE_TICK}."
    yield from missing_warnings(metrics)
