"""Exports the metrics of one recording from Prometheus into the same rows that the embedded recorder writes.

Ranges are cut into chunks below the server's limit of points, queries run concurrently, and a row has
a value only where the metric's own raw samples say that something was measured.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.errors import NoDataError, UsageError
from harness.metrics.catalogue import PROCESS_SOURCES, Kind, Level, Metric
from harness.metrics.prometheus.client import PrometheusServer, QueryAnswer, SampledSeries
from harness.metrics.prometheus.series import (
    ALL_NODES,
    BLANK,
    NO_SAMPLE,
    CountedTotal,
    ExportGrid,
    Key,
    believed,
    by_labels,
    cells,
    column,
    combined,
    device_names,
    has_reset,
    identity,
    key_labels,
    measured,
    mixed,
    natural,
    node_names,
    replica_names,
    used_bounds,
)
from harness.metrics.promql import Dialect, Queries, ReplicaGroup, render
from harness.metrics.promql_math import MS_PER_S, to_ms
from harness.metrics.rows import (
    NO_REPLICA,
    POOLED,
    TOO_FEW,
    MetricColumn,
    MetricSummary,
    RowSink,
    RowStatistics,
    grid_ms,
    series_name,
)

WORKERS = 4
"""Queries at once: enough to keep a small server busy, few enough not to starve what it scrapes."""


@dataclass(frozen=True, slots=True)
class ExportSummary:
    """One export: as a recording's summary, with what the server remarked; ``replicas``: label values of the measured ones."""

    start_s: float
    end_s: float
    step_s: float
    rows: int
    replicas: list[str]
    metrics: dict[str, MetricSummary]
    absent: dict[str, str]
    identities: dict[str, dict[str, str]] = field(default_factory=dict)
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
    neighbours: Sequence[ReplicaGroup] = (),
    pool: ThreadPoolExecutor | None = None,
) -> ExportSummary:
    """Export ``rows`` rows of every series, from the grid time ``start_s`` (seconds since the epoch, a whole multiple of the step).

    Args:
        replicas: label values in the order of ``replica-0``...; None: those that the server has, sorted.
        neighbours: their replicas get series of their own.
        pool: of ``query_pool``, which several exports share; None: one of its own.

    Raises UsageError (a selector matches more than one node), PrometheusError, StorageError.
    """
    grid = ExportGrid(grid_ms(start_s, step_s), to_ms(step_s), to_ms(window_s), rows)
    with query_pool(pool) as queries:
        chunks = list(grid.chunks())
        whole = len(chunks) == 1
        groups = [ReplicaGroup("", dialect, replicas), *neighbours]
        exports = [_Export(server, queries, metrics, group, grid, in_one=whole) for group in groups]
        return _write(exports, metrics, grid, chunks, sink)


@contextlib.contextmanager
def query_pool(shared: ThreadPoolExecutor | None = None) -> Iterator[ThreadPoolExecutor]:
    """Threads that ask, or those that somebody else ends; whatever goes wrong inside, what still waits is not asked any more."""
    if shared is not None:
        yield shared
        return
    with ThreadPoolExecutor(WORKERS, thread_name_prefix="prometheus") as pool:
        try:
            yield pool
        except BaseException:
            # On a server that hangs each of them would cost a timeout.
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def why_no_buckets(
    server: PrometheusServer, metric: Metric, dialect: Dialect, span_ms: int, end_ms: int | None = None
) -> str:
    """Why nothing can be asked of a histogram that is there, ``span_ms`` before ``end_ms`` (None: now); empty: its buckets are, too.

    Raises PrometheusError.
    """
    family = metric.families[0]
    named = f'{{__name__=~"{family}(_bucket|_count)?",{dialect.replicas}}}'
    try:
        answer = server.query(
            f"count by (__name__) (last_over_time({named}[{span_ms}ms]))", end_ms and end_ms / MS_PER_S
        )
    except NoDataError:
        return ""
    names = {series.labels["__name__"] for series in answer.series}
    if f"{family}_bucket" in names:
        return ""
    kept = "holds it as a native histogram" if family in names else f"holds {family}_count and no bucket"
    return (
        f"Prometheus {kept}: have it keep {family}_bucket (scrape_configs: always_scrape_classic_histograms: true, no "
        "convert_classic_histograms_to_nhcb, no relabelling that drops it)"
    )


_Answers = tuple[Future[list[SampledSeries]], Future[list[SampledSeries]] | None]
"""The answers to come of one metric: of each series, and of all together."""
_Pending = dict[str, _Answers]


