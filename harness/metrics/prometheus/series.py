"""Answers of a server as series of ours: which is which, when it was really measured, and laid out on the grid.

A server answers with the last sample of five minutes, so that a gap looks like data: a row counts only if one of the metric's
own samples lies in its step, ``(t - step, t]``, as by the embedded recorder (``Dialect.container_age_steps``: of containers in two).
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from harness.errors import PrometheusError
from harness.metrics.catalogue import Level, Metric
from harness.metrics.prometheus.client import MAX_POINTS, SampledSeries
from harness.metrics.promql import Dialect
from harness.metrics.promql_math import RunningTotal
from harness.metrics.rows import NO_REPLICA, NO_REQUESTS, TOO_FEW, MetricColumn, series_name

Flags = NDArray[np.bool_]
Key = tuple[str, ...]
"""Values of the labels that tell series apart."""
GPU_LABEL = "gpu"
ALL_NODES = "node"
_DIGITS = re.compile(r"(\d+)")
_TELLING = {Level.REPLICA: (), Level.DEVICE: ("UUID", "modelName"), Level.NODE: ("instance",)}
"""Labels beside the key that say what a series stands for."""
NO_SAMPLE = "Prometheus holds no sample of this step: a gap, or it scrapes more rarely than the step"
BLANK = "Prometheus holds no sample of this step but one that cannot be: DCGM's blank, which stands for no value"
NOT_A_NUMBER = "Prometheus answered NaN"


def by_labels(series: Sequence[SampledSeries], names: Sequence[str]) -> dict[Key, list[SampledSeries]]:
    """The series grouped by the values of some labels (several in a group: a container that was restarted)."""
    groups: dict[Key, list[SampledSeries]] = defaultdict(list)
    for member in series:
        groups[tuple(member.labels.get(name, "") for name in names)].append(member)
    return dict(groups)


def measured(samples: Sequence[SampledSeries], grid_ms: NDArray[np.int64], age_ms: int) -> Flags:
    """For each grid time, whether a sample is at most ``age_ms`` old (a step, as a rule); shape (rows,)."""
    flags = np.zeros(len(grid_ms), dtype=np.bool_)
    for series in samples:
        ended = np.searchsorted(series.times_ms, grid_ms, side="right")
        began = np.searchsorted(series.times_ms, grid_ms - age_ms, side="right")
        flags |= ended > began
    return flags


def believed(metric: Metric, samples: Sequence[SampledSeries]) -> list[SampledSeries]:
    """The samples but for those above the metric's bound: DCGM has numbers that stand for no value."""
    most = math.inf if metric.maximum is None or metric.level is not Level.DEVICE else metric.maximum / metric.scale
    return [
        SampledSeries(series.labels, series.times_ms[good], series.values[good])
        for series in samples
        if (good := series.values <= most).any()
    ]


def has_reset(samples: Sequence[SampledSeries]) -> bool:
    """A counter fell somewhere in the range."""
    return any(bool((np.diff(series.values) < 0).any()) for series in samples)


