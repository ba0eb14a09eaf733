"""Whether an objective is met: pass, fail, or inconclusive from what was recorded.

Every part is a share that may be missed: a p99 within a limit means that at most 1% lies above it. The interval of that
share takes neighbours in time together, because what is slow comes in bursts; and it is never narrower than that of as many
independent ones.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from harness.analysis.format import replicas_in_words
from harness.analysis.read import ClientRequests, read_requests, times_ns
from harness.analysis.statistics import Outcome, percentile, student
from harness.analysis.statistics.distributions import Floats
from harness.errors import ResultsPathError
from harness.results import layout
from harness.results.files import read_object
from harness.results.requests import NS_PER_MS, NS_PER_S, ROW, RequestTable, Rows, Window, latency_ns, read
from harness.spec import ExperimentSpec
from harness.spec.slo import SloSpec
from harness.spec.sweep import SweptLoad
from harness.spec.timing import KnownMetric, Timing
from harness.traffic.records import ABANDONED, OK, UNANSWERED, TokenSource

FILE_NAME = "slo.json"
"""Of every workload but a server of the user's own, whose objective is in ``server.json``."""
SERVER_FILE_NAME = "server.json"
SLICES = 20
"""Of equal time; what is slow together should fall into one of them."""
NORMAL, STUDENT = 1.959964, 2.093024
"""97.5% of a normal variable, and of Student's with a freedom of one less than the slices, lie below."""
ERRORS = "error_rate"
_TITLES = {
    "ttft": "first token",
    "ttfo": "first token of the answer",
    "itl": "inter-token",
    "tpot": "time per token",
    "latency": "latency",
}
LOOK_GROWTH = 1.25
"""From one look at an objective to the next."""
MOST_TOLD = 4
"""Runs whose figures are told one by one; of more, how many there are of each outcome."""
GRAVEST_FIRST = (Outcome.FAIL, Outcome.INCONCLUSIVE, Outcome.PASS)

Bools = npt.NDArray[np.bool_]
Instants = npt.NDArray[np.int64]
Part = dict[str, Any]
"""One part of an objective as ``slo.json`` has it: ``limit`` (ms, or a share), ``value`` (the percentile in ms, or the share of
errors; None: nothing was measured), ``missed_share`` of the requests, its ``interval`` (were all that is ``undecided`` to meet the
limit, and to miss it), ``allowed_share``, and the ``outcome`` by the interval alone. Where that would be another one without the
client's own lateness, it is inconclusive, and ``from_sent`` has value and outcome from the instants of sending."""
_FIRST = frozenset({"ttft", "ttfo"})
_FROM_INTENDED = _FIRST | {"latency"}


class Sample(NamedTuple):
    """Requests or gaps: begin and end (ns since the epoch), and which miss the limit.

    ``undecided``: had not ended, and might meet it or miss it. ``in_vain``: somebody waited for it who would have asked again meanwhile.
    """

    begin_ns: Instants
    end_ns: Instants
    missed: Bools
    undecided: Bools
    in_vain: Bools


@dataclass(frozen=True, slots=True)
class Judged:
    """An objective held against one recording; ``goodput_per_s``: requests per second that met every part of it by themselves."""

    parts: Mapping[str, Part]
    goodput_per_s: float

    def to_dict(self) -> dict[str, Any]:
        """For ``slo.json`` and ``server.json``; the outcome is that of the gravest part."""
        outcomes = {part["outcome"] for part in self.parts.values()}
        outcome = next(outcome for outcome in GRAVEST_FIRST if outcome in outcomes)
        sentences = "; ".join(in_words(name, part) for name, part in self.parts.items())
        return {
            "outcome": outcome.value,
            "goodput_per_s": round(self.goodput_per_s, 6),
            "said": f"Objective: {outcome}. Goodput {self.goodput_per_s:.4g} requests per second; {sentences}.",
            "parts": self.parts,
        }