def _results(pending: Mapping[str, Future[list[SampledSeries]]]) -> dict[str, list[SampledSeries]]:
    return {name: future.result() for name, future in pending.items()}


def _write(
    exports: Sequence[_Export], metrics: Sequence[Metric], grid: ExportGrid, chunks: Sequence[ExportGrid], sink: RowSink
) -> ExportSummary:
    """Write every chunk, metric by metric as answers come; ``exports``: of the measured replicas, then of each neighbour."""
    statistics = RowStatistics()
    present = [metric for metric in metrics if any(metric in part.present for part in exports)]
    # Quantiles, which the server works on longest, come last; but for what it does not have.
    order = sorted(metrics, key=lambda metric: (metric not in present, metric.quantile is not None))
    for chunk in chunks:
        times_s = (chunk.times_ms() / MS_PER_S).tolist()
        answers = [(part, part.ask(chunk)) for part in exports]
        for metric in order:
            columns = [
                column for part, columns_of in answers if part.records(metric, present) for column in columns_of(metric)
            ]
            for answer in columns:
                statistics.add_column(answer)
            sink.write_columns(times_s, columns)
    return ExportSummary(
        start_s=grid.start_ms / MS_PER_S,
        end_s=grid.end_ms / MS_PER_S,
        step_s=grid.step_ms / MS_PER_S,
        rows=grid.rows,
        replicas=exports[0].replicas,
        metrics=statistics.summaries([metric.name for metric in present]),
        absent={metric.name: exports[0].absent[metric.name] for metric in metrics if metric not in present},
        identities={name: known for part in exports for name, known in part.identities.items()},
        notes=list(dict.fromkeys(note for part in exports for note in part.notes)),
    )


