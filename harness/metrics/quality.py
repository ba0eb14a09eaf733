"""Judges recorded data from the files alone, so that zero samples never look like success.

Every check looks at the metric CSVs as they lie on disk; verifying an experiment repeats them.
``invalid`` findings say that a number must not be used, ``degraded`` ones that it needs the remark
beside it, ``info`` ones that nothing is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import numpy as np

from harness.errors import MetricsError, ReasonCode
from harness.metrics.catalogue import (
    CATALOGUE,
    ESSENTIAL_SOURCES,
    PRESSURE_SOURCES,
    PROCESS_SOURCES,
    Kind,
    Level,
    Metric,
    Source,
)
from harness.metrics.csv_reader import ExperimentColumns, SeriesColumns, read_experiment
from harness.metrics.row_builder import NO_REQUESTS
from harness.metrics.rows import POOLED, neighbour_of, series_name
from harness.metrics.steady import TOLERANCE, WINDOWS, steady_state

MISSING_SHARE = 0.01
"""More missing values than this share of a series degrade the experiment."""
ZERO_SHARE = 0.10
"""More zeros than this share degrade it, where a replica under load cannot show 0."""
BOUND_SLACK = 0.05
"""Rates over a window may overshoot a bound by the jitter of their scrapes."""
COUNT_SLACK = 0.01
TICK_S = 0.01
"""The kernel counts the CPU time of a process in ticks of this length."""
FEW_TICKS = 5
"""In rows that hold fewer of them on average, some hold none."""
ACTIVE_SHARE = "active_share"
STALL_SHARE = 0.10
"""A replica that serves nothing in this last share of the recording had stopped."""
TELLING_VALUES = 2
"""A counter begins at 0 with the recording: its first value says nothing of what was served."""
REQUESTS_PER_WINDOW = 10
"""With fewer requests in a tenth of the recording, one more or less looks like a change of speed."""
WINDOW_ADVICE = "Requests take longer than the window: raise rate_window_s or step_s."
MISSING_ADVICE = "Look at the replica's log and the recorder's summary."
TOP_BOUND_S = 60.0
"""Highest finite bucket of the replicas' histogram: a quantile there is saturation, not a measurement."""
_GRID_TOLERANCE_S = 0.0011
_ALL_BUT_ROUNDING = 1 - 1e-9


Logged = Callable[[Mapping[str, tuple[float, float]]], Mapping[str, tuple[int, int]]]
"""Fewest and most requests in the replicas' logs by series name, between two rows each, given in seconds since row 0."""


class Severity(StrEnum):
    """What a finding means for the experiment's verdict."""

    INFO = "info"
    DEGRADED = "degraded"
    INVALID = "invalid"


@dataclass(frozen=True, slots=True)
class Finding:
    """One remark on the data."""

    severity: Severity
    code: ReasonCode
    metric: str
    message: str
    advice: str = ""


def judge(
    folder: Path,
    *,
    rows: int | None = None,
    logged: Logged | None = None,
    open_loop: bool = False,
    waiting: Collection[str] = (),
) -> list[Finding]:
    """Judge the metric CSVs of one experiment.

    Args:
        folder: the experiment's folder, finished or not.
        rows: rows that every series must have; None: as many as the longest.
        logged: what the replicas' own logs hold, to compare their counters with; None: not compared.
        open_loop: requests come at times of their own, so that throughput varies as those do.
        waiting: neighbours that do nothing until their time: what they lack is no flaw, and the others have two states.
    """
    try:
        experiment = read_experiment(folder)
    except MetricsError as error:
        return [Finding(Severity.INVALID, ReasonCode.ROWS, "", error.message, error.advice)]
    bursty = _bursty(experiment)
    groups = [
        (CATALOGUE[name], neighbour, series)
        for name, named in experiment.metrics.items()
        for neighbour, series in _by_workload(named).items()
        if neighbour not in waiting
    ]
    # Whether a request ends in a row is up to those who ask, where they come at times of their own.
    resting = bursty | {""} if open_loop else bursty
    return [
        *_grid(experiment, rows),
        *_gaps(groups, resting),
        *(
            finding
            for metric, neighbour, series in groups
            for finding in _metric(metric, series, neighbour, bursty=neighbour in bursty, open_loop=open_loop)
        ),
        *_replicas(experiment, bursty, waiting, open_loop=open_loop),
        *_saturation(experiment),
        *(_counts(experiment, logged, waiting) if logged is not None else ()),
        *_steadiness(experiment, uneven=open_loop or "" in bursty or bool(waiting)),
    ]


