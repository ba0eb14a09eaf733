"""Judges recorded data from the metric CSVs on disk alone, so that zero samples never look like success; verifying repeats it.

``invalid`` findings say that a number must not be used, ``degraded`` ones that it needs the remark beside it, ``info`` ones
that nothing is wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from harness.errors import MetricsError, ReasonCode
from harness.metrics.catalogue import (
    CATALOGUE,
    ESSENTIAL_SOURCES,
    PRESSURE_SOURCES,
    PROCESS_SOURCES,
    REPLICA_SOURCES,
    Kind,
    Level,
    Metric,
    Source,
)
from harness.metrics.csv_reader import ExperimentColumns, SeriesColumns, read_experiment
from harness.metrics.rows import NO_REQUESTS, POOLED, neighbour_of, series_name

MISSING_SHARE = 0.01
"""More missing values than this share of a series degrade the experiment."""
ZERO_SHARE = 0.10
"""More zeros than this share degrade it, where a replica under load cannot show 0."""
BOUND_SLACK = 0.05
"""Rates over a window may overshoot a bound by the jitter of their scrapes."""
JITTER_S = 0.1
"""How late a busy machine may let us read a counter of the kernel: a short step sees that as time which was not there."""
COUNT_SLACK = 0.01
TICK_S = 0.01
"""The kernel counts the CPU time of a process in ticks of this length."""
FEW_TICKS = 5
"""In rows that hold fewer of them on average, some hold none."""
STALL_SHARE = 0.10
"""A replica that serves nothing in this last share of the recording had stopped."""
TELLING_VALUES = 2
"""A counter begins at 0 with the recording: its first value says nothing of what was served."""
REQUESTS_PER_WINDOW = 10
"""With fewer requests in a tenth of the recording, one more or less looks like a change of speed."""
REQUESTS_IN_TURN = 2
"""Of a closed loop, for each request in flight: where so many take longer than a tenth of the recording, that long is looked at."""
IN_FLIGHT_PER_WINDOW = 5
"""A window of steadiness holds so many times what a closed loop has in flight: with fewer, all that ends together is a change of speed."""
WINDOW_ADVICE = "Requests take longer than the window: raise rate_window_s or step_s."
MISSING_ADVICE = "Look at the replica's log and the recorder's summary."
TOP_BOUND_S = 60.0
"""Highest finite bucket of the replicas' histogram: a quantile there is saturation, not a measurement."""
WINDOWS = 10
"""Of a recording whose steadiness is judged, fewer of a short one."""
CONSECUTIVE = 3
TOLERANCE = 0.10
MIN_ROWS_PER_WINDOW = 3
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


@dataclass(frozen=True, slots=True)
class Pauses:
    """How long a series may go without the end of a request, where requests take long. ``longest_s``: by the names of series."""

    longest_s: Mapping[str, float]
    rate_window_s: float
    recording_s: float

    def share(self, metric: Metric, name: str) -> float:
        """In which share of its rows the metric may be 0 or missing for no other reason."""
        longest_s = self.longest_s.get(name, 0.0)
        if metric.source not in REPLICA_SOURCES or longest_s <= 0:
            return 0.0
        if metric.kind is Kind.COUNTER:  # until the first request ends
            return longest_s / self.recording_s if self.recording_s > 0 else 0.0
        return max(0.0, 1 - self.rate_window_s / longest_s)


NO_PAUSES = Pauses({}, np.inf, 0.0)


