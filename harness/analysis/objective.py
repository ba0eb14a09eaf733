"""Whether an objective is met: pass, fail, or not decidable from what was recorded.

Every part is a share that may be missed: a p99 within a limit means that at most 1 % lies above it. The interval of that
share takes neighbours in time together, because what is slow comes in bursts; and it is never narrower than that of as many
independent ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.analysis.read import ClientRequests, times_ns
from harness.analysis.statistics import percentile
from harness.results import layout
from harness.results.files import read_object
from harness.results.requests import NS_PER_MS, NS_PER_S, Window, latency_ns
from harness.spec import ExperimentSpec
from harness.spec.experiment import SloSpec
from harness.traffic.records import ABANDONED, OK, UNANSWERED

FILE_NAME = "slo.json"
"""Of every workload but a server of the user's own, whose objective is in ``server.json``."""
SERVER_FILE_NAME = "server.json"
SLICES = 20
"""Of equal time; what is slow together should fall into one of them."""
NORMAL, STUDENT = 1.959964, 2.093024
"""97.5 % of a normal variable, and of Student's with a freedom of one less than the slices, lie below."""
ERRORS = "error_rate"
_TITLES = {"ttft": "first token", "itl": "inter-token", "tpot": "time per token", "latency": "latency"}

MOST_TOLD = 4
"""Runs whose figures are told one by one; of more, how many there are of each outcome."""


class ObjectiveOutcome(StrEnum):
    """What can be said of an objective, the gravest last."""

    PASS = "pass"  # noqa: S105 - no password
    NOT_DECIDABLE = "not decidable"
    FAIL = "fail"


_ORDER = list(ObjectiveOutcome)


