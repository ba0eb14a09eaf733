"""Where a workload breaks: the points of a stress campaign judged one after another, and which to measure next.

A point is held against the objective of servers, against the latency limits, and against the point before it with the growth of
the throughput per doubling of the load. Its intervals are those within a run (``statistics.sequential_ci``), so that one run is
enough to go on; how far runs differ is seen where the last good point is measured again. Everything follows from the files on the
disk, so that a campaign that was killed goes on as it would have.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum

from harness.analysis.format import number, quantity, replicas_in_words, under, with_interval
from harness.analysis.metrics.catalogue import joules_per_1000_tokens
from harness.analysis.metrics.run import Run
from harness.analysis.metrics.traced import memory_peak_percent
from harness.analysis.objective import read_objective, unmet
from harness.analysis.read import ExperimentData, NotMeasuredError
from harness.analysis.statistics import Estimate, Outcome, percentile, t_interval
from harness.analysis.statistics.sequential_ci import FIRST_SLICES, QUANTILES, Requests
from harness.errors import ReasonCode
from harness.results.manifest import Status
from harness.results.requests import latency_ns, well
from harness.sharing.modes import mode_of
from harness.spec import CampaignSpec, CellSpec, StressLoad, StressSpec
from harness.spec.sharing import ON_CPU

FEW_RUNS = 3
HELD = 0.95
"""Share of the requests sent that must be answered for a rate to be held."""
_NS = 1e9
_DEATHS = {ReasonCode.REPLICA_DIED, ReasonCode.OUT_OF_MEMORY}


class Grade(StrEnum):
    """What a point is worth."""

    GOOD = "good"
    DOUBTFUL = "doubtful"
    """Its interval holds the limit: nobody can tell."""
    BROKEN = "broken"


class FailureMode(StrEnum):
    """What broke."""

    OBJECTIVE = "objective"
    LATENCY = "latency limit"
    MEMORY = "memory wall"
    ERRORS = "errors"
    UNKNOWN = "cause not recorded"
    """Results of before there were codes."""
    THROUGHPUT = "no more throughput"


_FAILURE_MODES = {ReasonCode.OUT_OF_MEMORY: FailureMode.MEMORY, ReasonCode.UNKNOWN: FailureMode.UNKNOWN}


@dataclass(frozen=True, slots=True)
class ServedLoad:
    """What the clients of servers saw in one experiment: the objective's ``outcome``, and its parts that do not pass in words.

    ``goodput``: requests per second that met each limit by themselves. ``tokens``: output tokens per second. ``energy_j``: of the
    GPUs, per 1,000 output tokens; None where it was not measured.
    """

    outcome: Outcome
    unmet: str
    goodput: float
    tokens: float
    energy_j: float | None
    gpus: int


@dataclass(frozen=True, slots=True)
class LoadRun:
    """One experiment at one load: its verdict, and figures within the run (throughput in requests/s, percentiles in seconds).

    ``served``: None without an objective. ``memory_percent``: most of a GPU's memory in use; None where that was not measured.
    ``on_cpu``: no replica was on a GPU.
    """

    status: Status
    reasons: Sequence[tuple[ReasonCode, str]]
    figures: Mapping[str, Estimate]
    served: ServedLoad | None = None
    memory_percent: float | None = None
    on_cpu: bool = False


@dataclass(frozen=True, slots=True)
class LoadPoint:
    """One load (replicas, requests per second and replica, or the batch), the first run at it, its grade, and why it has that."""

    cell: CellSpec
    load: float
    run: LoadRun
    grade: Grade
    failure_mode: FailureMode | None = None
    sentence: str = ""


@dataclass(slots=True)
class StressSeries:
    """The points of one workload under one sharing mode so far, from the lowest load to the highest.

    ``last_good``: the highest load that held in all its ``repeats``; None: there is none. ``following``: cell and repeat to measure
    next; None: the answer is there. ``remarks``: what was noticed on the way, a sentence each.
    """

    name: str
    unit: StressLoad
    lowest: CellSpec
    mode: str = ""
    points: list[LoadPoint] = field(default_factory=list)
    last_good: LoadPoint | None = None
    repeats: list[LoadRun] = field(default_factory=list)
    following: tuple[CellSpec, int] | None = None
    remarks: list[str] = field(default_factory=list)

    @property
    def broken(self) -> LoadPoint | None:
        """The lowest point that broke; None: none did so far."""
        return next((point for point in self.points if point.grade is Grade.BROKEN), None)

    def sentences(self) -> list[str]:
        """The answer in words."""
        if self.following is not None:
            return [f"{self.name}: the breaking point is not found yet; harness resume goes on."]
        broken = self.broken
        load = in_words((broken or self.points[-1]).load, self.unit)
        if broken is None:
            answer = f"{self.name}: nothing broke up to {load}, the most that was asked for."
        elif broken is not self.points[0]:
            answer = f"{self.name} breaks at {load} ({broken.failure_mode}): {broken.sentence}"
        else:
            answer = f"{self.name} breaks at the first point, {load}: {broken.sentence}"
            if broken.failure_mode is FailureMode.LATENCY:
                answer += " The limit lies below one service time: no load can keep it."
        return [" ".join([answer, *self.remarks, self._best()])]

    def _best(self) -> str:
        if self.last_good is None:
            return "There is no good point."
        rates = _each(self.repeats, "throughput")
        inputs = self.last_good.cell.workload.inputs_per_request if self.unit is StressLoad.BATCH else 1
        unit = "inputs/s" if self.unit is StressLoad.BATCH else "requests/s"
        rate = with_interval(t_interval([inputs * rate for rate in rates]), unit) if rates else "no throughput measured"
        if self.last_good.run.memory_percent is not None and self.unit is StressLoad.BATCH:
            rate += f", {self.last_good.run.memory_percent:.1f}% of the GPU's memory in use"
        p99s = _each(self.repeats, "latency_p99_exact")
        p99 = f", p99 {with_interval(t_interval(p99s), 's')}" if p99s else ""
        runs = len(self.repeats)
        how = "measured once, so without an interval" if runs == 1 else f"mean of {runs} runs"
        if 1 < runs < FEW_RUNS:
            how += ", too few for a narrow interval"
        return f"The last good point is {in_words(self.last_good.load, self.unit)}: {rate}{p99} ({how})."


def run_of(data: ExperimentData) -> LoadRun:
    """What one finished experiment says. Raises StorageError or ResultsPathError when a file cannot be read."""
    verdict, figures = data.manifest.verdict, {}
    with suppress(NotMeasuredError):
        figures = _figures(data)
    memory_percent = _measured(lambda: memory_peak_percent(data))
    return LoadRun(verdict.status, verdict.coded_reasons, figures, _served(data), memory_percent, data.manifest.on_cpu)


def search(spec: CampaignSpec, cells: Sequence[CellSpec], runs: Mapping[str, LoadRun]) -> StressSeries:
    """How far a series over these cells, from the lowest load, has come, and what comes next; ``runs``: finished ones by id, maybe others."""
    stress = spec.stress
    assert stress is not None  # noqa: S101 - the caller's promise
    seen = [run.on_cpu for cell in cells if (run := runs.get(cell.experiment_id(1)))]
    mode = ON_CPU if seen and all(seen) and mode_of(cells[0].sharing).takes_turns else cells[0].mode
    name = f"{cells[0].workload.family} {under(mode)}"
    if len(spec.replicas) > 1:
        name += f", {replicas_in_words(cells[0].replicas)}"
    series = StressSeries(name, stress.load, cells[0], mode)
    at = dict(zip(stress.grid(), cells, strict=False))
    for load in _course(stress, series, list(at)):
        run = runs.get(at[load].experiment_id(1))
        if run is None:
            series.following = (at[load], 1)
            return series
        below = [point for point in series.points if point.load < load]
        series.points.append(_judged(stress, at[load], load, run, below[-1] if below else None))
        series.points.sort(key=lambda point: point.load)
    _confirm(stress, series, runs, spec.most_repeats)
    return series


def _course(stress: StressSpec, series: StressSeries, loads: Sequence[float]) -> Iterator[float]:
    """What to measure one after another, each once the series has the one before: up to what breaks, then halving the way back."""
    for load in stress.loads():
        if load in loads and not series.broken:
            yield load
    while good := [point.load for point in series.points if point.grade is Grade.GOOD]:
        above = next((point.load for point in series.points if point.load > good[-1]), good[-1])
        between = [load for load in loads if good[-1] < load < above]
        if not between:
            return
        yield between[len(between) // 2]


def explained(every_series: Iterable[StressSeries]) -> frozenset[str]:
    """Experiments whose failure is the answer: the points at which a workload was found to break."""
    return frozenset(
        point.cell.experiment_id(1)
        for series in every_series
        for point in series.points
        if point.grade is Grade.BROKEN and series.last_good is not None
    )


def series_of(spec: CampaignSpec | None, runs: Mapping[str, LoadRun]) -> list[StressSeries]:
    """Every series of a stress campaign, by workload and sharing mode; none of any other campaign."""
    if spec is None or spec.stress is None:
        return []
    return [search(spec, cells, runs) for cells in spec.series()]


def in_words(load: float, unit: StressLoad) -> str:
    """``8 replicas``, ``120 requests/s per replica``."""
    if unit is StressLoad.RATE:
        return f"{load:g} requests/s per replica"
    if unit is StressLoad.BATCH:
        return f"a batch of {load:g}"
    return "1 replica" if load == 1 else f"{load:g} replicas"


def _judged(stress: StressSpec, cell: CellSpec, load: float, run: LoadRun, before: LoadPoint | None) -> LoadPoint:
    """The point with its grade: whatever breaks it first, then what leaves it in doubt."""
    good = LoadPoint(cell, load, run, Grade.GOOD)
    grade, doubt = _latency(stress, run)
    if not run.figures and not doubt:
        grade, doubt = Grade.DOUBTFUL, "nothing was measured."
    outcome, unmet_parts = (run.served.outcome, run.served.unmet) if run.served else (Outcome.PASS, "")
    collapse, reason = _collapse(run)
    breaks = (
        (collapse, reason),
        (FailureMode.MEMORY, _memory(stress, run)),
        (FailureMode.OBJECTIVE, f"{unmet_parts}." if outcome is Outcome.FAIL else ""),
        (FailureMode.LATENCY, doubt if grade is Grade.BROKEN else ""),
        (FailureMode.THROUGHPUT, _unheld(stress, good) or _flat(stress, before, good)),
    )
    for failure_mode, sentence in breaks:
        if sentence:
            return replace(good, grade=Grade.BROKEN, failure_mode=failure_mode, sentence=sentence)
    if outcome is Outcome.INCONCLUSIVE:
        grade, doubt = Grade.DOUBTFUL, f"{unmet_parts}; a longer recording decides more."
    return replace(good, grade=grade, sentence=doubt)


def _flat(stress: StressSpec, before: LoadPoint | None, point: LoadPoint) -> str:
    """Whether throughput grows by too little from the point before; empty where it grows, or nobody can tell.

    The growth is per doubling of the load; its interval is that of both on the logarithms (delta method).
    """
    figures = [side.run.figures.get("throughput") for side in (before, point) if side]
    known = [figure for figure in figures if figure and figure.half_width is not None and figure.mean > 0]
    if before is None or len(known) < 2:
        return ""
    inputs = point.cell.workload.inputs_per_request / before.cell.workload.inputs_per_request
    slope = math.log(inputs * known[1].mean / known[0].mean)
    half = math.hypot(*((figure.half_width or 0.0) / figure.mean for figure in known))
    doublings = math.log2(point.load / before.load)
    growths = [100 * math.expm1(value / doublings) for value in (slope, slope - half, slope + half)]
    if growths[2] >= (stress.least_gain_percent or -100):
        return ""
    mean, low, high = (f"{value:+.1f}" for value in growths)
    return (
        f"from {in_words(before.load, stress.load)} on, throughput grows by {mean}% per doubling "
        f"(95% interval {low} to {high}), less than {stress.least_gain_percent:g}%."
    )


def _memory(stress: StressSpec, run: LoadRun) -> str:
    """Why the GPU's memory holds no larger batch; empty where it does, or where the batch is not raised."""
    if stress.load is not StressLoad.BATCH:
        return ""
    if run.memory_percent is None:
        return "" if stress.least_gain_percent else "how full the GPU's memory is was not measured."
    if run.memory_percent <= stress.memory_limit_percent:
        return ""
    return f"{run.memory_percent:.1f}% of the GPU's memory is in use, more than {stress.memory_limit_percent:g}%."


