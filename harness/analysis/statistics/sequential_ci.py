"""How well a figure is known while it is still being recorded, from requests that resemble their neighbours.

The recording is cut into 40 slices, up to 63, of equal length, which double in length as it grows, so that memory does not
(dynamic batch means: Yeh and Schmeiser 2000). Each figure has one value per slice; its variance is that of a mean of
autocorrelated values (first order, corrected for bias as Kendall 1954 does and raised by 0.6 of its standard error). Percentiles
go through the share of requests below them and back (Woodruff 1952); where every slice has requests enough for a percentile of its
own, through those. Whoever looks often, and stops at the first narrow interval, picks the luckily narrow ones (Chow and Robbins
1965): looks are 10% apart, and two in a row have to agree. ``tests/benchmarks/stop_when_known.py`` holds the coverage of the
intervals at the stop against series of known truth.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from harness.analysis.statistics import Estimate, lag_one, needed_for, student
from harness.analysis.statistics.distributions import Floats
from harness.traffic.records import nearest_rank

MIN_SLICES = 32
MAX_SLICES = 2 * MIN_SLICES
"""Exclusive: here neighbours are joined."""
LOOK_GROWTH = 1.1
LOOKS_IN_A_ROW = 2
FIRST_SLICES = 40
"""In the shortest recording: the last few may hold requests whose end is not seen yet."""
MIN_REQUESTS = MIN_SLICES
CORRELATED = 0.4
"""Above this, slices resemble each other too much to say how many independent values they are."""
COARSE_VALUES = 3
"""What they then count as, at most."""
ANTICORRELATED = -0.5
"""Whole requests on the edges of slices make neighbours differ; more than this is not believed."""
CAUTION = 0.6
"""Standard errors by which the autocorrelation is raised: stopping favours those who underestimate it."""

TAIL = 0.02
TAIL_CAUTION = 1.3
"""The same for percentiles with less than this share beyond them: the few requests there come in clusters."""

MANY = 10
"""Times what a percentile takes at least: with so many requests in every slice, each has a percentile of its own."""

TAIL_KNOWN = 0.6
"""Share of a percentile's tail up to which that tail may be unknown; beyond, too few requests lie in it to say."""

QUANTILES: Mapping[str, float] = {"latency_p50_exact": 0.5, "latency_p95_exact": 0.95, "latency_p99_exact": 0.99}

_BIN_WIDTH = 0.002
_LOWEST_S = 1e-6
_BINS = math.ceil(math.log(1e9) / math.log1p(_BIN_WIDTH))
"""Latencies from a microsecond to 1000 s, each known to 0.2%."""

_Counts = npt.NDArray[np.int64]


class Requests:
    """The requests of one recording so far, in constant memory.

    ``slice_s``: length of a slice at the beginning, a 40th of the shortest recording. ``counters``: replicas whose whole requests make
    the rate that will be reported: where they are few, the rounding at both ends is part of what is not known of it; 0 where the rate
    reported is the one that is estimated here.
    """

    def __init__(self, slice_s: float, *, counters: int = 0) -> None:
        self._slice_s = slice_s
        self._counters = counters
        self._histograms: npt.NDArray[np.int32] = np.zeros((MAX_SLICES, _BINS), dtype=np.int32)
        self._work: Floats = np.zeros(MAX_SLICES)
        self._until_s = 0.0
        self._longest_s = 0.0

    def add(self, ends_s: Floats, latencies_s: Floats, *, until_s: float) -> None:
        """Take requests that ended since the last call; ``until_s``: seconds recorded so far.

        ``ends_s``: seconds since the start of the recording, from 0; those after ``until_s`` count only with what they had done of
        themselves by then. ``latencies_s``: of the same requests.
        """
        while until_s >= MAX_SLICES * self._slice_s:
            self._join_neighbours()
        places = np.clip((ends_s / self._slice_s).astype(np.int64), 0, MAX_SLICES - 1)
        ratios = np.maximum(latencies_s, _LOWEST_S) / _LOWEST_S
        bins = np.minimum((np.log(ratios) / math.log1p(_BIN_WIDTH)).astype(np.int64), _BINS - 1)
        np.add.at(self._histograms, (places, bins), 1)
        self._work += _work(ends_s, latencies_s, self._slice_s)
        self._until_s = until_s
        self._longest_s = max(self._longest_s, float(latencies_s.max(initial=0.0)))

    def estimates(self, metrics: Sequence[str], *, over: bool = False) -> dict[str, Estimate]:
        """Each wanted figure with its interval, from the whole slices so far; see ``Estimate.note`` where there is none.

        ``over``: the recording is over, and the requests that were in flight at its end have been taken, too; while it lasts, what they
        have done of themselves is seen when they end.
        """
        settled_s = self._until_s - (0.0 if over else self._longest_s)
        whole = max(int(settled_s / self._slice_s * (1 + 1e-9)), 0)
        histograms = self._histograms[:whole]
        counts: _Counts = histograms.sum(axis=1, dtype=np.int64)
        requests = int(counts.sum())
        if whole < MIN_SLICES or requests < MIN_REQUESTS:
            note = f"{requests} requests in {self._until_s:g} s are too few to say"
            return {name: Estimate(math.nan, None, None, whole, None, note) for name in metrics}
        # A counter is wrong by up to 1 at either end: half of the 95% interval of what that does to the rate.
        rounding = student(math.inf) * math.sqrt(self._counters / 6) / self._until_s
        return {
            name: _percentile(histograms, counts, QUANTILES[name])
            if name in QUANTILES
            else _throughput(self._work[:whole] / self._slice_s, rounding)
            for name in metrics
        }

    def _join_neighbours(self) -> None:
        joined = self._histograms[::2] + self._histograms[1::2]
        self._histograms[:MIN_SLICES] = joined
        self._histograms[MIN_SLICES:] = 0
        self._work = np.concatenate([self._work[::2] + self._work[1::2], np.zeros(MIN_SLICES)])
        self._slice_s *= 2