@dataclass(frozen=True, slots=True)
class Sample:
    """What one part of the objective is judged by.

    Attributes:
        name: as in the campaign file.
        limit: milliseconds, or a share of the requests.
        quantile: which of ``values_ns`` is shown; its rest may be above the limit.
        values_ns: None: there are none, and the share itself is shown.
        begin_ns: when each one began, nanoseconds since the epoch.
        end_ns: when it ended.
        missed: which of them are above the limit.
        undecided: which had not ended when the load did, and might have met the limit or missed it.
        in_vain: for which of them somebody waited who got nothing and would have asked again meanwhile.
    """

    name: str
    limit: float
    quantile: float
    values_ns: npt.NDArray[np.float64] | None
    begin_ns: npt.NDArray[np.int64]
    end_ns: npt.NDArray[np.int64]
    missed: npt.NDArray[np.bool_]
    undecided: npt.NDArray[np.bool_]
    in_vain: npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the objective, judged; shares are between 0 and 1.

    Attributes:
        value: the percentile in milliseconds, or the share of errors; None: nothing was measured.
        share: that missed the limit.
        low: lower end of the share's interval, if all that is undecided had met it.
        high: upper end, if all of that had missed it.
        allowed: share that may miss it.
        undecided: how many had not ended.
    """

    name: str
    limit: float
    value: float | None
    share: float
    low: float
    high: float
    allowed: float
    undecided: int = 0

    @property
    def outcome(self) -> ObjectiveOutcome:
        """By the interval alone."""
        if self.high <= self.allowed:
            return ObjectiveOutcome.PASS
        return ObjectiveOutcome.FAIL if self.low > self.allowed else ObjectiveOutcome.NOT_DECIDABLE

    def sentence(self) -> str:
        """E.g. ``first token p99 212 ms (limit 200 ms; 1.8 % above it, 95 % interval 1.2 to 2.4 %): fail``."""
        interval = f"95 % interval {100 * self.low:.3g} to {100 * self.high:.3g} %"
        if self.undecided:
            interval += f", {self.undecided} undecided at the end"
        title = title_of(self.name)
        if self.name == ERRORS:
            return f"{title} {100 * self.share:.3g} % (limit {100 * self.limit:.3g} %; {interval}): {self.outcome}"
        shown = "unknown" if self.value is None else f"{self.value:.3g} ms"
        return (
            f"{title} {shown} (limit {self.limit:g} ms; {100 * self.share:.3g} % above it, {interval}): {self.outcome}"
        )


@dataclass(frozen=True, slots=True)
class Judged:
    """An objective held against one recording.

    Attributes:
        goodput_per_s: requests per second that met every part of it by themselves.
    """

    parts: Sequence[Part]
    goodput_per_s: float

    @property
    def outcome(self) -> ObjectiveOutcome:
        """That of the gravest part."""
        return max((part.outcome for part in self.parts), key=_ORDER.index)

    def sentence(self) -> str:
        """For report and terminal."""
        sentences = "; ".join(part.sentence() for part in self.parts)
        return f"Objective: {self.outcome}. Goodput {self.goodput_per_s:.4g} requests per second; {sentences}."

    def to_dict(self) -> dict[str, Any]:
        """For ``slo.json`` and ``server.json``."""
        parts = {
            part.name: {
                "limit": part.limit,
                "value": part.value,
                "missed_share": round(part.share, 9),
                "interval": [round(part.low, 9), round(part.high, 9)],
                "allowed_share": part.allowed,
                "undecided": part.undecided,
                "outcome": part.outcome.value,
            }
            for part in self.parts
        }
        goodput_per_s = round(self.goodput_per_s, 6)
        return {"outcome": self.outcome.value, "goodput_per_s": goodput_per_s, "said": self.sentence(), "parts": parts}


def judge(slo: SloSpec, requests: ClientRequests, *, open_loop: bool) -> Judged:
    """Hold the requests of a recording against an objective; ``open_loop``: they come at a rate, whatever is answered."""
    every = requests.every
    well, abandoned = every["status"] == OK, every["status"] == ABANDONED
    of_requests = every["intended_ns"], every["end_ns"]
    in_vain = np.isin(every["status"], (UNANSWERED, ABANDONED)) & (not open_loop)  # a rate asks on
    samples, met = [], well.copy()
    for name, what, quantile, limit_ms in slo.limits():
        limit_ns = limit_ms * NS_PER_MS
        if what == "itl":
            met &= every["itl_p99_ns"] <= limit_ns
            samples.append(_of_gaps(name, limit_ms, quantile, requests.gaps))
            continue
        values_ns = times_ns(every, what)
        known = well | (abandoned & (what == "ttft") & ~np.isnan(values_ns))
        within = known & ~(values_ns > limit_ns)
        met &= within
        undecided = abandoned & ~known & ((latency_ns(every) <= limit_ns) | (what == "tpot"))
        shown_ns = values_ns[known & ~np.isnan(values_ns)]
        missed = ~within & ~undecided
        samples.append(Sample(name, limit_ms, quantile, shown_ns, *of_requests, missed, undecided, in_vain))
    if slo.error_rate is not None:
        missed = ~well & ~abandoned
        samples.append(Sample(ERRORS, slo.error_rate, 1.0, None, *of_requests, missed, abandoned, in_vain))
    parts = [_part(sample, requests.window) for sample in samples]
    return Judged(parts, int(met[: len(requests.rows)].sum()) / requests.window.duration_s)


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
            slo: dict[str, Any] = read_object(file).get("slo", {})
            return slo
    return {}


def title_of(name: str) -> str:
    """Of a part of the objective, for people, e.g. ``first token p99``."""
    if name == ERRORS:
        return "errors"
    what, percent, _ = name.split("_")
    return f"{_TITLES[what]} {percent}"


def _of_gaps(name: str, limit_ms: float, quantile: float, gaps: npt.NDArray[Any]) -> Sample:
    lengths_ns = gaps["end_ns"] - gaps["begin_ns"]
    above, cut = lengths_ns > limit_ms * NS_PER_MS, gaps["status"] != OK
    undecided = (gaps["status"] == ABANDONED) & ~above
    in_vain = np.isin(gaps["status"], (UNANSWERED, ABANDONED))
    missed = (above | cut) & ~undecided
    closed_ns = lengths_ns[~cut].astype(np.float64)
    return Sample(name, limit_ms, quantile, closed_ns, gaps["begin_ns"], gaps["end_ns"], missed, undecided, in_vain)


def unmet(slo: Mapping[str, Any]) -> str:
    """The parts that do not pass, of `slo` in ``server.json``; empty where all do."""
    parts = []
    for name, part in slo["parts"].items():
        low, high = part["interval"]
        parts.append(
            Part(
                name,
                part["limit"],
                part["value"],
                part["missed_share"],
                low,
                high,
                part["allowed_share"],
                part["undecided"],
            )
        )
    return "; ".join(part.sentence() for part in parts if part.outcome is not ObjectiveOutcome.PASS)


def in_sentences(runs: Sequence[tuple[ExperimentSpec, Mapping[str, Any]]]) -> list[str]:
    """What came of the objective, from each run's experiment and its `slo` in ``server.json``; the gravest first."""
    if len(runs) <= MOST_TOLD:
        return [f"{experiment.experiment_id}: {slo['said']}" for experiment, slo in runs]
    sentences = []
    for outcome in reversed(_ORDER):
        those = [(experiment, slo) for experiment, slo in runs if slo["outcome"] == outcome]
        if those:
            names = dict.fromkeys(experiment.experiment_id.rpartition("_rep")[0] for experiment, _ in those)
            where = "" if len(those) == len(runs) else f" ({', '.join(names)})"
            sentences.append(f"Objective: {outcome} in {len(those)} of {len(runs)} runs{where}{_why(outcome, those)}.")
    return sentences


