"""What stopping when the answer is known saves on full-length recordings, and whether its intervals tell the truth.

    python -m tests.benchmarks.stop_when_known

First the recordings of the sharing modes in ``examples/h200``, 63 of 40 s at batch 1 and 63 of 30 s with the GPU kept busy, are
played again, request by request, into the judge that a running campaign uses. For each precision: how much shorter the recordings
become, and how many of the conclusions about pairs of cells (three figures: higher, lower, or no significant difference; Welch,
Holm) change; beside it, how many change when the same time is spent evenly, each recording ended at the same second, and how
many turn into their opposite.
Then synthetic series of known truth: how often the interval at the stop holds the true mean or percentile.
"""

from __future__ import annotations

import argparse
import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.signal import lfilter

from harness.analysis.read import ExperimentData, read_experiment
from harness.analysis.statistics import holm, needed_for, percentile, unpaired
from harness.analysis.statistics.sequential_ci import (
    FIRST_SLICES,
    LOOK_GROWTH,
    LOOKS_IN_A_ROW,
    MAX_SLICES,
    Looks,
    Requests,
    half_width,
)
from harness.campaign.planners import LOG_LAG_S
from harness.results.layout import experiment_folders
from harness.results.published import opened
from harness.results.requests import latency_ns

ROOT = Path(__file__).parents[2]
EVERY = ("throughput", "latency_p50_exact", "latency_p99_exact")
WITHOUT_TAIL = ("throughput", "latency_p50_exact")
PRECISIONS = (0.005, 0.01, 0.02, 0.05)
MIN_S = 3.0
ROUNDS = 1000
SHOWN = 3
"""Changed conclusions that are printed."""
CORRELATIONS = (0.0, 0.3, 0.6, 0.8, 0.9)
NOISE = (0.3, 1.0, 3.0, 8.0)
TARGET = 0.02

Key = tuple[str, str, int]
"""Workload, sharing mode, replicas."""


@dataclass(frozen=True, slots=True)
class Replay:
    """One recording, as the logs hold it.

    Attributes:
        ends_s: of every request, since the first row, ascending.
        latencies_s: of the same requests.
        record_s: full length.
    """

    key: Key
    ends_s: np.ndarray
    latencies_s: np.ndarray
    record_s: float
    step_s: float

    def stop_s(self, metrics: Sequence[str], target: float) -> float:
        """When the judge of a campaign would have ended it."""
        requests = Requests(MIN_S / FIRST_SLICES, counters=self.key[2])
        looks = Looks(MIN_S, metrics, target)
        taken = 0
        for row in range(1, round(self.record_s / self.step_s)):
            until_s = row * self.step_s - LOG_LAG_S
            if not looks.due(until_s):
                continue
            here = int(np.searchsorted(self.ends_s, until_s))
            requests.add(self.ends_s[taken:here], self.latencies_s[taken:here], until_s=until_s)
            taken = here
            if looks.known(requests, until_s):
                return row * self.step_s
        return self.record_s

    def figures(self, until_s: float) -> dict[str, float]:
        """What a recording of this length would have reported."""
        return self.piece(0.0, until_s)

    def piece(self, begin_s: float, end_s: float) -> dict[str, float]:
        """What a recording from the one second to the other would have reported."""
        first, last = np.searchsorted(self.ends_s, (begin_s, end_s)).tolist()
        found = {"throughput": (last - first) / (end_s - begin_s)}
        return found | {
            name: percentile(self.latencies_s[first:last], quantile)
            for name, quantile in (("latency_p50_exact", 0.5), ("latency_p99_exact", 0.99))
            if last - first >= needed_for(quantile)
        }