def judge(
    folder: Path,
    *,
    rows: int | None = None,
    logged: Logged | None = None,
    open_loop: bool = False,
    in_flight: int = 1,
    rate_window_s: float | None = None,
    waiting: Collection[str] = (),
) -> list[Finding]:
    """Judge the metric CSVs of one experiment, finished or not.

    Args:
        rows: rows that every series must have; None: as many as the longest.
        logged: what the replicas' own logs hold, to compare their counters with; None: not compared.
        open_loop: requests come at times of their own, so that throughput varies as those do.
        in_flight: else, how many requests each measured replica has at any time.
        rate_window_s: over which rates and quantiles were taken; None: not known, and longer than any request.
        waiting: neighbours that do nothing until their time: what they lack is no flaw, and the others have two states.
    """
    try:
        experiment = read_experiment(folder)
    except MetricsError as error:
        return [Finding(Severity.INVALID, ReasonCode.ROWS, "", error.message, error.advice)]
    # Whose workload rests by itself ("" for the measured replicas) counts its active time.
    active = experiment.metrics.get("active_share", {})
    bursty = {neighbour_of(name) for name, series in active.items() if len(series.present)}
    # Each metric of the measured replicas (of devices, of the node) under "", and of each neighbour.
    groups = [
        (
            CATALOGUE[name],
            neighbour,
            {name: series for name, series in named.items() if neighbour_of(name) == neighbour},
        )
        for name, named in experiment.metrics.items()
        for neighbour in dict.fromkeys(["", *map(neighbour_of, named)])
        if neighbour not in waiting
    ]
    findings = [*_grid(experiment, rows)]
    pauses = NO_PAUSES if open_loop else _pauses(experiment, rate_window_s)
    # Whether a request ends in a row is up to those who ask, where they come at times of their own.
    findings += _gaps(groups, bursty | {""} if open_loop else bursty, pauses)
    for metric, neighbour, named in groups:
        findings += _metric(metric, named, neighbour, bursty=neighbour in bursty, open_loop=open_loop, pauses=pauses)
    findings += _replicas(experiment, bursty, waiting, in_flight=None if open_loop else in_flight)
    findings += _saturation(experiment)
    if logged is not None:
        findings += _counts(experiment, logged, waiting)
    if not (open_loop or "" in bursty or waiting):  # these vary by nature
        findings += _steadiness(experiment, in_flight)
    return findings


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
        invalid = len(short) == len(every) and expected > len(longest)
        message = f"{len(short)} of {len(every)} series do not have {expected} rows, e.g. {short[0]}."
        advice = "The recording ended early; run the experiment again."
        yield Finding(Severity.INVALID if invalid else Severity.DEGRADED, ReasonCode.ROWS, "", message, advice)
    step_s = _step_s(longest)
    for name, series in every:
        grid_s = step_s * np.arange(len(series.elapsed_s))
        off = np.flatnonzero(np.abs(series.elapsed_s - grid_s) > _GRID_TOLERANCE_S)
        if len(off):
            row = int(off[0])
            message = f"{name}: row {row} is at {series.elapsed_s[row]:.3f} s instead of {grid_s[row]:.3f} s."
            advice = "Rows are lost, doubled or edited; verify the files, then run the experiment again."
            yield Finding(Severity.INVALID, ReasonCode.ROWS, name.split()[0], message, advice)
            return


def _gaps(
    groups: Iterable[tuple[Metric, str, dict[str, SeriesColumns]]], resting: Collection[str], pauses: Pauses
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
            most_share = max(MISSING_SHARE, pauses.share(metric, name) if NO_REQUESTS in series.reasons else 0.0)
            severity = Severity.DEGRADED if flaws > most_share * rows else Severity.INFO
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
    metric: Metric, named: Mapping[str, SeriesColumns], neighbour: str, *, bursty: bool, open_loop: bool, pauses: Pauses
) -> Iterator[Finding]:
    """No value at all, bounds and zeros of one metric of the measured replicas, or of a neighbour."""
    if not any(len(series.present) for series in named.values()):
        severity, advice = Severity.INFO, ""
        if metric.source in ESSENTIAL_SOURCES:
            # Without its throughput or latency a measurement says nothing, and nobody knows what a neighbour did.
            severity = Severity.DEGRADED if neighbour else Severity.INVALID
            advice = "Without it there is no result; fix the cause and run again."
        whose = f"{metric.name} of the neighbour {neighbour}" if neighbour else metric.name
        message = f"{whose} has no value at all: {_commonest(named.values())}."
        yield Finding(severity, ReasonCode.NO_VALUE, metric.name, message, advice)
        return
    for name, series in named.items():
        if not len(series.present) and metric.level is Level.DEVICE:
            message = f"{metric.name} {name}: {_commonest([series])}."
            yield Finding(Severity.INFO, ReasonCode.NO_VALUE, metric.name, message)
        yield from _bounds(metric, name, series)
    if metric.nonzero_expected and not bursty:
        # At a rate, a row without work says that nothing was asked in it; every row, that nothing was done.
        most_share = ZERO_SHARE if neighbour or not open_loop else _ALL_BUT_ROUNDING
        yield from _zeros(metric, named, most_share, pauses)