def _grid(experiment: ExperimentColumns, rows: int | None) -> Iterator[Finding]:
    """Row count, gaps and alignment: every series on one grid."""
    every = [
        (f"{metric} {name}", series) for metric, named in experiment.metrics.items() for name, series in named.items()
    ]
    longest = max((series.elapsed_s for _, series in every), key=len, default=np.empty(0))
    expected = len(longest) if rows is None else rows
    if not len(longest):
        message = "Nothing was recorded: no series has a row."
        yield Finding(Severity.INVALID, ReasonCode.ROWS, "", message, "Run the experiment again.")
        return
    short = [name for name, series in every if len(series.elapsed_s) != expected]
    if short:
        yield Finding(
            Severity.INVALID if len(short) == len(every) and expected > len(longest) else Severity.DEGRADED,
            ReasonCode.ROWS,
            "",
            f"{len(short)} of {len(every)} series do not have {expected} rows, e.g. {short[0]}.",
            "The recording ended early; run the experiment again.",
        )
    step_s = _step_s(longest)
    for name, series in every:
        grid = step_s * np.arange(len(series.elapsed_s))
        if len(grid) and np.abs(series.elapsed_s - grid).max() > _GRID_TOLERANCE_S:
            place = int(np.argmax(np.abs(series.elapsed_s - grid) > _GRID_TOLERANCE_S))
            yield Finding(
                Severity.INVALID,
                ReasonCode.ROWS,
                name.split()[0],
                f"{name}: row {place} is at {series.elapsed_s[place]:.3f} s instead of {grid[place]:.3f} s.",
                "Rows are lost, doubled or edited; verify the files, then run the experiment again.",
            )
            return


def _by_workload(named: Mapping[str, SeriesColumns]) -> dict[str, dict[str, SeriesColumns]]:
    """The series of the measured replicas (and of devices and node) under "", then those of each neighbour."""
    groups: dict[str, dict[str, SeriesColumns]] = {"": {}}
    for name, series in named.items():
        groups.setdefault(neighbour_of(name), {})[name] = series
    return groups


def _bursty(experiment: ExperimentColumns) -> frozenset[str]:
    """Whose workload rests by itself: "" for the measured replicas, or a neighbour; such a one counts its active time."""
    groups = _by_workload(experiment.metrics.get(ACTIVE_SHARE, {}))
    return frozenset(
        neighbour for neighbour, named in groups.items() if any(len(series.present) for series in named.values())
    )


def _gaps(
    groups: Iterable[tuple[Metric, str, dict[str, SeriesColumns]]], resting: Collection[str]
) -> Iterator[Finding]:
    """Values that are missing, one finding for all series that lack as many for the same reason."""
    alike: dict[tuple[int, int, str, Severity, str], dict[str, list[str]]] = {}
    for metric, neighbour, named in groups:
        if not any(len(series.present) for series in named.values()):
            continue  # told as a metric without any value
        for name, series in named.items():
            rows, missing = len(series.values), int(np.isnan(series.values).sum())
            if not missing or (missing == rows and metric.level is Level.DEVICE):
                continue
            # Who rests serves nothing meanwhile, and nothing is wrong with that.
            flaws = missing - series.reasons.get(NO_REQUESTS, 0) if neighbour in resting else missing
            severity = Severity.DEGRADED if flaws > MISSING_SHARE * rows else Severity.INFO
            advice = WINDOW_ADVICE if NO_REQUESTS in series.reasons else MISSING_ADVICE
            key = (missing, rows, _commonest([series]), severity, advice if flaws else "")
            alike.setdefault(key, {}).setdefault(metric.name, []).append(name)
    for (missing, rows, reason, severity, advice), metrics in alike.items():
        first, (name, *_) = next(iter(metrics.items()))
        others = sum(map(len, metrics.values())) - 1
        beside = f" and {others} other series" if others else ""
        message = f"{first} {name}{beside}: {missing} of {rows} values are missing: {reason}."
        yield Finding(severity, ReasonCode.MISSING_VALUES, first, message, advice)