def judge(slo: SloSpec, requests: ClientRequests, *, open_loop: bool, looks: int = 1) -> Judged:
    """Hold the requests of a recording against an objective; ``open_loop``: they come at a rate, whatever is answered.

    ``looks``: how often that is done at most, until it is decided. The intervals of all looks together hold the truth in 95%.
    """
    every, window = requests.every, requests.window
    well, abandoned = every["status"] == OK, every["status"] == ABANDONED
    in_vain = np.isin(every["status"], (UNANSWERED, ABANDONED)) & (not open_loop)  # a rate asks on
    parts, met = {}, well.copy()
    for name, what, quantile, limit_ms in slo.limits():
        limit_ns = limit_ms * NS_PER_MS
        if what == "itl":
            met &= every["itl_p99_ns"] <= limit_ns
            sample, shown_ns = _of_gaps(requests.gaps, limit_ns)
        else:
            values_ns, known, within, undecided = _of_times(every, what, limit_ns)
            met &= within
            shown_ns = values_ns[known & ~np.isnan(values_ns)]
            sample = Sample(every["intended_ns"], every["end_ns"], ~within & ~undecided, undecided, in_vain)
        parts[name] = _part(sample, shown_ns, window, limit_ms, quantile, looks)
        if what in _FROM_INTENDED and parts[name]["outcome"] != Outcome.PASS:
            from_sent_ns = values_ns - np.nan_to_num(times_ns(every, "send_error"))
            own = sample._replace(missed=sample.missed & ~(known & (from_sent_ns <= limit_ns)))
            shown_ns = from_sent_ns[known & ~np.isnan(from_sent_ns)]
            _without_lateness(parts[name], _part(own, shown_ns, window, limit_ms, quantile, looks))
    if slo.error_rate is not None:
        sample = Sample(every["intended_ns"], every["end_ns"], ~well & ~abandoned, abandoned, in_vain)
        part = _missed(sample, window, slo.error_rate, looks)
        parts[ERRORS] = {"limit": slo.error_rate, "value": part["missed_share"], **part}
    return Judged(parts, int(met[: len(requests.rows)].sum()) / window.duration_s)


def _of_times(every: Rows, what: str, limit_ns: float) -> tuple[Floats, Bools, Bools, Bools]:
    """The times of requests, of which of them they are known by now, and which meet the limit, or might.

    An answer of one token has no time per token, and meets the limit; one that never came to its answer proper misses that of its first
    token. Where tokens were counted that nobody was sent, or no answer at all has such a time, it was not measured, and nothing is decided.
    """
    well, abandoned = every["status"] == OK, every["status"] == ABANDONED
    values_ns = times_ns(every, what)
    measured = ~np.isnan(values_ns)
    known = well | (abandoned & (what in _FIRST) & measured)
    unmeasured = known & ~measured & (not (known & measured).any())
    if what == "tpot":
        unmeasured |= known & (every["token_source"] == TokenSource.USAGE_WITH_HIDDEN)
    never = known & ~measured & (what == "ttfo")
    within = known & ~unmeasured & ~never & ~(values_ns > limit_ns)
    young = abandoned & ~known & ((latency_ns(every) <= limit_ns) | (what == "tpot"))
    return values_ns, known, within, unmeasured | young


def _part(
    sample: Sample, shown_ns: npt.NDArray[np.float64], window: Window, limit_ms: float, quantile: float, looks: int
) -> Part:
    value = percentile(shown_ns, quantile, least=1) / NS_PER_MS if len(shown_ns) else None
    return {"limit": limit_ms, "value": value, **_missed(sample, window, round(1 - quantile, 6), looks)}


def _without_lateness(part: Part, from_sent: Part) -> None:
    """A part that the client's own lateness decides is inconclusive: the servers cannot be blamed, nor cleared."""
    if part["outcome"] != from_sent["outcome"]:
        part["from_sent"] = {key: from_sent[key] for key in ("value", "outcome")}
        part["outcome"] = Outcome.INCONCLUSIVE.value


def decided_by_lateness(slo: Mapping[str, Any]) -> list[str]:
    """Names of the parts whose outcome would be another one, had the client sent every request in time."""
    return [name for name, part in slo["parts"].items() if "from_sent" in part]


def judge_experiment(experiment: ExperimentSpec, folder: Path, requests: ClientRequests, looks: int) -> Judged | None:
    """Hold the measured replicas, and each neighbour that has an objective, against their own; None without any.

    The parts of a neighbour's have its name before theirs: ``whisper/latency_p99_ms``. Goodput is that of the measured ones.
    Raises ResultsPathError, StorageError.
    """
    if experiment.slo is None:
        return None
    judged = judge(experiment.slo, requests, open_loop=experiment.workload.open_loop, looks=looks)
    parts = dict(judged.parts)
    for neighbour in experiment.neighbours:
        if neighbour.slo is not None:
            place = layout.neighbour_folder(folder, neighbour.name)
            own = read_requests(read(place) or RequestTable(np.empty(0, ROW), ()), place, requests.window)
            beside = judge(neighbour.slo, own, open_loop=neighbour.workload.open_loop, looks=looks)
            parts |= {f"{neighbour.name}/{name}": part for name, part in beside.parts.items()}
    return Judged(parts, judged.goodput_per_s)