class _Export:
    """What is read of the replicas of one workload, and with the measured ones' of devices and nodes."""

    def __init__(
        self,
        server: PrometheusServer,
        pool: ThreadPoolExecutor,
        metrics: Sequence[Metric],
        group: ReplicaGroup,
        grid: ExportGrid,
        *,
        in_one: bool,
    ) -> None:
        if group.workload:
            metrics = [metric for metric in metrics if metric.level is Level.REPLICA]
        dialect = group.dialect
        self._server = server
        self._neighbour = group.workload
        self._pooled = series_name(POOLED, group.workload)
        self._pool = pool
        self._metrics = metrics
        self._dialect = dialect
        self._grid = grid
        self.notes: dict[str, None] = {}
        self._queries = {metric.name: self._render(metric) for metric in metrics}
        self._labels = {metric.name: key_labels(metric, dialect) for metric in metrics}
        self._light: _Pending | None = None
        self._raw_of_all: Mapping[str, list[SampledSeries]] | None = None
        if in_one:
            # One chunk's samples say which series there are, too; what needs no more knowledge is asked meanwhile.
            reading = self._read_raw(grid)
            self._light = self._ask_light(grid, metrics)
            self._raw_of_all = _results(reading)
        known = self._discover()
        self.absent = {
            m.name: f"Prometheus has no sample of {self._queries[m.name].raw}" for m in metrics if not known[m.name]
        }
        self.present = [m for m in metrics if m.name not in self.absent]
        self._name(known, group.replicas)

    def records(self, metric: Metric, present: Collection[Metric]) -> bool:
        """Whether it has columns of a metric; what nobody publishes is missing once, with the measured replicas."""
        return not self._neighbour or (metric.level is Level.REPLICA and metric in present)

    def ask(self, chunk: ExportGrid) -> Callable[[Metric], list[MetricColumn]]:
        """Send off every question of a chunk; what is returned waits for one metric's columns, and each may be had once."""
        heavy = [metric for metric in self.present if metric.quantile is not None]
        reading = self._read_raw(chunk) if self._raw_of_all is None else {}
        pending = self._light or self._ask_light(chunk, self.present)
        raw = self._raw_of_all or _results(reading)
        if heavy:
            requests = raw[self._queries[heavy[0].name].raw]
            bounds = self._bounds(chunk, requests)
            merge = any(len(series) > 1 for series in by_labels(requests, (self._dialect.by,)).values())
            pending |= {
                metric.name: self._fetch(metric, chunk, self._render(metric, bounds=bounds, merge=merge))
                for metric in heavy
            }

        def columns(metric: Metric) -> list[MetricColumn]:
            if metric.name in self.absent:
                series, why = series_name(metric.level.absent_series, self._neighbour), self.absent[metric.name]
                return [MetricColumn(metric.name, series, [np.nan] * chunk.rows, [why] * chunk.rows)]
            samples = raw[self._queries[metric.name].raw]
            if metric.kind is Kind.COUNTER:
                return list(self._counter_columns(metric, chunk, samples))
            return list(self._range_columns(metric, chunk, samples, *pending[metric.name]))

        return columns

    def _range_columns(
        self,
        metric: Metric,
        chunk: ExportGrid,
        samples: Sequence[SampledSeries],
        single: Future[list[SampledSeries]],
        pooled: Future[list[SampledSeries]] | None,
    ) -> Iterator[MetricColumn]:
        """Columns of a metric that the server evaluates."""
        grid_ms = chunk.times_ms()
        labels = self._labels[metric.name]
        raw = by_labels(samples, labels)
        answers = by_labels(single.result(), labels)
        unanswered = TOO_FEW
        if metric.of_histogram and not answers:
            span_ms = chunk.end_ms - chunk.start_ms + chunk.window_ms
            unanswered = why_no_buckets(self._server, metric, self._dialect, span_ms, chunk.end_ms) or TOO_FEW
        every: list[MetricColumn] = []
        for key, name in self._keys[metric.name].items():
            matching = answers.get(key, [])
            if len(matching) > 1:
                raise UsageError(
                    f"{metric.name}: the selector matches {len(matching)} series for one {metric.level.value}.",
                    advice="Narrow the selector to one node.",
                )
            own = raw.get(key, [])
            problem = mixed(metric, own)
            if problem:
                every.append(MetricColumn(metric.name, name, [np.nan] * chunk.rows, [problem] * chunk.rows))
            else:
                good = believed(metric, own)
                blank = sum(len(series.values) for series in good) < sum(len(series.values) for series in own)
                present = measured(good, grid_ms, self._age_ms(metric))
                unmeasured = BLANK if blank else NO_SAMPLE
                without = unmeasured if metric.kind is Kind.GAUGE else unanswered
                every.append(column(metric, name, chunk, matching, present, unmeasured, without))
        yield from every
        if metric.level is Level.NODE and len(every) > 1:
            yield combined(metric, ALL_NODES, every)
        if metric.pooled and metric.kind is Kind.GAUGE:
            yield combined(metric, self._pooled, every)  # the server's own sum looks back to replicas that are gone
        elif pooled is not None:
            present = measured(samples, grid_ms, self._age_ms(metric))
            yield column(metric, self._pooled, chunk, pooled.result(), present, NO_REPLICA, unanswered)

    def _counter_columns(
        self, metric: Metric, chunk: ExportGrid, samples: Sequence[SampledSeries]
    ) -> Iterator[MetricColumn]:
        """Columns of a metric that is counted on raw samples."""
        grid_ms, labels = chunk.times_ms(), self._labels[metric.name]
        raw = by_labels(samples, labels)
        every: list[NDArray[np.float64]] = []
        for key, name in self._keys[metric.name].items():
            values = self._totals[key].advance(raw.get(key, ()), grid_ms)
            every.append(values)
            yield cells(metric, name, values, measured(raw.get(key, ()), grid_ms, chunk.step_ms), NO_SAMPLE)
        anywhere = measured(samples, grid_ms, chunk.step_ms)
        yield cells(metric, self._pooled, np.nansum(np.stack(every), axis=0), anywhere, NO_REPLICA)

    def _fetch(self, metric: Metric, chunk: ExportGrid, queries: Queries) -> _Answers:
        def ask(promql: str) -> Future[list[SampledSeries]]:
            grid = chunk.start_ms, chunk.end_ms, chunk.step_ms
            return self._pool.submit(self._answer, self._server.query_range, promql, *grid)

        pooled = queries.pooled and metric.kind is not Kind.GAUGE
        return ask(queries.each), ask(queries.pooled) if pooled else None

    def _answer(self, query: Callable[..., QueryAnswer], *arguments: Any) -> list[SampledSeries]:
        """The series of an answer; none where nothing matches."""
        try:
            answer = query(*arguments)
        except NoDataError:
            return []
        self.notes.update(dict.fromkeys(answer.notes))
        return answer.series

    def _bounds(self, chunk: ExportGrid, requests: Sequence[SampledSeries]) -> list[str]:
        """The buckets that quantiles of this chunk need; none of them where that cannot be known: then all are read."""
        if has_reset(requests):
            return []
        buckets = f"inference_latency_seconds_bucket{{{self._dialect.replicas}}}"
        # Only samples of the range itself may be the base: one from before it may belong to a process that has ended.
        first = f"sum by (le) (min_over_time({buckets}[{chunk.step_ms - 1}ms]))"
        last = f"sum by (le) ({buckets}) or count(inference_latency_seconds_count{{{self._dialect.replicas}}})"
        # Not through the pool: these two must not wait behind everything that waits for nothing.
        after = self._instant(last, chunk.end_ms)
        counted = [series for series in after if "le" not in series.labels]
        if not counted or counted[0].values[-1] < len(requests):
            return []  # a replica that ended more than the look-back ago: its buckets are not in the answer
        before = self._instant(first, chunk.start_ms - chunk.window_ms + chunk.step_ms)
        return used_bounds(before, [series for series in after if "le" in series.labels])

    def _instant(self, promql: str, time_ms: int) -> list[SampledSeries]:
        return self._answer(self._server.query, promql, time_ms / MS_PER_S)

    def _age_ms(self, metric: Metric) -> int:
        """How old a sample may be to count for a grid time."""
        steps = self._dialect.container_age_steps if metric.source in PROCESS_SOURCES else 1
        return steps * self._grid.step_ms

    def _read_raw(self, chunk: ExportGrid) -> dict[str, Future[list[SampledSeries]]]:
        """The samples of every metric, by selector."""
        selectors = dict.fromkeys(queries.raw for queries in self._queries.values())
        span = chunk.start_ms - chunk.window_ms, chunk.end_ms
        return {raw: self._pool.submit(self._answer, self._server.raw, raw, *span) for raw in selectors}

    def _ask_light(self, chunk: ExportGrid, metrics: Sequence[Metric]) -> _Pending:
        """What the server evaluates, but for quantiles, which want to know the buckets first."""
        light = [metric for metric in metrics if metric.quantile is None and metric.promql]
        return {metric.name: self._fetch(metric, chunk, self._queries[metric.name]) for metric in light}

    def _discover(self) -> dict[str, list[SampledSeries]]:
        """For each metric the series that have samples, with at least one value; none: the server has not got it."""
        if self._raw_of_all is not None:
            return {metric.name: self._raw_of_all[self._queries[metric.name].raw] for metric in self._metrics}
        length_ms = self._grid.end_ms - self._grid.start_ms + self._grid.window_ms
        pending = {
            raw: self._pool.submit(self._instant, f"last_over_time({raw}[{length_ms}ms])", self._grid.end_ms)
            for raw in dict.fromkeys(queries.raw for queries in self._queries.values())
        }
        return {metric.name: pending[self._queries[metric.name].raw].result() for metric in self._metrics}

    def _name(self, known: Mapping[str, Sequence[SampledSeries]], replicas: Sequence[str] | None) -> None:
        """Name the series of each metric by key, every replica's among them, and say what they stand for, as far as labels do."""
        grouped = {metric.name: by_labels(known[metric.name], self._labels[metric.name]) for metric in self.present}
        keys: dict[Level, dict[Key, None]] = {level: {} for level in Level}
        for metric in self.present:
            keys[metric.level] |= dict.fromkeys(grouped[metric.name])
        of_pods = sorted((key[0] for key in keys[Level.REPLICA]), key=natural)
        self.replicas = of_pods if replicas is None else list(replicas)
        # Devices and nodes are the same ones for all metrics of their level.
        names = {
            Level.REPLICA: replica_names(self.replicas, self._neighbour),
            Level.DEVICE: device_names(keys[Level.DEVICE]),
            Level.NODE: node_names(keys[Level.NODE]),
        }
        self._totals = {key: CountedTotal(self._grid.start_ms) for key in names[Level.REPLICA]}
        self._keys: dict[str, dict[Key, str]] = {}
        identities: dict[str, dict[str, str]] = {}
        for metric in self.present:
            of_level, own = names[metric.level], grouped[metric.name]
            self._keys[metric.name] = {
                key: name for key, name in of_level.items() if key in own or metric.level is Level.REPLICA
            }
            for key in of_level.keys() & own.keys():
                identities.setdefault(of_level[key], {}).update(identity(metric, self._dialect, own[key][-1].labels))
        self.identities = {name: identities[name] for name in sorted(identities, key=natural) if identities[name]}

    def _render(self, metric: Metric, **narrowed: Any) -> Queries:
        return render(metric, self._dialect, self._grid.window_ms / MS_PER_S, **narrowed)