def _unheld(stress: StressSpec, point: LoadPoint) -> str:
    """Whether fewer requests are answered than are sent; empty where they are not, or where no rate is raised."""
    answered = point.run.figures.get("throughput")
    if stress.load is not StressLoad.RATE or answered is None:
        return ""
    sent = point.load * point.cell.replicas
    most = answered.mean if answered.high is None else answered.high
    if most >= HELD * sent:
        return ""
    return f"{with_interval(answered, 'requests/s')} are answered of {number(sent)} that are sent."


def _collapse(run: LoadRun) -> tuple[FailureMode | None, str]:
    """Why the replicas could not be run, or did not live; empty where they did."""
    fatal = [(code, reason) for code, reason in run.reasons if run.status is Status.INVALID or code in _DEATHS]
    if not fatal:
        return None, ""
    code, reason = next((death for death in fatal if death[0] is ReasonCode.OUT_OF_MEMORY), fatal[0])
    return _FAILURE_MODES.get(code, FailureMode.ERRORS), reason or "no reason was recorded."


def _latency(stress: StressSpec, run: LoadRun) -> tuple[Grade, str]:
    grade, why = Grade.GOOD, ""
    for limited, limit_ms in stress.latency_limit_ms.items():
        limit_s, p = limit_ms / 1e3, run.figures.get(f"latency_{limited}_exact")
        if p is None or math.isnan(p.mean):
            missing = p.note if p else "no request was served"
            grade, why = Grade.DOUBTFUL, f"{limited} was not measured: {missing}."
            continue
        shown = with_interval(p, "s") if p.half_width is not None else f"{quantity(p.mean, 's')} (no interval)"
        low, high = (p.mean if end is None else end for end in (p.low, p.high))
        limit = f"the limit of {number(limit_ms)} ms"
        if low > limit_s:
            return Grade.BROKEN, f"{limited} is {shown}, above {limit}."
        if high > limit_s:
            grade, why = Grade.DOUBTFUL, f"{limited} of {shown} is too close to {limit}."
    return grade, why