def _of_gaps(gaps: npt.NDArray[Any], limit_ns: float) -> tuple[Sample, npt.NDArray[np.float64]]:
    """The gaps between tokens, and the lengths of those that ended."""
    lengths_ns = gaps["end_ns"] - gaps["begin_ns"]
    above, cut = lengths_ns > limit_ns, gaps["status"] != OK
    undecided = (gaps["status"] == ABANDONED) & ~above
    in_vain = np.isin(gaps["status"], (UNANSWERED, ABANDONED))
    sample = Sample(gaps["begin_ns"], gaps["end_ns"], (above | cut) & ~undecided, undecided, in_vain)
    return sample, lengths_ns[~cut].astype(np.float64)


def _missed(sample: Sample, window: Window, allowed: float, looks: int) -> Part:
    """Which share of a sample misses the limit, and what its interval says."""
    which, at_ns, weights = _weighed(sample, window)
    missed, perhaps = sample.missed[which], (sample.missed | sample.undecided)[which]
    low, _ = share_interval(missed, at_ns, window, weights, looks)
    _, high = share_interval(perhaps, at_ns, window, weights, looks)
    share = float(weights[missed].sum() / weights.sum()) if len(missed) else 0.0
    outcome = Outcome.PASS if high <= allowed else Outcome.FAIL if low > allowed else Outcome.INCONCLUSIVE
    return {
        "missed_share": round(share, 9),
        "interval": [round(low, 9), round(high, 9)],
        "allowed_share": allowed,
        "undecided": int(sample.undecided.sum()),
        "outcome": outcome.value,
    }


def objectives(campaign: Path) -> dict[str, dict[str, Any]]:
    """What came of the objective in each finished experiment of a campaign, by the experiment's name.

    Raises StorageError or ResultsPathError where one cannot be read.
    """
    judged = {folder.name: read_objective(folder) for folder in layout.experiment_folders(campaign)}
    return {name: slo for name, slo in judged.items() if slo}


def read_objective(folder: Path) -> dict[str, Any]:
    """What came of the objective in a finished experiment, as ``to_dict`` wrote it; empty where it has none.

    Raises StorageError or ResultsPathError where it cannot be read.
    """
    for file in (folder / SERVER_FILE_NAME, folder / FILE_NAME):
        if file.is_file():
            return _checked(_in_todays_words(read_object(file).get("slo", {})), file)
    return {}


def _checked(slo: Any, file: Path) -> dict[str, Any]:
    """What a file says of an objective; ResultsPathError where ``to_dict`` cannot have written it."""
    if slo == {}:
        return {}
    try:
        Outcome(slo["outcome"])
        _ = [in_words(name, part) for name, part in slo["parts"].items()]
        return {**slo, "said": str(slo["said"])}
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise ResultsPathError(
            f"{file} is damaged: its `slo` is not what came of an objective ({type(error).__name__}: {error}).",
            advice="Restore it from a backup.",
        ) from error


def _in_todays_words(value: Any) -> Any:
    """What a file says, with the name that an outcome has now: sets published before have another."""
    if isinstance(value, dict):
        return {key: _in_todays_words(of_key) for key, of_key in value.items()}
    return value.replace("not decidable", Outcome.INCONCLUSIVE) if isinstance(value, str) else value


def title_of(name: str) -> str:
    """Of a part of the objective, for people, e.g. ``first token p99``; of a neighbour's ``whisper: latency p99``."""
    whose, _, own = name.rpartition("/")
    what, _, rest = own.partition("_")
    title = "errors" if own == ERRORS else f"{_TITLES[what]} {rest.removesuffix('_ms')}"
    return f"{whose}: {title}" if whose else title


def in_words(name: str, part: Mapping[str, Any]) -> str:
    """E.g. ``first token p99 212 ms (limit 200 ms; 1.8% above it, 95% interval 1.2 to 2.4%): fail``."""
    low, high = part["interval"]
    interval = f"95% interval {100 * low:.3g} to {100 * high:.3g}%"
    if part["undecided"]:
        interval += f", {part['undecided']} undecided at the end"
    if late := part.get("from_sent"):
        own = "unknown" if late["value"] is None else f"{late['value']:.3g} ms"
        interval += f"; without the client's own lateness {own}: {late['outcome']}"
    percent = f"{100 * part['missed_share']:.3g}%"
    if name.endswith(ERRORS):
        return f"{title_of(name)} {percent} (limit {100 * part['limit']:.3g}%; {interval}): {part['outcome']}"
    shown = "unknown" if part["value"] is None else f"{part['value']:.3g} ms"
    return f"{title_of(name)} {shown} (limit {part['limit']:g} ms; {percent} above it, {interval}): {part['outcome']}"