def _metric(
    metric: Metric, named: Mapping[str, SeriesColumns], neighbour: str, *, bursty: bool, open_loop: bool
) -> Iterator[Finding]:
    """No value at all, bounds and zeros of one metric of the measured replicas, or of a neighbour."""
    if not any(len(series.present) for series in named.values()):
        reason = _commonest(named.values())
        advice = (
            "Without it there is no result; mend the cause and run again." if metric.source in ESSENTIAL_SOURCES else ""
        )
        whose = f"{metric.name} of the neighbour {neighbour}" if neighbour else metric.name
        severity = _severity_of_none(metric, neighbour)
        yield Finding(severity, ReasonCode.NO_VALUE, metric.name, f"{whose} has no value at all: {reason}.", advice)
        return
    for name, series in named.items():
        if not len(series.present) and metric.level is Level.DEVICE:
            message = f"{metric.name} {name}: {_commonest([series])}."
            yield Finding(Severity.INFO, ReasonCode.NO_VALUE, metric.name, message)
        yield from _bounds(metric, name, series)
    if metric.nonzero_expected and not bursty:
        # At a rate, a row without work says that nothing was asked in it; every row, that nothing was done.
        yield from _zeros(metric, named, ZERO_SHARE if neighbour or not open_loop else _ALL_BUT_ROUNDING)


def _severity_of_none(metric: Metric, neighbour: str) -> Severity:
    """Without its throughput or latency a measurement says nothing, and nobody knows what a neighbour did."""
    if metric.source not in ESSENTIAL_SOURCES:
        return Severity.INFO
    return Severity.DEGRADED if neighbour else Severity.INVALID


def _bounds(metric: Metric, name: str, series: SeriesColumns) -> Iterator[Finding]:
    present = series.present
    kernels = metric.source in PROCESS_SOURCES | PRESSURE_SOURCES
    step_s = _step_s(series.elapsed_s)
    slack = BOUND_SLACK + (TICK_S / step_s if kernels and step_s else 0.0)
    low = len(present) and present.min() < 0
    high = metric.maximum is not None and len(present) and present.max() > metric.maximum * (1 + slack)
    if low or high:
        value = present.min() if low else present.max()
        yield Finding(
            Severity.DEGRADED,
            ReasonCode.IMPOSSIBLE_VALUE,
            metric.name,
            f"{metric.name} {name} reaches {value:g} {metric.unit}, which cannot be.",
            "Do not use this metric. The kernel counts it: choose a longer step_s, and keep other work off the machine."
            if kernels
            else "Do not use this metric; check the driver or the exporter that it comes from.",
        )


def _below_a_tick(metric: Metric, present: np.ndarray, step_s: float) -> bool:
    """Whether so little CPU time is used that the kernel's ticks count none of it in many a row."""
    return metric.source is Source.PROCESS_CPU and 0 < float(present.mean()) * step_s < FEW_TICKS * TICK_S


def _step_s(elapsed_s: np.ndarray) -> float:
    return float(np.median(np.diff(elapsed_s))) if len(elapsed_s) > 1 else 0.0


