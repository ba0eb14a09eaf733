"""The statistics of repeated runs: intervals, comparisons, and when to say nothing.

Sources: Law, *Simulation Modeling and Analysis* (batch means); Jain 1984 (fairness); Holm 1979 (several comparisons at once). ``tests/benchmarks/statistics_coverage.py`` holds them
against made-up data of known truth.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from harness.analysis.statistics.distributions import Floats, student_cdf, student_quantile
from harness.traffic.records import nearest_rank

SIGNIFICANCE = 0.05
BATCHES = 20
MIN_BATCHES = 5
MIN_BATCH_ROWS = 4
CORRELATED = 0.3
ROWS_TO_TELL = 60
"""Below this, a correlation is too badly known to be corrected for in full."""
NO_SPREAD = "the runs of each side are all equal: the figure is too coarse to show their spread"
_SAME = 1e-9
"""Figures that differ by less, relatively, are equal but for the arithmetic."""
_LEAST_CORRELATION, _MOST_CORRELATION = -0.1, 0.8
_UNSURE = 3.5
_WIDEST = 300.0
"""Of the logarithm of a factor: more is no number."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean of ``n`` independent values, and how well it is known: the ends of its 95% interval, None when there is none.

    ``cv``: standard deviation / mean; None below two values or at mean 0. ``note``: why there is no interval, or what weakens it.
    """

    mean: float
    low: float | None
    high: float | None
    n: int
    cv: float | None
    note: str = ""

    @property
    def half_width(self) -> float | None:
        """Half of the interval; None when there is none."""
        return None if self.low is None or self.high is None else (self.high - self.low) / 2

    def scaled(self, factor: float) -> Estimate:
        """The same in another unit; ``factor`` is positive."""
        low, high = (None if end is None else end * factor for end in (self.low, self.high))
        return replace(self, mean=self.mean * factor, low=low, high=high)


class Outcome(StrEnum):
    """Of one metric of two configurations, or of several together."""

    HIGHER = "higher"
    LOWER = "lower"
    NOT_SIGNIFICANT = "no significant difference"
    AGREES = "agrees"
    """The whole interval lies within the tolerance."""
    DIFFERS = "differs"
    """It lies outside altogether."""
    PASS = "pass"  # noqa: S105 - a verdict, not a secret
    """It keeps the limit altogether."""
    FAIL = "fail"
    """It is beyond the limit altogether."""
    INCONCLUSIVE = "inconclusive"
    """The interval reaches over the limit, or there is none."""


def within(ratio: Estimate, tolerance: float) -> Outcome:
    """Whether a ratio is that of equals: its whole interval from 1 / (1 + tolerance) to 1 + tolerance."""
    if ratio.low is None or ratio.high is None:
        return Outcome.INCONCLUSIVE
    lowest, highest = 1 / (1 + tolerance), 1 + tolerance
    if lowest <= ratio.low and ratio.high <= highest:
        return Outcome.AGREES
    return Outcome.DIFFERS if ratio.high < lowest or ratio.low > highest else Outcome.INCONCLUSIVE


def keeps(estimate: Estimate, limit: float) -> Outcome:
    """Whether something that is the worse the more of it there is stays below a limit, with its whole interval."""
    if estimate.low is None or estimate.high is None or estimate.low <= limit <= estimate.high:
        return Outcome.INCONCLUSIVE
    return Outcome.PASS if estimate.high < limit else Outcome.FAIL


def t_interval(values: Sequence[float], share: float = 1.0, least: float = -math.inf) -> Estimate:
    """Mean of independent repeats with Student's 95% interval; a single value has none.

    ``share``: see ``student``. What the interval has below ``least``, where no value can be, is cut off. Raises ValueError
    without any value.
    """
    if not values:
        raise ValueError("an estimate needs at least one value")
    mean = float(np.mean(values))
    if len(values) == 1:
        return Estimate(mean, None, None, 1, None, "one run has no interval")
    deviation = float(np.std(values, ddof=1))
    half = student(len(values) - 1, share) * deviation / math.sqrt(len(values))
    low = mean - half if mean < least else max(mean - half, least)
    return Estimate(mean, low, mean + half, len(values), deviation / abs(mean) if mean else None)


def batch_means(values: Sequence[float]) -> Estimate:
    """Mean of the rows of one run with an interval that allows for their autocorrelation; ``n`` is the number of batches.

    The run is cut into up to 20 batches of at least 4 rows, whose means count as the values; a left-over tail of rows is not
    used. Means that still resemble their neighbours count as fewer (first-order autocorrelation, corrected for bias as
    Kendall 1954). Raises ValueError without any value.
    """
    batches = min(BATCHES, len(values) // MIN_BATCH_ROWS)
    if batches < MIN_BATCHES:
        if not values:
            raise ValueError("an estimate needs at least one value")
        note = f"{len(values)} rows are too few for {MIN_BATCHES} batches of {MIN_BATCH_ROWS}"
        return Estimate(float(np.mean(values)), None, None, len(values), None, note)
    size = len(values) // batches
    means = np.asarray(values[: batches * size], dtype=float).reshape(batches, size).mean(axis=1)
    mean, correlation = float(means.mean()), (batches * lag_one(means) + 1) / (batches - 4)
    likely = min(max(correlation, _LEAST_CORRELATION), _MOST_CORRELATION)
    inflation = (1 + likely) / (1 - likely)
    freedom = batches - 1 if inflation <= 1 else max(batches / inflation, 1.0)
    half = student(freedom) * float(means.std()) / math.sqrt(max(batches / inflation, 2.0) - 1)
    note = ""
    if (correlation > CORRELATED and len(values) < ROWS_TO_TELL) or correlation > _MOST_CORRELATION:
        note = f"neighbouring batches resemble each other (correlation {min(correlation, 1):.2f}): the true interval may be wider"
    cv = float(means.std(ddof=1)) / abs(mean) if mean else None
    return Estimate(mean, mean - half, mean + half, batches, cv, note)


def lag_one(values: Floats) -> float:
    """Autocorrelation of neighbours, -1 to 1; 0 for a constant series."""
    centred = values - values.mean()
    power = float(np.dot(centred, centred))
    return float(np.dot(centred[:-1], centred[1:])) / power if power > 0 else 0.0


def needed_for(quantile: float) -> int:
    """Requests that a percentile takes: one is expected beyond it. 100 for p99."""
    return math.ceil(round(1 / (1 - quantile), 6))


def percentile(values: Floats, quantile: float, least: int | None = None) -> float:
    """Nearest-rank percentile: an observed value, the smallest that ``quantile`` of all do not exceed.

    Raises ValueError when there are fewer values than ``least``; None: than ``needed_for`` says.
    """
    needed = needed_for(quantile) if least is None else least
    if len(values) < needed:
        raise ValueError(f"p{quantile * 100:g} takes at least {needed} requests, there are fewer")
    place = max(nearest_rank(len(values), quantile) - 1, 0)
    return float(np.partition(values, place)[place])


def jain(values: Sequence[float]) -> float:
    """Jain's fairness index: 1 when all are equal, 1/n when one has everything. Raises ValueError when there is nothing to share."""
    squares = sum(value * value for value in values)
    if not squares:
        raise ValueError("nothing was served, so there is nothing to share")
    return sum(values) ** 2 / (len(values) * squares)