def _bounds(metric: Metric, name: str, series: SeriesColumns) -> Iterator[Finding]:
    if not len(series.present):
        return
    kernels = metric.source in PROCESS_SOURCES | PRESSURE_SOURCES
    step_s = _step_s(series.elapsed_s)
    slack = BOUND_SLACK + ((TICK_S + JITTER_S) / step_s if kernels and step_s else 0.0)
    lowest, highest = series.present.min(), series.present.max()
    if lowest < 0 or (metric.maximum is not None and highest > metric.maximum * (1 + slack)):
        value = lowest if lowest < 0 else highest
        message = f"{metric.name} {name} reaches {value:g} {metric.unit}, which cannot be."
        kernel = "The kernel counts it: choose a longer step_s, and keep other work off the machine."
        advice = kernel if kernels else "Check the driver or the exporter that it comes from."
        advice = f"Do not use this metric. {advice}"
        yield Finding(Severity.DEGRADED, ReasonCode.IMPOSSIBLE_VALUE, metric.name, message, advice)


def _step_s(elapsed_s: np.ndarray) -> float:
    return float(np.median(np.diff(elapsed_s))) if len(elapsed_s) > 1 else 0.0


def _zeros(metric: Metric, named: Mapping[str, SeriesColumns], most_share: float, pauses: Pauses) -> Iterator[Finding]:
    """Zeros where work must show; a counter starts at 0, so its first values are left out."""
    shares = {}
    for name, series in named.items():
        present = series.present[1:] if metric.kind is Kind.COUNTER else series.present
        if not len(present):
            continue
        # So little CPU time that the kernel's ticks count none of it in many a row.
        ticks = float(present.mean()) * _step_s(series.elapsed_s) / TICK_S
        if metric.source is not Source.PROCESS_CPU or not 0 < ticks < FEW_TICKS:
            shares[name] = float((present == 0).mean())
    if metric.level is Level.DEVICE:
        # One idle device of several is normal: only the busiest has to show work.
        shares = {name: share for name, share in shares.items() if share == min(shares.values())}
    for name, share in shares.items():
        if share > max(most_share, pauses.share(metric, name)):
            message = f"{metric.name} {name} is 0 in {share:.0%} of the rows, although the replica should be working."
            advice = "Check that it runs where it should (device, runtime class) and that the sampling is fast enough."
            yield Finding(Severity.DEGRADED, ReasonCode.ZEROS, metric.name, message, advice)
            return


_SERVED = {
    ReasonCode.NO_VALUE: "Whether {} served requests while recording is not known: fewer than "
    f"{TELLING_VALUES} values of total_count each.",
    ReasonCode.IDLE_REPLICA: "{} served no request while recording.",
    ReasonCode.STALLED_REPLICA: f"{{}} served nothing in the last {STALL_SHARE:.0%} of the recording.",
}


def _served(values: np.ndarray, *, may_rest: bool, share: float = STALL_SHARE) -> ReasonCode | None:
    """What is wrong with the requests that a replica served by its counter; None: nothing.

    It stopped where the last ``share`` of the rows has none. A value that is missing tells nothing of the replica, only that nobody could read it; ``_gaps`` says so.
    """
    present = values[~np.isnan(values)]
    if len(present) < TELLING_VALUES and not present.any():
        return ReasonCode.NO_VALUE
    if present.max() == 0:
        return ReasonCode.IDLE_REPLICA
    if may_rest or share >= 1 or len(values) * share < 1:
        return None
    end = values[-int(len(values) * share) - 1 :]
    telling = np.count_nonzero(~np.isnan(end)) >= TELLING_VALUES
    return ReasonCode.STALLED_REPLICA if telling and _growth(end) == 0 else None