def _confirm(stress: StressSpec, series: StressSeries, runs: Mapping[str, LoadRun], repeats: int) -> None:
    """Measure the last good point until it has its repeats; one that does not hold gives way to the one below."""
    series.remarks += [
        f"At {in_words(point.load, series.unit)}, {point.sentence}"
        for point in series.points
        if point.grade is Grade.DOUBTFUL
    ]
    for point in reversed([point for point in series.points if point.grade is Grade.GOOD]):
        measured = []
        for repeat in range(1, repeats + 1):
            run = runs.get(point.cell.experiment_id(repeat))
            if run is None:
                series.following = (point.cell, repeat)
                return
            measured.append(run)
        why = _does_not_hold(stress, point, measured)
        if not why:
            series.last_good, series.repeats = point, measured
            return
        series.remarks.append(f"{in_words(point.load, series.unit)} did not hold when measured again: {why}")


def _does_not_hold(stress: StressSpec, point: LoadPoint, runs: Sequence[LoadRun]) -> str:
    """Why repeats do not bear out that a point is good; empty when they do."""
    for run in runs:
        again = _judged(stress, point.cell, point.load, run, None)
        if again.grade is Grade.BROKEN:
            return again.sentence
    for limited, limit_ms in stress.latency_limit_ms.items():
        mean_s = t_interval(_each(runs, f"latency_{limited}_exact")).mean
        if mean_s > limit_ms / 1e3:
            return f"{limited} is {quantity(mean_s, 's')} in the mean."
    return ""