@dataclass(frozen=True, slots=True)
class LogRatio:
    """Logarithm of a ratio of two arms with its standard error: interval and p come from it, so that they never disagree.

    ``error``: None where there is none, for the reason in ``note``; ``freedom``: its degrees. ``n``: runs of the shorter arm, or
    pairs.
    """

    centre: float
    error: float | None
    freedom: float
    n: int
    note: str = ""

    @property
    def p(self) -> float | None:
        """Of Student's t against a ratio of 1; None without an error."""
        return None if self.error is None else float(2 * student_cdf(self.freedom, -abs(self.centre) / self.error))

    @property
    def careful(self) -> LogRatio:
        """The same with the degrees of freedom of the shorter arm (Hsu 1938), for a p that is to be corrected.

        For p far below 5% Welch's number, which is an estimate, errs: of families of five, three runs against three with spreads of 5 and
        0.5%, 8% hold a false alarm; with these 3%.
        """
        return replace(self, freedom=min(self.freedom, max(self.n - 1, 1)))

    def estimate(self, share: float = 1.0) -> Estimate:
        """The ratio with its 95% interval; ``share``: see ``student``."""
        mean = math.exp(self.centre)
        if self.error is None:
            return Estimate(mean, None, None, self.n, None, self.note)
        factor = math.exp(min(student(self.freedom, share) * self.error, _WIDEST))
        return Estimate(mean, mean / factor, mean * factor, self.n, None)


def unpaired(numerator: Sequence[float], denominator: Sequence[float], *, first: int | None = None) -> LogRatio:
    """Ratio of the means of independent runs (Welch's, on the logarithms by the delta method).

    ``first``: the spread of so many runs of the numerator said how many it would take (Stein 1945): they alone give its degrees of
    freedom, and its variance unless that of all runs is larger. Raises ValueError when either is empty or a mean is not positive.
    """
    top, bottom = t_interval(numerator), t_interval(denominator)
    if top.mean <= 0 or bottom.mean <= 0:
        raise ValueError("a ratio needs positive means")
    centre, n = math.log(top.mean / bottom.mean), min(top.n, bottom.n)
    if n == 1 or first == 1:
        return LogRatio(centre, None, 0, n, "one run has no interval")
    spread = _spread(numerator, denominator)
    if spread is None:
        return LogRatio(centre, None, 0, n, NO_SPREAD)
    early = top.n if first is None else first
    above = max(spread[0], float(np.var(numerator[:early], ddof=1)) / top.n) / top.mean**2
    below = spread[1] / bottom.mean**2
    return LogRatio(centre, math.sqrt(above + below), _freedom(above, early, below, bottom.n), n)