def unmet(slo: Mapping[str, Any]) -> str:
    """The parts that do not pass, of `slo` in ``server.json``; empty where all do."""
    return "; ".join(in_words(name, part) for name, part in slo["parts"].items() if part["outcome"] != Outcome.PASS)


def in_sentences(runs: Sequence[tuple[ExperimentSpec, Mapping[str, Any]]]) -> list[str]:
    """What came of the objective, from each run's experiment and its `slo` in ``server.json``: highest loads, then the gravest first."""
    sentences = _highest_loads(runs)
    if len(runs) <= MOST_TOLD:
        return sentences + [f"{experiment.experiment_id}: {slo['said']}" for experiment, slo in runs]
    for outcome in GRAVEST_FIRST:
        those = [(experiment, slo) for experiment, slo in runs if slo["outcome"] == outcome]
        if those:
            names = dict.fromkeys(experiment.experiment_id.rpartition("_rep")[0] for experiment, _ in those)
            where = "" if len(those) == len(runs) else f" ({', '.join(names)})"
            sentences.append(f"Objective: {outcome} in {len(those)} of {len(runs)} runs{where}{_why(outcome, those)}.")
    return sentences


def _highest_loads(runs: Sequence[tuple[ExperimentSpec, Mapping[str, Any]]]) -> list[str]:
    """Of each configuration of a sweep, the highest load that meets the objective in every repeat and below which none fails."""
    swept: dict[str, dict[SweptLoad, Outcome]] = {}
    for experiment, slo in runs:
        if experiment.load:
            cell = experiment.cell
            setting = (cell.condition_name, cell.workload.family, cell.mode, replicas_in_words(cell.replicas))
            outcomes = swept.setdefault(", ".join(filter(None, setting)), {})
            repeats = [Outcome(slo["outcome"]), outcomes.get(experiment.load, Outcome.PASS)]
            outcomes[experiment.load] = min(repeats, key=GRAVEST_FIRST.index)
    return [f"{setting}: {_highest_load(outcomes)}." for setting, outcomes in swept.items()]


def _highest_load(outcomes: Mapping[SweptLoad, Outcome]) -> str:
    ascending = sorted(outcomes.items(), key=lambda pair: pair[0].value)
    below = list(itertools.takewhile(lambda pair: pair[1] is not Outcome.FAIL, ascending))
    passing = [load for load, outcome in below if outcome is Outcome.PASS]
    if not passing:
        load, outcome = ascending[0]
        return f"no load meets the objective in every repeat (lowest: {load.in_words}, {outcome})"
    above = [f"{load.value:g}: {outcome}" for load, outcome in ascending if load.value > passing[-1].value]
    return f"meets the objective up to {passing[-1].in_words} ({above[0] if above else 'the highest measured'})"


def _why(outcome: Outcome, runs: Sequence[tuple[ExperimentSpec, Mapping[str, Any]]]) -> str:
    """Which parts of the objective had this outcome, in how many of the runs, and what their 95% intervals leave open."""
    parts: dict[str, list[Mapping[str, Any]]] = {}
    for _, slo in runs:
        for name, part in slo["parts"].items():
            if part["outcome"] == outcome != Outcome.PASS:
                parts.setdefault(name, []).append(part)
    return "".join(
        f"; {title_of(name)} in {len(those)} ({100 * min(part['interval'][0] for part in those):.3g} to "
        f"{100 * max(part['interval'][1] for part in those):.3g}% missed, {100 * those[0]['allowed_share']:.3g}% allowed)"
        for name, those in sorted(parts.items(), key=lambda item: len(item[1]), reverse=True)
    )


def fewest_requests(allowed: float, looks: int = 1) -> int:
    """Requests that it takes for a share of ``allowed`` to be kept, if none of them is missed; fewer leave it open."""
    return math.ceil(_normal(looks) ** 2 * (1 - allowed) / allowed)


def _normal(looks: int) -> float:
    return NORMAL if looks == 1 else student(math.inf, 1 / looks)


def _student(looks: int) -> float:
    return STUDENT if looks == 1 else student(SLICES - 1, 1 / looks)