def _zeros(metric: Metric, named: Mapping[str, SeriesColumns], most_share: float) -> Iterator[Finding]:
    """Zeros where work must show; a counter starts at 0, so its first values are left out."""
    shares = {}
    for name, series in named.items():
        present = series.present[1:] if metric.kind is Kind.COUNTER else series.present
        if len(present) and not _below_a_tick(metric, present, _step_s(series.elapsed_s)):
            shares[name] = float((present == 0).mean())
    if not shares:
        return
    if metric.level is Level.DEVICE:
        # One idle device of several is normal: only the busiest has to show work.
        shares = {name: share for name, share in shares.items() if share == min(shares.values())}
    for name, share in shares.items():
        if share > most_share:
            yield Finding(
                Severity.DEGRADED,
                ReasonCode.ZEROS,
                metric.name,
                f"{metric.name} {name} is 0 in {share:.0%} of the rows, although the replica should be working.",
                "Check that it runs where it should (device, runtime class) and that the sampling is fast enough.",
            )
            return


class _Served(StrEnum):
    """What a replica's counter tells of the requests that it served."""

    SOME = "some"
    NOTHING = "nothing"
    NOTHING_AT_THE_END = "nothing at the end"
    UNKNOWN = "unknown"


_SAID = {
    _Served.UNKNOWN: (
        ReasonCode.NO_VALUE,
        f"Whether {{}} served requests while recording is not known: fewer than {TELLING_VALUES} values of total_count each.",
    ),
    _Served.NOTHING: (ReasonCode.IDLE_REPLICA, "{} served no request while recording."),
    _Served.NOTHING_AT_THE_END: (
        ReasonCode.STALLED_REPLICA,
        f"{{}} served nothing in the last {STALL_SHARE:.0%} of the recording.",
    ),
}


def _served(values: np.ndarray, *, may_rest: bool) -> _Served:
    """A value that is missing tells nothing of the replica, only that nobody could read it; ``_gaps`` says so."""
    present = values[~np.isnan(values)]
    if len(present) < TELLING_VALUES and not present.any():
        return _Served.UNKNOWN
    if present.max() == 0:
        return _Served.NOTHING
    if may_rest or len(values) * STALL_SHARE < 1:
        return _Served.SOME
    end = values[-int(len(values) * STALL_SHARE) - 1 :]
    told = np.count_nonzero(~np.isnan(end)) >= TELLING_VALUES
    return _Served.NOTHING_AT_THE_END if told and _growth(end) == 0 else _Served.SOME


def _replicas(
    experiment: ExperimentColumns, bursty: frozenset[str], waiting: Collection[str], *, open_loop: bool
) -> Iterator[Finding]:
    """Replicas that served nothing, or stopped before the end (where resting is not part of the workload).

    Who is asked at times of its own may rest where few requests are due; what was asked and never answered is judged as such.
    """
    counts = _counts_of_replicas(experiment, waiting)
    measured = {name for name in counts if not neighbour_of(name)}
    found: dict[_Served, list[str]] = {each: [] for each in _Served}
    for name, values in counts.items():
        asked_seldom = open_loop and name in measured and _growth(values) * STALL_SHARE < REQUESTS_PER_WINDOW
        found[_served(values, may_rest=asked_seldom or neighbour_of(name) in bursty)].append(name)
    useless = measured <= {*found[_Served.NOTHING], *found[_Served.UNKNOWN]}
    advice = "Look at the replica's log; run the experiment again."
    for served, (code, sentence) in _SAID.items():
        names = found[served]
        if not names:
            continue
        invalid = useless and served in {_Served.NOTHING, _Served.UNKNOWN}
        message = sentence.format(", ".join(names))
        if served is _Served.NOTHING and measured <= {*names}:
            message = "No replica served a single request while recording."
        yield Finding(Severity.INVALID if invalid else Severity.DEGRADED, code, "total_count", message, advice)


def _counts_of_replicas(experiment: ExperimentColumns, waiting: Collection[str]) -> dict[str, np.ndarray]:
    """The counter of every measured replica, and of every neighbour's but those that wait; nothing where it was not asked for."""
    totals = experiment.metrics.get("total_count")
    if not totals:
        return {}
    measured = [f"replica-{replica}" for replica in range(experiment.replicas)]
    beside = [
        name
        for name in totals
        if neighbour_of(name) not in {"", *waiting} and series_name(POOLED, neighbour_of(name)) != name
    ]
    return {name: totals[name].values if name in totals else np.empty(0) for name in [*measured, *beside]}