def paired(numerator: Sequence[float], denominator: Sequence[float]) -> LogRatio:
    """Geometric mean of the ratios of pairs, e.g. of the same repeat, which share whatever the machine was like (Student's).

    Raises ValueError without a pair, or where a value is not positive.
    """
    if min([*numerator, *denominator], default=0.0) <= 0:
        raise ValueError("a ratio needs pairs of positive values")
    logs = np.log(np.divide(numerator, denominator))
    centre, n = float(logs.mean()), len(logs)
    if n == 1:
        return LogRatio(centre, None, 0, n, "one repeat has no interval")
    deviation = float(np.std(logs, ddof=1))
    if deviation <= _SAME:
        return LogRatio(centre, None, 0, n, NO_SPREAD)
    return LogRatio(centre, deviation / math.sqrt(n), n - 1, n)


def ratio(
    numerator: Sequence[float], denominator: Sequence[float], share: float = 1.0, *, first: int | None = None
) -> Estimate:
    """``unpaired`` as an estimate with its 95% interval; ``share``: see ``student``. Raises ValueError likewise."""
    return unpaired(numerator, denominator, first=first).estimate(share)


def runs_needed(
    numerator: Sequence[float], denominator: Sequence[float], margin: float, most: int, share: float = 1.0
) -> int | None:
    """Runs of the numerator, those there are included, until the interval of the ratio likely (95%) lies within ``margin`` of 1.

    That is so where the true ratio is 1. It follows from the spreads alone, so that who runs as many and then looks errs no more often
    than the interval says. ``margin``: e.g. 0.1: from 1 / 1.1 to 1.1. ``most``: runs that there may be; the answer where they could
    do, but are not likely to; None where they cannot, whatever the ratio is. ``share``: see ``student``.
    """
    known = ratio(numerator, denominator, share).low is not None
    spread = _spread(numerator, denominator) if known else None
    if spread is None:
        return None
    room, half = math.log1p(margin), math.inf
    runs, below = len(numerator), spread[1] / float(np.mean(denominator)) ** 2
    for planned in range(runs, max(runs, most) + 1):
        above = spread[0] * runs / planned / float(np.mean(numerator)) ** 2
        error = math.sqrt(above + below)
        half = student(_freedom(above, runs, below, len(denominator)), share) * error
        if half + student(math.inf) * error <= room:
            return planned
    return max(runs, most) if half < room else None


def _spread(a: Sequence[float], b: Sequence[float]) -> tuple[float, float] | None:
    """Variances of the means of two arms of at least two runs each; None where all runs of each arm are equal.

    Figures are counted or rounded: an arm's variance is at least that of rounding to the smallest step that lies
    between two of the figures.
    """
    figures = np.unique([*a, *b])
    steps = np.diff(figures)
    steps = steps[steps > _SAME * np.abs(figures).max()]
    variances = [float(np.var(arm, ddof=1)) for arm in (a, b)]
    if not len(steps) or max(variances) <= (_SAME * float(np.abs(figures).max())) ** 2:
        return None
    floor = float(steps.min()) ** 2 / 12
    return max(variances[0], floor) / len(a), max(variances[1], floor) / len(b)


def _freedom(first: float, runs: int, second: float, other_runs: int) -> float:
    """Degrees of freedom of the difference of two means with these variances.

    Welch's (Satterthwaite 1946), with one more term for arms of unlike length: the spread of the shorter arm is badly known, and where
    it comes out small by chance, Welch's number is too large (errs in 11% of comparisons of 2 runs against 10). The term is 0 for
    equal lengths, and where one variance is all; its weight is found by ``tests/benchmarks/statistics_coverage.py``.
    """
    (few, short), (many, long) = sorted([(runs - 1, first), (other_runs - 1, second)])
    share = short / (short + long)
    unsure = _UNSURE / few * share * (1 - share) ** 2 * (1 / few - 1 / many)
    return 1 / (share**2 / few + (1 - share) ** 2 / many + unsure)


def student(freedom: float, share: float = 1.0) -> float:
    """Student's t of the 95% interval.

    ``share``: how much of the 5% this interval may err in; less than 1 where it is one of several that were looked at.
    """
    return student_quantile(float(freedom), 1 - SIGNIFICANCE * share / 2)


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values corrected for being looked at together, in the order given."""
    order = np.argsort(p_values, kind="stable")
    scaled = np.asarray(p_values, dtype=float)[order] * np.arange(len(order), 0, -1)
    adjusted = np.empty(len(order))
    adjusted[order] = np.maximum.accumulate(np.minimum(1.0, scaled))
    corrected: list[float] = adjusted.tolist()
    return corrected


def corrected(test: LogRatio, others: Iterable[float], share: float = 1.0) -> tuple[Estimate, float, float]:
    """The ratio of a test that has a p, its p, and that after Holm's correction with those of the others, which are careful ones.

    ``share``: of the usual error of 5% (see ``student``).
    """
    p, careful = (min((known.p or 0.0) / share, 1.0) for known in (test, test.careful))
    after = holm([careful, *others])[0]
    if p < SIGNIFICANCE <= after:
        return test.careful.estimate(careful / after * share), p, after
    return test.estimate(share), p, after
