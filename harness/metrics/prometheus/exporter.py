"""Exports the metrics of one recording from Prometheus into the same rows that the embedded recorder writes.

Ranges are cut into chunks below the server's limit of points, queries run concurrently, and a row has
a value only where the metric's own raw samples say that something was measured.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from harness.clock import Clock
from harness.errors import NoDataError, UsageError
from harness.metrics.catalogue import Kind, Level, Metric
from harness.metrics.prometheus.adapter import MAX_POINTS, Answer, PrometheusServer, Series
from harness.metrics.prometheus.buckets import used_bounds
from harness.metrics.prometheus.grid import NO_SAMPLE, Column, Grid, cells, column, summed
from harness.metrics.prometheus.presence import CountedTotal, by_label, has_reset, measured
from harness.metrics.promql import Dialect, Queries, render
from harness.metrics.rows import Row, RowSink
from harness.metrics.summary import MetricSummary, RowStatistics
from harness.metrics.tick import NO_REPLICA
from harness.metrics.windows import MS_PER_S, to_ms

WORKERS = 4
"""Queries at once: enough to keep a small server busy, few enough not to starve what it scrapes."""

_DIGITS = re.compile(r"(\d+)")
_GPU_LABEL = "gpu"


@dataclass(frozen=True, slots=True)
class ExportSummary:
    """One export: as a recording's summary, with what the server remarked on its answers.

    Attributes:
        start_s: grid time of row 0, seconds since the epoch.
        end_s: grid time of the last row.
        step_s: seconds between rows.
        rows: rows written per series.
        replicas: label values, in the order of ``replica-0``, ``replica-1``...
        metrics: by name, of those that the server has.
        absent: reasons by name, of those that it has not.
        notes: the server's warnings and infos.
    """

    start_s: float
    end_s: float
    step_s: float
    rows: int
    replicas: list[str]
    metrics: dict[str, MetricSummary]
    absent: dict[str, str]
    notes: list[str] = field(default_factory=list)


def export(
    server: PrometheusServer,
    *,
    metrics: Sequence[Metric],
    dialect: Dialect,
    start_s: float,
    rows: int,
    step_s: float,
    window_s: float,
    sink: RowSink,
    replicas: Sequence[str] | None = None,
    clock: Clock | None = None,
    chunk_rows: int = MAX_POINTS,
) -> ExportSummary:
    """Export ``rows`` rows of every series.

    Args:
        server: where the metrics are.
        metrics: what to export.
        dialect: how this server names things.
        start_s: grid time of row 0, seconds since the epoch; a whole multiple of the step.
        rows: rows per series.
        step_s: seconds between rows.
        window_s: of rates and quantiles.
        sink: takes the rows of each grid time.
        replicas: label values in the order of ``replica-0``...; None: those that the server has, sorted.
        clock: to wait until the last row's scrapes are stored; None: they are.
        chunk_rows: rows asked for at once.

    Raises:
        UsageError: the start is not on the grid, or a selector matches more than one node.
        PrometheusError: the server refused, timed out or answered with an error.
        StorageError: the sink cannot write.
    """
    grid = Grid(to_ms(start_s), to_ms(step_s), to_ms(window_s), rows)
    if grid.start_ms % grid.step_ms:
        raise UsageError(
            f"The export cannot start at {start_s:.3f}: it is no whole multiple of the step.",
            advice="Floor the start to the step, so that all metrics share timestamps.",
        )
    if clock is not None:
        clock.wait_until(grid.end_ms / MS_PER_S + step_s)
    with ThreadPoolExecutor(WORKERS, thread_name_prefix="prometheus") as pool:
        try:
            run = _Export(server, pool, metrics, dialect, grid, replicas)
            for chunk in grid.chunks(chunk_rows):
                run.write(chunk, sink)
        except BaseException:
            # Whatever went wrong, the queries still waiting are of no use: on a server that hangs each costs a timeout.
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return run.summary()


class _Export:
    """The state of one export."""

    def __init__(
        self,
        server: PrometheusServer,
        pool: ThreadPoolExecutor,
        metrics: Sequence[Metric],
        dialect: Dialect,
        grid: Grid,
        replicas: Sequence[str] | None,
    ) -> None:
        self._server = server
        self._pool = pool
        self._metrics = metrics
        self._dialect = dialect
        self._grid = grid
        self._statistics = RowStatistics()
        self._notes: dict[str, None] = {}
        self._queries = {metric.name: self._render(metric) for metric in metrics}
        found = self._discover()
        self._absent = {m.name: found[m.name] for m in metrics if isinstance(found[m.name], str)}
        self._present = [m for m in metrics if m.name not in self._absent]
        labels = {m.name: found[m.name] for m in self._present}
        self._replicas = list(replicas) if replicas is not None else self._known_replicas(labels)
        self._keys = {m.name: self._series_keys(m, labels[m.name]) for m in self._present}
        self._totals = {key: CountedTotal(grid.start_ms) for key in self._replicas}
        self._counted_to_ms = grid.start_ms - grid.window_ms

    def summary(self) -> ExportSummary:
        """What the export says of itself."""
        return ExportSummary(
            start_s=self._grid.start_ms / MS_PER_S,
            end_s=self._grid.end_ms / MS_PER_S,
            step_s=self._grid.step_ms / MS_PER_S,
            rows=self._grid.rows,
            replicas=self._replicas,
            metrics=self._statistics.summaries([metric.name for metric in self._present]),
            absent={name: str(reason) for name, reason in self._absent.items()},
            notes=list(self._notes),
        )

    def write(self, chunk: Grid, sink: RowSink) -> None:
        """Fetch one chunk and write it, grid time by grid time."""
        columns = list(self._columns(chunk))
        for place, time_ms in enumerate(chunk.times_ms().tolist()):
            time_s = time_ms / MS_PER_S
            rows = [
                Row(c.metric, c.series, time_s, None if c.reasons[place] else c.values[place], c.reasons[place])
                for c in columns
            ]
            self._statistics.add(rows)
            rows += [
                Row(m.name, m.level.absent_series, time_s, None, str(self._absent[m.name]))
                for m in self._metrics
                if m.name in self._absent
            ]
            sink.write(rows)

    def _columns(self, chunk: Grid) -> Iterator[Column]:
        light = [metric for metric in self._present if metric.quantile is None and metric.promql]
        heavy = [metric for metric in self._present if metric.quantile is not None]
        raw_pending = {raw: self._pool.submit(self._raw, raw, chunk) for raw in self._raw_selectors()}
        pending = {metric.name: self._fetch(metric, chunk, self._queries[metric.name]) for metric in light}
        raw = {selector: future.result() for selector, future in raw_pending.items()}
        if heavy:
            requests = raw[self._queries[heavy[0].name].raw]
            bounds = self._bounds(chunk, requests)
            merge = any(len(series) > 1 for series in by_label(requests, self._dialect.by).values())
            pending |= {
                metric.name: self._fetch(metric, chunk, self._render(metric, bounds, merge=merge)) for metric in heavy
            }
        for metric in self._present:
            samples = raw[self._queries[metric.name].raw]
            if metric.kind is Kind.COUNTER:
                yield from self._counter_columns(metric, chunk, samples)
            else:
                each, pooled = pending[metric.name]
                yield from self._range_columns(metric, chunk, samples, each, pooled)

    def _range_columns(
        self,
        metric: Metric,
        chunk: Grid,
        samples: Sequence[Series],
        each: Future[list[Series]],
        pooled: Future[list[Series]] | None,
    ) -> Iterator[Column]:
        """Columns of a metric that the server evaluates."""
        grid_ms = chunk.times_ms()
        label = self._label(metric)
        raw = by_label(samples, label)
        answers = by_label(each.result(), label)
        every: list[Column] = []
        for key, name in self._keys[metric.name].items():
            found = answers.get(key, [])
            if len(found) > 1:
                raise UsageError(
                    f"{metric.name}: the selector matches {len(found)} series for one {metric.level.value}.",
                    advice="Narrow the selector to one node.",
                )
            every.append(column(metric, name, chunk, found, measured(raw.get(key, ()), grid_ms, chunk.step_ms)))
        yield from every
        if metric.pooled and metric.kind is Kind.GAUGE:
            yield summed(metric, every)  # the server's own sum looks back to replicas that are gone
        elif pooled is not None:
            present = measured(samples, grid_ms, chunk.step_ms)
            yield column(metric, "all", chunk, pooled.result(), present, unmeasured=NO_REPLICA)

    def _counter_columns(self, metric: Metric, chunk: Grid, samples: Sequence[Series]) -> Iterator[Column]:
        """Columns of a metric that is counted on raw samples."""
        grid_ms, label = chunk.times_ms(), self._dialect.by
        fresh = [
            Series(s.labels, s.times_ms[late], s.values[late])
            for s in samples
            if (late := s.times_ms > self._counted_to_ms).any()
        ]
        self._counted_to_ms = chunk.end_ms
        raw, new = by_label(samples, label), by_label(fresh, label)
        every: list[NDArray[np.float64]] = []
        for key, name in self._keys[metric.name].items():
            values = self._totals[key].advance(new.get(key, ()), grid_ms)
            every.append(values)
            yield cells(metric, name, values, measured(raw.get(key, ()), grid_ms, chunk.step_ms), NO_SAMPLE)
        anywhere = measured(samples, grid_ms, chunk.step_ms)
        yield cells(metric, "all", np.nansum(np.stack(every), axis=0), anywhere, NO_REPLICA)

    def _fetch(
        self, metric: Metric, chunk: Grid, queries: Queries
    ) -> tuple[Future[list[Series]], Future[list[Series]] | None]:
        each = self._pool.submit(self._range, queries.each, chunk)
        pooled = queries.pooled and metric.kind is not Kind.GAUGE
        return each, self._pool.submit(self._range, queries.pooled, chunk) if pooled else None

    def _range(self, promql: str, chunk: Grid) -> list[Series]:
        try:
            return self._keep(self._server.query_range(promql, chunk.start_ms, chunk.end_ms, chunk.step_ms))
        except NoDataError:
            return []

    def _raw(self, selector: str, chunk: Grid) -> list[Series]:
        try:
            return self._keep(self._server.raw(selector, chunk.start_ms - chunk.window_ms, chunk.end_ms))
        except NoDataError:
            return []

    def _keep(self, answer: Answer) -> list[Series]:
        self._notes.update(dict.fromkeys(answer.notes))
        return answer.series

    def _bounds(self, chunk: Grid, requests: Sequence[Series]) -> list[str]:
        """The buckets that quantiles of this chunk need; none of them where that cannot be known: then all are read."""
        if has_reset(requests):
            return []
        buckets = f"inference_latency_seconds_bucket{{{self._dialect.replicas}}}"
        # Only samples of the range itself may be the base: one from before it may belong to a process that has ended.
        first = f"min_over_time({buckets}[{chunk.step_ms - 1}ms])"
        before = self._pool.submit(self._instant, first, chunk.start_ms - chunk.window_ms + chunk.step_ms)
        after = self._instant(buckets, chunk.end_ms)
        if len({_histogram(series) for series in after}) < len(requests):
            return []  # a replica that ended more than the look-back ago: its buckets are not in the answer
        return used_bounds(before.result(), after)

    def _instant(self, promql: str, time_ms: int) -> list[Series]:
        try:
            return self._keep(self._server.query(promql, time_ms / MS_PER_S))
        except NoDataError:
            return []

    def _raw_selectors(self) -> list[str]:
        return list(dict.fromkeys(self._queries[metric.name].raw for metric in self._present))

    def _discover(self) -> dict[str, list[str] | str]:
        """For each metric the label values that have samples, or why it has none."""
        length_ms = self._grid.end_ms - self._grid.start_ms + self._grid.window_ms
        pending = {
            raw: self._pool.submit(self._instant, f"last_over_time({raw}[{length_ms}ms])", self._grid.end_ms)
            for raw in dict.fromkeys(queries.raw for queries in self._queries.values())
        }
        found: dict[str, list[str] | str] = {}
        for metric in self._metrics:
            series = pending[self._queries[metric.name].raw].result()
            keys = sorted(by_label(series, self._label(metric)), key=natural)
            found[metric.name] = keys or f"Prometheus has no sample of {self._queries[metric.name].raw}"
        return found

    def _known_replicas(self, labels: dict[str, list[str] | str]) -> list[str]:
        names = {key for m in self._present if m.level is Level.REPLICA for key in labels[m.name]}
        return sorted(names, key=natural)

    def _series_keys(self, metric: Metric, labels: list[str] | str) -> dict[str, str]:
        """Label value and series name of each series of one metric."""
        if metric.level is Level.REPLICA:
            return {key: f"replica-{index}" for index, key in enumerate(self._replicas)}
        if metric.level is Level.DEVICE:
            return {key: f"gpu-{key}" for key in labels}
        return {"": "node"}

    def _label(self, metric: Metric) -> str:
        return {Level.REPLICA: self._dialect.by, Level.DEVICE: _GPU_LABEL, Level.NODE: ""}[metric.level]

    def _render(self, metric: Metric, bounds: Sequence[str] = (), *, merge: bool = True) -> Queries:
        return render(metric, self._dialect, self._grid.window_ms / MS_PER_S, bounds=bounds, merge=merge)


def _histogram(series: Series) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((name, value) for name, value in series.labels.items() if name != "le"))


def natural(text: str) -> list[tuple[int, str]]:
    """Sort key that puts ``pod-10`` after ``pod-9``."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in _DIGITS.split(text)]