def _growth(values: np.ndarray) -> float:
    present = values[~np.isnan(values)]
    return float(present[-1] - present[0]) if len(present) else 0.0


def _saturation(experiment: ExperimentColumns) -> Iterator[Finding]:
    """Quantiles in the +Inf bucket: flat at the highest bound, and the same for every quantile."""
    for name, named in experiment.metrics.items():
        if CATALOGUE[name].kind is not Kind.QUANTILE:
            continue
        flat = [series for series, columns in named.items() if (columns.present >= TOP_BOUND_S).any()]
        if flat:
            yield Finding(
                Severity.DEGRADED,
                ReasonCode.ABOVE_BUCKETS,
                name,
                f"{name} {', '.join(flat)} lies above the highest bucket of {TOP_BOUND_S:g} s and is cut off there.",
                "Use the raw latencies instead, or a smaller batch.",
            )


def _counts(experiment: ExperimentColumns, logged: Logged, waiting: Collection[str]) -> Iterator[Finding]:
    """The counter's growth against the requests in the replica's own log, between the first and the last of its readings."""
    grown, rows_s = {}, {}
    for name, series in experiment.metrics.get("total_count", {}).items():
        read = np.flatnonzero(~np.isnan(series.values))
        if len(read) >= TELLING_VALUES and neighbour_of(name) not in waiting:
            grown[name] = float(series.values[read[-1]] - series.values[read[0]])
            rows_s[name] = float(series.elapsed_s[read[0]]), float(series.elapsed_s[read[-1]])
    for name, (fewest, most) in logged(rows_s).items():
        counted = grown[name]
        in_log = min(max(counted, fewest), most)
        # Each end of the recording may fall between a request and its log record.
        if abs(counted - in_log) > max(2.0, COUNT_SLACK * max(counted, in_log)):
            yield Finding(
                Severity.DEGRADED,
                ReasonCode.COUNTS_DISAGREE,
                "total_count",
                f"{name} counted {counted:g} requests and logged {in_log:g} in the same time.",
                "The replica was restarted, or its log is incomplete; do not use its percentiles.",
            )


def _steadiness(experiment: ExperimentColumns, *, uneven: bool) -> Iterator[Finding]:
    """Whether throughput had settled; ``uneven``: it varies by the workload's nature, so that nothing can be said."""
    if uneven:
        return
    series = experiment.metrics.get("throughput", {}).get("all")
    if series is None or not len(series.present):
        return
    served = experiment.metrics.get("total_count", {}).get("all")
    if served is not None and 0 < _growth(served.values) < REQUESTS_PER_WINDOW * WINDOWS:
        message = "There are too few requests to tell whether it was steady."
        yield Finding(Severity.INFO, ReasonCode.STEADINESS_UNKNOWN, "throughput", message)
        return
    state = steady_state(series.values)
    if not state.judged:
        message = "The recording is too short to tell whether it was steady."
        yield Finding(Severity.INFO, ReasonCode.STEADINESS_UNKNOWN, "throughput", message)
    elif not state.steady:
        low, high = min(state.means), max(state.means)
        yield Finding(
            Severity.DEGRADED,
            ReasonCode.UNSTEADY,
            "throughput",
            f"Throughput was not steady: its windows range from {low:.4g} to {high:.4g} requests per second and the last "
            f"three do not agree within {TOLERANCE:.0%}.",
            "Stabilise longer, record longer, and keep other work off the machine.",
        )
    elif state.from_row:
        settled_s = float(series.elapsed_s[state.from_row])
        yield Finding(
            Severity.INFO,
            ReasonCode.UNSTEADY,
            "throughput",
            f"Throughput was steady only from {settled_s:g} s after the start of the recording.",
            "Stabilise longer.",
        )


def _commonest(series: Iterable[SeriesColumns]) -> str:
    reasons: dict[str, int] = {}
    for columns in series:
        for reason, count in columns.reasons.items():
            reasons[reason] = reasons.get(reason, 0) + count
    return max(reasons, key=reasons.__getitem__) if reasons else "no reason was given"