def _replicas(
    experiment: ExperimentColumns, bursty: Collection[str], waiting: Collection[str], *, in_flight: int | None
) -> Iterator[Finding]:
    """Replicas that served nothing, or stopped before the end (where resting is not part of the workload).

    Who is asked at times of its own (``in_flight`` is None) may rest where few requests are due; what was asked and never answered is
    judged as such. In a closed loop the last share is as long as a few requests take.
    """
    counts = _counts_of_replicas(experiment, waiting)
    measured = {name for name in counts if not neighbour_of(name)}
    flawed: dict[ReasonCode, list[str]] = {code: [] for code in _SERVED}
    for name, values in counts.items():
        served, is_measured = _growth(values), name in measured
        few = is_measured and in_flight is None and served * STALL_SHARE < REQUESTS_PER_WINDOW
        in_turn = REQUESTS_IN_TURN * (in_flight or 0) / served if is_measured and served > 0 else 0.0
        code = _served(values, may_rest=few or neighbour_of(name) in bursty, share=max(STALL_SHARE, in_turn))
        if code is not None:
            flawed[code].append(name)
    useless = measured <= {*flawed[ReasonCode.IDLE_REPLICA], *flawed[ReasonCode.NO_VALUE]}
    for code, names in flawed.items():
        if names:
            invalid = useless and code is not ReasonCode.STALLED_REPLICA
            message = _SERVED[code].format(", ".join(names))
            if code is ReasonCode.IDLE_REPLICA and measured <= {*names}:
                message = "No replica served a single request while recording."
            advice = "Look at the replica's log; run the experiment again."
            yield Finding(Severity.INVALID if invalid else Severity.DEGRADED, code, "total_count", message, advice)


def _pauses(experiment: ExperimentColumns, rate_window_s: float | None) -> Pauses:
    """Of a closed loop: all in flight may end together, and the next as much later as they take.

    That is twice the median of the rows, which a replica that hangs does not lengthen.
    """
    longest: dict[str, float] = {}
    for replica in range(experiment.replicas):
        name = f"replica-{replica}"
        latency = experiment.metrics.get("latency_p50", {}).get(name)
        if latency is not None and len(latency.present):
            longest[name] = REQUESTS_IN_TURN * float(np.median(latency.present))
    if len(longest) == experiment.replicas:
        longest[POOLED] = min(longest.values())
    totals = experiment.metrics.get("total_count", {}).get(POOLED)
    elapsed_s = totals.elapsed_s if totals is not None else np.zeros(1)
    return Pauses(longest, rate_window_s or np.inf, float(elapsed_s[-1] - elapsed_s[0]))


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
        flat = [series for series, columns in named.items() if (columns.present >= TOP_BOUND_S).any()]
        if flat and CATALOGUE[name].kind is Kind.QUANTILE:
            message = (
                f"{name} {', '.join(flat)} lies above the highest bucket of {TOP_BOUND_S:g} s and is cut off there."
            )
            advice = "Use the raw latencies instead, or a smaller batch."
            yield Finding(Severity.DEGRADED, ReasonCode.ABOVE_BUCKETS, name, message, advice)