class CountedTotal:
    """Growth of one replica's counters since the last sample up to ``start_ms``, else the first after it; fed chunk by chunk."""

    def __init__(self, start_ms: int) -> None:
        self._start_ms = start_ms
        self._until_ms = -math.inf
        self._totals: dict[tuple[tuple[str, str], ...], RunningTotal] = defaultdict(RunningTotal)

    def advance(self, samples: Sequence[SampledSeries], grid_ms: NDArray[np.int64]) -> NDArray[np.float64]:
        """The total at each grid time, NaN before the first sample; what an earlier call was given is not counted again."""
        new = {tuple(sorted(series.labels.items())): series for series in samples}
        columns = [
            self._total(self._totals[key], new.get(key), grid_ms) for key in sorted(new.keys() | self._totals.keys())
        ]
        self._until_ms = max((int(series.times_ms[-1]) for series in samples), default=self._until_ms)
        if not columns:
            return np.full(len(grid_ms), np.nan)
        stacked = np.stack(columns)
        return np.where(np.isnan(stacked).all(axis=0), np.nan, np.nansum(stacked, axis=0))

    def _total(
        self, total: RunningTotal, series: SampledSeries | None, grid_ms: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        history = [total.counted if total.seen else np.nan]
        if series is None:
            return np.full(len(grid_ms), history[0])
        new = series.times_ms > self._until_ms
        for time_ms, value in zip(series.times_ms[new].tolist(), series.values[new].tolist(), strict=True):
            total.observe(value, counting=time_ms > self._start_ms)
            history.append(total.counted)
        return np.array(history)[np.searchsorted(series.times_ms[new], grid_ms, side="right")]


def key_labels(metric: Metric, dialect: Dialect) -> tuple[str, ...]:
    """The labels whose values tell this metric's series apart."""
    if metric.level is Level.REPLICA:
        return (dialect.by,)
    if metric.level is Level.DEVICE:
        return (dialect.gpu_node_label, GPU_LABEL) if dialect.gpu_node_label else (GPU_LABEL,)
    return (dialect.node_label,) if dialect.node_label else ()


def device_names(keys: Iterable[Key]) -> dict[Key, str]:
    """Series name of each device, by key, in order."""
    ordered = sorted(set(keys), key=natural)
    if len({key[:-1] for key in ordered}) <= 1:
        return {key: f"gpu-{key[-1]}" for key in ordered}
    return {key: f"gpu-{number}" for number, key in enumerate(ordered)}


def node_names(keys: Iterable[Key]) -> dict[Key, str]:
    """Series name of each node, by key, in order."""
    ordered = sorted(set(keys), key=natural)
    return {key: f"node-{''.join(key)}" if len(ordered) > 1 else ALL_NODES for key in ordered}


def replica_names(replicas: Sequence[str], neighbour: str = "") -> dict[Key, str]:
    """Series name of each replica, of the measured workload or of a neighbour, by key, in the order given."""
    return {(label,): series_name(f"replica-{index}", neighbour) for index, label in enumerate(replicas)}


def identity(metric: Metric, dialect: Dialect, labels: Mapping[str, str]) -> dict[str, str]:
    """What a series stands for: its key and the labels that say more, as far as the server has them."""
    names = (*key_labels(metric, dialect), *_TELLING[metric.level])
    return {name: labels[name] for name in names if labels.get(name)}


def mixed(metric: Metric, samples: Sequence[SampledSeries]) -> str:
    """Why raw samples with one key cannot be one thing: two had it at the same time, not one after another; empty when they can."""
    label, *_ = (*_TELLING[metric.level], "")
    spans: dict[str, tuple[int, int]] = {}
    for series in samples if label else ():
        thing, first, last = series.labels.get(label, ""), int(series.times_ms[0]), int(series.times_ms[-1])
        known_first, known_last = spans.get(thing, (first, last))
        spans[thing] = min(first, known_first), max(last, known_last)
    ordered = sorted(spans.items(), key=lambda item: item[1])
    for (thing, (_, last)), (other, (first, _)) in pairwise(ordered):
        if first < last:
            return (
                f"Prometheus has one {metric.level.value} under two names at once ({label} {thing} and {other}): "
                "narrow the selector, or give the label that distinguishes nodes"
            )
    return ""


def natural(text: str | Key) -> list[tuple[int, str]]:
    """Sort key that puts ``pod-10`` after ``pod-9``."""
    joined = text if isinstance(text, str) else "\0".join(text)
    return [(int(part), "") if part.isdigit() else (-1, part) for part in _DIGITS.split(joined)]


def used_bounds(before: Sequence[SampledSeries], after: Sequence[SampledSeries]) -> list[str]:
    """The ``le`` values to read, as the server spells them, ascending; only right when no counter was reset in the range.

    ``before`` and ``after``: the buckets of all replicas, added up, at the first sample of the range (one that is not there began
    at 0) and at its end. Wanted is every bound up to which some request was counted, but not yet all, the edge on either side of
    those, the highest finite bound (it answers for saturation) and +Inf; they serve each of the replicas, too. None of them when
    there is no +Inf bucket or a count fell: then every bucket has to be read.
    """
    began = {series.labels.get("le", ""): float(series.values[-1]) for series in before}
    buckets = sorted(
        (float(bound or "nan"), bound, float(series.values[-1]) - began.get(bound, 0.0))
        for series in after
        for bound in (series.labels.get("le", ""),)
    )
    if not buckets or buckets[-1][0] != math.inf or any(growth < 0 for _, _, growth in buckets):
        return []
    total = buckets[-1][2]
    first = next((place for place, (_, _, growth) in enumerate(buckets) if growth > 0), len(buckets))
    full = next(place for place, (_, _, growth) in enumerate(buckets) if growth >= total)
    needed = {*range(max(first - 1, 0), full + 1), *range(max(len(buckets) - 2, 0), len(buckets))}
    return [buckets[place][1] for place in sorted(needed)]


@dataclass(frozen=True, slots=True)
class ExportGrid:
    """Row ``k`` of an export is at ``start + k * step``, in ms since the epoch."""

    start_ms: int
    step_ms: int
    window_ms: int
    rows: int

    @property
    def end_ms(self) -> int:
        """Time of the last row."""
        return self.start_ms + (self.rows - 1) * self.step_ms

    def times_ms(self) -> NDArray[np.int64]:
        """Every grid time; shape (rows,)."""
        return self.start_ms + self.step_ms * np.arange(self.rows, dtype=np.int64)

    def chunks(self) -> Iterator[ExportGrid]:
        """Consecutive grids of at most ``MAX_POINTS`` rows, without gap or duplicate."""
        for first in range(0, self.rows, MAX_POINTS):
            rows = min(MAX_POINTS, self.rows - first)
            yield ExportGrid(self.start_ms + first * self.step_ms, self.step_ms, self.window_ms, rows)


def column(
    metric: Metric,
    name: str,
    chunk: ExportGrid,
    answers: Sequence[SampledSeries],
    present: NDArray[np.bool_],
    unmeasured: str = NO_SAMPLE,
    unanswered: str = TOO_FEW,
) -> MetricColumn:
    """One series of an answer on the grid; a grid time that the answer leaves out had too few scrapes, unless it is said otherwise.

    Raises:
        PrometheusError: the answer has times that are not on the grid.
    """
    values = np.full(chunk.rows, np.nan)
    answered = np.zeros(chunk.rows, dtype=np.bool_)
    for answer in answers:
        places, rest = np.divmod(answer.times_ms - chunk.start_ms, chunk.step_ms)
        if rest.any() or places[0] < 0 or places[-1] >= chunk.rows:
            raise PrometheusError(f"{metric.name}: Prometheus answered times that are not on the grid.")
        values[places] = answer.values
        answered[places] = True
    return cells(metric, name, values, present, unmeasured, answered, unanswered)


def combined(metric: Metric, name: str, columns: Sequence[MetricColumn]) -> MetricColumn:
    """Series ``name``: of those columns that were measured at each grid time the sum over replicas, or the mean over nodes."""
    present = np.array([[not reason for reason in column.reasons] for column in columns])
    total = np.where(present, np.array([column.values for column in columns]), 0.0).sum(axis=0)
    count = present.sum(axis=0)
    if metric.level is Level.REPLICA:
        return cells(metric, name, total, count > 0, NO_REPLICA)
    return cells(metric, name, total / np.maximum(count, 1), count > 0, NO_SAMPLE)


def cells(
    metric: Metric,
    name: str,
    values: NDArray[np.float64],
    present: NDArray[np.bool_],
    unmeasured: str,
    answered: NDArray[np.bool_] | None = None,
    unanswered: str = TOO_FEW,
) -> MetricColumn:
    """Values with a reason wherever there is none: not measured, not answered, or not a number."""
    nan_reason = NO_REQUESTS if metric.of_histogram else NOT_A_NUMBER
    reasons = np.full(len(values), "", dtype=object)
    reasons[~np.isfinite(values)] = nan_reason
    if answered is not None:
        reasons[~answered] = unanswered
    reasons[~present] = unmeasured
    return MetricColumn(metric.name, name, values.tolist(), reasons.tolist())