def _why(outcome: ObjectiveOutcome, runs: Sequence[tuple[ExperimentSpec, Mapping[str, Any]]]) -> str:
    """Which parts of the objective had this outcome, in how many of the runs, and what their 95 % intervals leave open."""
    parts: dict[str, list[Mapping[str, Any]]] = {}
    for _, slo in runs:
        for name, part in slo["parts"].items():
            if part["outcome"] == outcome != ObjectiveOutcome.PASS:
                parts.setdefault(name, []).append(part)
    return "".join(
        f"; {title_of(name)} in {len(those)} ({100 * min(part['interval'][0] for part in those):.3g} to "
        f"{100 * max(part['interval'][1] for part in those):.3g} % missed, {100 * those[0]['allowed_share']:.3g} % allowed)"
        for name, those in sorted(parts.items(), key=lambda item: len(item[1]), reverse=True)
    )


def fewest_requests(allowed: float) -> int:
    """Requests that it takes for a share of ``allowed`` to be kept, if none of them is missed; fewer leave it open."""
    return math.ceil(NORMAL**2 * (1 - allowed) / allowed)


def share_interval(
    missed: npt.NDArray[np.bool_],
    at_ns: npt.NDArray[np.int64],
    window: Window,
    weights: npt.NDArray[np.float64] | None = None,
) -> tuple[float, float]:
    """The 95 % interval of the share that is missed; all of [0, 1] without anything. Without weights all weigh 1."""
    weights = np.ones(len(missed)) if weights is None else weights
    count, number = float(weights[missed].sum()), float(weights.sum())
    if not number:
        return 0.0, 1.0
    share = count / number
    # Wilson's interval, of independent requests: none missed of 300 does not mean that none ever will be.
    middle = (count + NORMAL**2 / 2) / (number + NORMAL**2)
    wilson = NORMAL / (number + NORMAL**2) * math.sqrt(number * share * (1 - share) + NORMAL**2 / 4)
    in_slice = np.clip(np.searchsorted(_edges_ns(window), at_ns, side="right") - 1, 0, SLICES - 1)
    numbers = np.bincount(in_slice, weights=weights, minlength=SLICES)
    counts = np.bincount(in_slice, weights=weights * missed, minlength=SLICES)
    residual = float(((counts - share * numbers) ** 2).sum()) * SLICES / (SLICES - 1)
    half = STUDENT * math.sqrt(residual) / number
    return max(0.0, min(middle - wilson, share - half)), min(1.0, max(middle + wilson, share + half))


def _edges_ns(window: Window) -> npt.NDArray[np.float64]:
    return np.linspace(window.begin_s * NS_PER_S, window.end_s * NS_PER_S, SLICES + 1)


def _weighed(
    sample: Sample, window: Window
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.float64]]:
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


def _part(sample: Sample, window: Window) -> Part:
    which, at_ns, weights = _weighed(sample, window)
    missed, perhaps = sample.missed[which], (sample.missed | sample.undecided)[which]
    low, _ = share_interval(missed, at_ns, window, weights)
    _, high = share_interval(perhaps, at_ns, window, weights)
    share = float(weights[missed].sum() / weights.sum()) if len(missed) else 0.0
    undecided = int(sample.undecided.sum())
    if sample.values_ns is None:
        return Part(sample.name, sample.limit, share, share, low, high, sample.limit, undecided)
    value = percentile(sample.values_ns, sample.quantile, least=1) / NS_PER_MS if len(sample.values_ns) else None
    allowed = round(1 - sample.quantile, 6)
    return Part(sample.name, sample.limit, value, share, low, high, allowed, undecided)