def _counts(experiment: ExperimentColumns, logged: Logged, waiting: Collection[str]) -> Iterator[Finding]:
    """The counter's growth against the requests in the replica's own log, between the first and the last of its readings."""
    grown, rows_s = {}, {}
    for name, series in experiment.metrics.get("total_count", {}).items():
        read = np.flatnonzero(~np.isnan(series.values))
        if len(read) >= TELLING_VALUES and neighbour_of(name) not in waiting:
            grown[name] = _growth(series.values)
            rows_s[name] = float(series.elapsed_s[read[0]]), float(series.elapsed_s[read[-1]])
    for name, (fewest, most) in logged(rows_s).items():
        counted = grown[name]
        in_log = min(max(counted, fewest), most)
        # Each end of the recording may fall between a request and its log record.
        if abs(counted - in_log) > max(2.0, COUNT_SLACK * max(counted, in_log)):
            message = f"{name} counted {counted:g} requests and logged {in_log:g} in the same time."
            advice = "The replica was restarted, or its log is incomplete; do not use its percentiles."
            yield Finding(Severity.DEGRADED, ReasonCode.COUNTS_DISAGREE, "total_count", message, advice)


def _steadiness(experiment: ExperimentColumns, in_flight: int) -> Iterator[Finding]:
    """Whether throughput had settled; each window holds some requests for each that is in flight, for these may end together."""
    series = experiment.metrics.get("throughput", {}).get(POOLED)
    if series is None or not len(series.present):
        return
    served = experiment.metrics.get("total_count", {}).get(POOLED)
    requests = np.inf if served is None or not (grown := _growth(served.values)) else grown
    windows = int(min(WINDOWS, requests // (IN_FLIGHT_PER_WINDOW * in_flight * experiment.replicas)))
    few = requests < REQUESTS_PER_WINDOW * WINDOWS or windows < CONSECUTIVE
    state = steady_state(series.values, windows)
    if few or not state.judged:
        why = "There are too few requests" if few else "The recording is too short"
        message = f"{why} to tell whether it was steady."
        yield Finding(Severity.INFO, ReasonCode.STEADINESS_UNKNOWN, "throughput", message)
    elif not state.steady:
        message = (
            f"Throughput was not steady: its windows range from {min(state.means):.4g} to {max(state.means):.4g} requests "
            f"per second and the last three do not agree within {TOLERANCE:.0%}."
        )
        advice = "Stabilise longer, record longer, and keep other work off the machine."
        yield Finding(Severity.DEGRADED, ReasonCode.UNSTEADY, "throughput", message, advice)
    elif state.from_row:
        settled_s = float(series.elapsed_s[state.from_row])
        message = f"Throughput was steady only from {settled_s:g} s after the start of the recording."
        yield Finding(Severity.INFO, ReasonCode.UNSTEADY, "throughput", message, "Stabilise longer.")


def _commonest(series: Iterable[SeriesColumns]) -> str:
    reasons: Counter[str] = Counter()
    for columns in series:
        reasons.update(columns.reasons)
    return max(reasons, key=reasons.__getitem__) if reasons else "no reason was given"


@dataclass(frozen=True, slots=True)
class SteadyState:
    """Had the machine settled: at least the last three windows agree within 10%, from ``from_row`` on; None when not steady."""

    judged: bool
    steady: bool
    from_row: int | None
    means: tuple[float, ...]


def steady_state(values: Sequence[float] | NDArray[np.float64], windows: int = WINDOWS) -> SteadyState:
    """Judge a series, usually throughput: so many windows (fewer of a short one), of which the last three or more agree.

    Windows agree when the highest mean is at most 10% of their common mean above the lowest. Missing
    values (NaN) are left out of their window's mean.
    """
    series = np.asarray(values, dtype=np.float64)
    count = min(windows, len(series) // MIN_ROWS_PER_WINDOW)
    if count < CONSECUTIVE or np.isnan(series).all():
        return SteadyState(judged=False, steady=False, from_row=None, means=())
    parts = np.array_split(series, count)
    present = [part[~np.isnan(part)] for part in parts]
    means = np.array([part.mean() if len(part) else 0.0 for part in present])
    from_row = 0
    for first in range(count - CONSECUTIVE + 1):
        rest = means[first:]
        if rest.mean() > 0 and rest.max() - rest.min() <= TOLERANCE * rest.mean():
            return SteadyState(True, True, from_row, tuple(means.tolist()))
        from_row += len(parts[first])
    return SteadyState(judged=True, steady=False, from_row=None, means=tuple(means.tolist()))