def half_width(values: Floats, caution: float = CAUTION) -> float:
    """Half of the 95% interval of the mean of autocorrelated values, in their unit.

    ``values``: one per slice, at least 32. ``caution``: standard errors by which the autocorrelation is raised.
    """
    count = len(values)
    deviation = float(np.std(values))
    if deviation == 0:
        return 0.0
    correlation = max((count * lag_one(values) + 1) / (count - 3), ANTICORRELATED)
    if correlation > CORRELATED:
        return student(COARSE_VALUES - 1) * deviation / math.sqrt(COARSE_VALUES - 1)
    error = math.sqrt((1 - correlation**2) / count)
    correlation += caution * error
    inflation = (1 + correlation) / (1 - correlation)
    independent = count / inflation
    freedom = count / (1 + 0.6 / (1 - correlation**2))
    return student(freedom) * deviation / math.sqrt(independent - 1)


def relative_half_width(estimate: Estimate) -> float:
    """Half of the interval as a share of the figure; infinite without an interval."""
    half = estimate.half_width
    return math.inf if half is None or not estimate.mean > 0 else half / estimate.mean


class Looks:
    """When to look at a growing recording, and when to believe what is seen.

    ``first_s``: seconds recorded before the first look. ``target``: relative half-width at which a figure is known.
    """

    def __init__(self, first_s: float, metrics: Sequence[str], target: float) -> None:
        self._next_s = first_s
        self._metrics = metrics
        self._target = target
        self._narrow = 0
        self.estimates: dict[str, Estimate] = {}

    def due(self, recorded_s: float) -> bool:
        """Whether it is time for another look."""
        return recorded_s >= self._next_s

    def known(self, requests: Requests, recorded_s: float) -> bool:
        """Look: whether every figure has been narrow enough, now and at the look before."""
        self._next_s = recorded_s * LOOK_GROWTH
        self.estimates = requests.estimates(self._metrics)
        narrow = all(relative_half_width(estimate) <= self._target for estimate in self.estimates.values())
        self._narrow = self._narrow + 1 if narrow else 0
        return self._narrow >= LOOKS_IN_A_ROW


def _work(ends_s: Floats, latencies_s: Floats, slice_s: float) -> Floats:
    """Requests by slice, one that lies in several counting in each with its share: whole ones would round the rate."""
    starts_s = ends_s - latencies_s
    first, last = (np.floor(times_s / slice_s).astype(np.int64) for times_s in (starts_s, ends_s))
    inside = (first == last) & (last < MAX_SLICES)
    work: Floats = np.bincount(last[inside], minlength=MAX_SLICES).astype(float)
    edges_s = slice_s * np.arange(MAX_SLICES + 1)
    done = (edges_s - starts_s[~inside, None]) / latencies_s[~inside, None]
    shares: Floats = np.diff(np.clip(done, 0, 1).sum(axis=0))
    return work + shares


def _throughput(rates: Floats, rounding: float) -> Estimate:
    mean, half = float(rates.mean()), math.hypot(half_width(rates), rounding)
    return Estimate(mean, mean - half, mean + half, len(rates), None)


def _percentile(histograms: npt.NDArray[np.int32], counts: _Counts, quantile: float) -> Estimate:
    """The percentile of all requests; its interval holds the percentiles of the shares that cannot be told from it."""
    below = histograms.sum(axis=0, dtype=np.int64).cumsum()
    requests = int(below[-1])
    place = int(np.searchsorted(below, nearest_rank(requests, quantile)))
    middle = float(_latencies_s(np.array(place)))
    if counts.min() >= MANY * needed_for(quantile):
        ranks = np.ceil(quantile * counts)
        half = half_width(_latencies_s(np.argmax(histograms.cumsum(axis=1) >= ranks[:, None], axis=1)))
        return Estimate(middle, middle - half, middle + half, len(counts), None)
    share = below[place] / requests
    # What each slice has too much or too little below the percentile, as a share of an average slice's requests.
    caution = TAIL_CAUTION if min(quantile, 1 - quantile) < TAIL else CAUTION
    half = half_width((histograms[:, : place + 1].sum(axis=1) - share * counts) / counts.mean(), caution)
    if requests < needed_for(quantile) or half > TAIL_KNOWN * min(quantile, 1 - quantile):
        note = f"{requests} requests are too few for an interval of p{quantile * 100:g}"
        return Estimate(middle, None, None, len(counts), None, note)
    ranks = requests * np.array([quantile - half, quantile + half])
    low, high = _latencies_s(np.searchsorted(below, np.ceil(ranks)))
    return Estimate(middle, float(low), float(high), len(counts), None)


def _latencies_s(bins: npt.NDArray[np.int64]) -> Floats:
    """Middles of bins, seconds."""
    middles: Floats = _LOWEST_S * np.exp(math.log1p(_BIN_WIDTH) * (bins.astype(float) + 0.5))
    return middles