def share_interval(
    missed: Bools, at_ns: Instants, window: Window, weights: npt.NDArray[np.float64] | None = None, looks: int = 1
) -> tuple[float, float]:
    """The 95% interval of the share that is missed, of so many looks together; all of [0, 1] without anything. Without weights all weigh 1."""
    normal = _normal(looks)
    weights = np.ones(len(missed)) if weights is None else weights
    count, number = float(weights[missed].sum()), float(weights.sum())
    if not number:
        return 0.0, 1.0
    share = count / number
    # Wilson's interval, of independent requests: none missed of 300 does not mean that none ever will be.
    middle = (count + normal**2 / 2) / (number + normal**2)
    wilson = normal / (number + normal**2) * math.sqrt(number * share * (1 - share) + normal**2 / 4)
    in_slice = np.clip(np.searchsorted(_edges_ns(window), at_ns, side="right") - 1, 0, SLICES - 1)
    numbers = np.bincount(in_slice, weights=weights, minlength=SLICES)
    counts = np.bincount(in_slice, weights=weights * missed, minlength=SLICES)
    residual = float(((counts - share * numbers) ** 2).sum()) * SLICES / (SLICES - 1)
    half = _student(looks) * math.sqrt(residual) / number
    return max(0.0, min(middle - wilson, share - half)), min(1.0, max(middle + wilson, share + half))


def look_times(timing: Timing) -> list[float]:
    """Seconds recorded at which an objective that may end a recording is judged; once, at the end, where it may not."""
    known, times_s = timing.stop_when_known, [timing.record_s]
    if known is None or KnownMetric.OBJECTIVE not in known.metrics:
        return times_s
    while (before_s := times_s[0] / LOOK_GROWTH) >= known.min_s:
        times_s.insert(0, before_s)
    return times_s


class ObjectiveLooks:
    """Whether a recording decides its objective, looked at while it grows.

    A look reads the whole table, and looks are 25% apart, so that all of them read five times as much as the last.
    """

    def __init__(self, experiment: ExperimentSpec, folder: Path, start_s: float) -> None:
        self._experiment, self._folder, self._start_s = experiment, folder, start_s
        self._times_s = look_times(experiment.timing)
        self._looks = len(self._times_s)
        self.outcome = Outcome.INCONCLUSIVE

    def due(self, recorded_s: float) -> bool:
        """Whether it is time for another look."""
        return bool(self._times_s) and recorded_s >= self._times_s[0]

    def decided(self, recorded_s: float) -> bool:
        """Look: whether it passes or fails. Raises StorageError, ResultsPathError.

        A replica that has answered nothing in the last slice hides what waits there: then nothing is decided.
        """
        self._times_s = [time_s for time_s in self._times_s if time_s > recorded_s]
        if (table := read(self._folder)) is None:
            return False
        window = Window(self._start_s, self._start_s + recorded_s)
        requests = read_requests(table, self._folder, window)
        judged = judge_experiment(self._experiment, self._folder, requests, self._looks)
        if judged is None:
            return False
        self.outcome = Outcome(judged.to_dict()["outcome"])
        recent = Window(window.end_s - window.duration_s / SLICES, window.end_s)
        answering = set(table.rows["replica"][recent.holds(table.rows["end_ns"])].tolist())
        return self.outcome is not Outcome.INCONCLUSIVE and len(answering) == self._experiment.replicas


def _edges_ns(window: Window) -> npt.NDArray[np.float64]:
    return np.linspace(window.begin_s * NS_PER_S, window.end_s * NS_PER_S, SLICES + 1)


def _weighed(sample: Sample, window: Window) -> tuple[Instants, Instants, npt.NDArray[np.float64]]:
    """Which one of the sample, when, and for how many it stands.

    In every slice in which somebody waited in vain, it stands for as many as are usual in that time: else a server that
    hangs would be judged by what it did before.
    """
    ended, waited = np.flatnonzero(~sample.in_vain), np.flatnonzero(sample.in_vain)
    edges_ns = _edges_ns(window)
    usual_ns = np.median((sample.end_ns - sample.begin_ns)[ended]) if len(ended) else np.inf
    upto_ns = np.minimum(sample.end_ns[waited, None], edges_ns[1:])
    spent_ns = np.clip(upto_ns - np.maximum(sample.begin_ns[waited, None], edges_ns[:-1]), 1e-3, None)
    all_ns = spent_ns.sum(axis=1, keepdims=True)
    weights = spent_ns / np.minimum(max(usual_ns, 1.0), all_ns)
    middles_ns = ((edges_ns[1:] + edges_ns[:-1]) / 2).astype(np.int64)
    return (
        np.concatenate([ended, np.repeat(waited, SLICES)]),
        np.concatenate([sample.end_ns[ended], np.tile(middles_ns, len(waited))]),
        np.concatenate([np.ones(len(ended)), weights.ravel()]),
    )