def main() -> None:
    """Replay, simulate, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "campaigns", type=Path, nargs="*", help="one set of recordings (default: each of the shipped sets)"
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="simulated series of each kind")
    wishes = parser.parse_args()
    shipped = [sorted((ROOT / "examples" / "h200").glob(pattern)) for pattern in ("h200-sharing-*", "h200-busy-*")]
    for campaigns in [wishes.campaigns] if wishes.campaigns else shipped:
        print(", ".join(campaign.name for campaign in campaigns))
        with ExitStack() as stack:
            folders = [stack.enter_context(opened(campaign)) for campaign in campaigns]
            _print_savings([_replay(read_experiment(each)) for one in folders for each in experiment_folders(one)])
    _print_coverage(wishes.rounds)


def _replay(data: ExperimentData) -> Replay:
    records = data.requests.rows
    ends_s = (records["end_ns"] - round(data.manifest.start_s * 1e9)) / 1e9
    order = np.argsort(ends_s)
    order = order[(ends_s[order] >= 0) & (ends_s[order] < data.duration_s)]
    spec = data.manifest.experiment
    key = (spec.workload.name, spec.sharing.value, spec.replicas)
    return Replay(key, ends_s[order], latency_ns(records)[order] / 1e9, data.duration_s, spec.timing.step_s)


def _print_savings(replays: Sequence[Replay]) -> None:
    full = conclusions([(replay.key, replay.figures(replay.record_s)) for replay in replays])
    whole_s = sum(replay.record_s for replay in replays)
    print(f"{len(replays)} recordings, {whole_s:g} s in all, {len(full)} conclusions about pairs of cells")
    early = _changed(full, conclusions([(r.key, r.figures(r.record_s - r.step_s)) for r in replays]))
    print(f"every recording ended one row early: {len(early)} conclusions changed")
    for metrics, target in itertools.product((EVERY, WITHOUT_TAIL), PRECISIONS):
        stops = [replay.stop_s(metrics, target) for replay in replays]
        short = conclusions([(r.key, r.figures(stop)) for r, stop in zip(replays, stops, strict=True)])
        changed = _changed(full, short)
        each_s = sum(stops) / len(stops)
        evenly = _changed(full, conclusions([(r.key, r.figures(each_s)) for r in replays]))
        ended = [(stop, r.record_s) for stop, r in zip(stops, replays, strict=True) if stop < r.record_s]
        known_s, planned_s = (sum(column) for column in zip(*ended, strict=True)) if ended else (0.0, 0.0)
        print(
            f"{', '.join(metrics)} within {100 * target:g}%: {sum(stops):g} s, {whole_s / sum(stops):.2f} times less; "
            f"{len(changed)} conclusions changed ({len(evenly)} with {each_s:.1f} s each), {len(_reversed(full, short))} into their opposite; {len(replays) - len(ended)} recordings were not known at their end, "
            f"the others took {known_s:g} instead of {planned_s:g} s ({planned_s / known_s if known_s else 1:.2f} times less)"
        )
        for what in changed[:SHOWN]:
            print(f"    {what}: {full[what]}, with less recording {short.get(what)}")


def _changed(full: dict[str, str], short: dict[str, str]) -> list[str]:
    return [what for what, conclusion in full.items() if short.get(what) != conclusion]


def _reversed(full: dict[str, str], short: dict[str, str]) -> list[str]:
    return [what for what, conclusion in full.items() if {conclusion, short.get(what)} == {"higher", "lower"}]


def conclusions(runs: Sequence[tuple[Key, dict[str, float]]]) -> dict[str, str]:
    """What a reader would say of every pair of cells, by pair and figure; all are tested together (Holm)."""
    cells: dict[Key, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for key, figures in runs:
        for name, figure in figures.items():
            cells[key][name].append(figure)
    tested = {
        f"{name} of {_words(a)} against {_words(b)}": unpaired(cells[b][name], cells[a][name])
        for a, b in itertools.combinations(sorted(cells), 2)
        for name in EVERY
        if cells[a][name] and cells[b][name]
    }
    adjusted = holm([1.0 if found.p is None else found.p for found in tested.values()])
    return {
        what: "no significant difference" if p >= 0.05 else "higher" if found.centre > 0 else "lower"
        for (what, found), p in zip(tested.items(), adjusted, strict=True)
    }


def _words(key: Key) -> str:
    workload, sharing, replicas = key
    return f"{workload} {sharing} r{replicas}"


def _print_coverage(rounds: int) -> None:
    random = np.random.default_rng(1)
    print(f"coverage of the 95% interval at the stop, {rounds} series each; mean of an AR(1) series")
    every = []
    for correlation in CORRELATIONS:
        found = [mean_coverage(random, rounds, correlation, noise) for noise in NOISE]
        every += [covered for covered, _ in found]
        shown = ", ".join(f"{100 * covered:.1f}% (at {length:.1f} min_s)" for covered, length in found)
        print(f"  correlation of neighbours {correlation:g}: {shown}")
    print(f"  all: {100 * np.mean(every):.1f}%, from {100 * min(every):.1f} to {100 * max(every):.1f}%")
    print("percentiles of requests whose latency follows a lognormal AR(1)")
    for name, quantile in (("latency_p50_exact", 0.5), ("latency_p95_exact", 0.95), ("latency_p99_exact", 0.99)):
        for correlation in (0.0, 0.6, 0.9):
            covered, length = percentile_coverage(random, rounds // 2, name, quantile, correlation)
            print(f"  {name}, correlation {correlation:g}: {100 * covered:.1f}% (at {length:.1f} min_s)")


def mean_coverage(random: np.random.Generator, rounds: int, correlation: float, noise: float) -> tuple[float, float]:
    """Share of intervals that hold the mean when recording ends, and the mean length in units of ``min_s``.

    Args:
        random: source of the series.
        rounds: how many series.
        correlation: of neighbouring slices.
        noise: about how many ``min_s`` it takes to know the mean to 2%.
    """
    longest = 24 * FIRST_SLICES
    spread = TARGET / 1.96 * np.sqrt(FIRST_SLICES * noise * (1 - correlation) / (1 + correlation))
    covered, lengths = 0, 0
    for _ in range(rounds):
        series = 1 + spread * _ar1(random, longest, correlation)
        narrow = 0
        for length in _look_lengths(longest):
            values = _joined(series[:length])
            mean, half = float(values.mean()), half_width(values)
            narrow = narrow + 1 if half <= TARGET * mean else 0
            if narrow >= LOOKS_IN_A_ROW:
                break
        covered += abs(mean - 1) <= half
        lengths += length
    return covered / rounds, lengths / rounds / FIRST_SLICES


def percentile_coverage(
    random: np.random.Generator, rounds: int, name: str, quantile: float, correlation: float
) -> tuple[float, float]:
    """The same for a percentile of 100 requests a second, from ``min_s`` of 10 s to 100 s."""
    min_s, record_s, rate, spread = 10.0, 100.0, 100.0, 0.05
    truth = float(np.exp(spread * _normal_quantile(quantile)))
    ends_s = np.arange(1, int(record_s * rate) + 1) / rate
    covered, lengths, judged = 0, 0.0, 0
    for _ in range(rounds):
        latencies_s = np.exp(spread * _ar1(random, len(ends_s), correlation))
        looks, requests = Looks(min_s, [name], TARGET), Requests(min_s / FIRST_SLICES)
        taken, until_s = 0, min_s
        while until_s <= record_s:
            here = int(np.searchsorted(ends_s, until_s))
            requests.add(ends_s[taken:here], latencies_s[taken:here], until_s=until_s)
            taken = here
            if looks.known(requests, until_s):
                break
            until_s *= LOOK_GROWTH
        estimate = looks.estimates[name]
        if estimate.low is not None and estimate.high is not None:
            judged += 1
            covered += estimate.low <= truth <= estimate.high
        lengths += min(until_s, record_s)
    return covered / judged, lengths / rounds / min_s


def _ar1(random: np.random.Generator, length: int, correlation: float) -> np.ndarray:
    """A series of mean 0 and variance 1, from its stationary distribution."""
    noise = random.standard_normal(length)
    noise[1:] *= np.sqrt(1 - correlation**2)
    return lfilter([1], [1, -correlation], noise)


def _look_lengths(longest: int) -> Iterator[int]:
    length = float(FIRST_SLICES)
    while length < longest:
        yield int(length)
        length *= LOOK_GROWTH
    yield longest


def _joined(series: np.ndarray) -> np.ndarray:
    """Slices as ``Requests`` joins them."""
    size = 1
    while len(series) // size >= MAX_SLICES:
        size *= 2
    whole = len(series) // size
    return series[: whole * size].reshape(whole, size).mean(axis=1)


def _normal_quantile(quantile: float) -> float:
    from scipy.special import ndtri

    return float(ndtri(quantile))


if __name__ == "__main__":
    main()