def _served(data: ExperimentData) -> ServedLoad | None:
    if not (slo := read_objective(data.folder)):
        return None
    tokens, gpus = data.requests.output_tokens_per_s, data.manifest.gpus_paid
    joules = _measured(lambda: joules_per_1000_tokens(Run(data)))
    return ServedLoad(Outcome(slo["outcome"]), unmet(slo), slo["goodput_per_s"], tokens, joules, gpus)


def _measured(read: Callable[[], float]) -> float | None:
    with suppress(NotMeasuredError):
        return read()
    return None


def _each(runs: Sequence[LoadRun], name: str) -> list[float]:
    return [run.figures[name].mean for run in runs if name in run.figures and not math.isnan(run.figures[name].mean)]


def _figures(data: ExperimentData) -> dict[str, Estimate]:
    """Throughput and percentiles of one recording, from its logs. Raises NotMeasuredError when there are none.

    Of few requests without an interval, and NaN where they are too few even for that.
    """
    rows, duration_s = well(data.requests.every), data.duration_s
    if duration_s <= 0:
        raise NotMeasuredError("nothing was recorded")
    starts_s = rows["intended_ns"] / _NS - data.manifest.start_s
    latencies_s = latency_ns(rows) / _NS
    ends_s = starts_s + latencies_s
    inside = (ends_s >= 0) & (starts_s < duration_s)
    requests = Requests(duration_s / FIRST_SLICES)
    requests.add(ends_s[inside], latencies_s[inside], until_s=duration_s)
    begun = latencies_s[(starts_s >= 0) & (starts_s < duration_s)]
    figures = requests.estimates(["throughput", *QUANTILES], over=True)
    for name, estimate in figures.items():
        if math.isnan(estimate.mean):
            mean, note = len(begun) / duration_s, estimate.note
            try:
                mean = percentile(begun, QUANTILES[name]) if name in QUANTILES else mean
            except ValueError as error:
                mean, note = math.nan, str(error)
            figures[name] = Estimate(mean, None, None, len(begun), None, note)
    return figures
