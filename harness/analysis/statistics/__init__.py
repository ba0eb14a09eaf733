"""The statistics of repeated runs: intervals, comparisons, and when to say nothing.

Sources: Law, *Simulation Modeling and Analysis* (batch means); Hedges 1981 (g); Cliff 1993 (delta);
Jain 1984 (fairness); Holm 1979 (several comparisons at once). ``tests/benchmarks/statistics_coverage.py`` holds them
against made-up data of known truth.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from harness.analysis.statistics.distributions import Floats, mann_whitney, student_cdf, student_quantile

SIGNIFICANCE = 0.05
BATCHES = 20
MIN_BATCHES = 5
MIN_BATCH_ROWS = 4
CORRELATED = 0.3
ROWS_TO_TELL = 60
"""Below this, a correlation is too badly known to be corrected for in full."""
NO_DIFFERENCE = "no significant difference"
NO_SPREAD = "the runs of each side are all equal: the figure is too coarse to show their spread"
_SAME = 1e-9
"""Figures that differ by less, relatively, are equal but for the arithmetic."""
_LEAST_CORRELATION, _MOST_CORRELATION = -0.1, 0.8


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean, and how well it is known.

    Attributes:
        mean: of the ``n`` values, in their unit.
        low: lower end of the 95 % interval; None when there is none.
        high: upper end; None when there is none.
        n: independent values behind it.
        cv: coefficient of variation (standard deviation / mean); None below two values or at mean 0.
        note: why there is no interval, or what weakens it; empty when there is nothing to say.
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


def t_interval(values: Sequence[float], share: float = 1.0) -> Estimate:
    """Mean of independent repeats with Student's 95 % interval; a single value has none.

    ``share``: see ``student``. Raises ValueError without any value.
    """
    if not values:
        raise ValueError("an estimate needs at least one value")
    mean = float(np.mean(values))
    if len(values) == 1:
        return Estimate(mean, None, None, 1, None, "one run has no interval")
    deviation = float(np.std(values, ddof=1))
    half = student(len(values) - 1, share) * deviation / math.sqrt(len(values))
    return Estimate(mean, mean - half, mean + half, len(values), deviation / abs(mean) if mean else None)


def nonnegative(estimate: Estimate) -> Estimate:
    """The same of a quantity that cannot be below 0: what an interval has there is cut off."""
    return estimate if estimate.low is None or estimate.mean < 0 else replace(estimate, low=max(estimate.low, 0.0))


def batch_means(values: Sequence[float]) -> Estimate:
    """Mean of the rows of one run with an interval that allows for their autocorrelation.

    Neighbouring rows resemble each other, so that n rows are far fewer than n facts. The run is cut into up to
    20 batches of at least 4 rows, whose means count as the values; a left-over tail of rows is not used. Means that
    still resemble their neighbours count as fewer (first-order autocorrelation, corrected for bias as Kendall 1954).
    ``n`` is the number of batches. Raises ValueError without any value.
    """
    batches = min(BATCHES, len(values) // MIN_BATCH_ROWS)
    if batches < MIN_BATCHES:
        if not values:
            raise ValueError("an estimate needs at least one value")
        note = f"{len(values)} rows are too few for {MIN_BATCHES} batches of {MIN_BATCH_ROWS}"
        return Estimate(float(np.mean(values)), None, None, len(values), None, note)
    size = len(values) // batches
    means = np.asarray(values[: batches * size], dtype=float).reshape(batches, size).mean(axis=1)
    mean, deviation = float(means.mean()), float(means.std())
    correlation = (batches * lag_one(means) + 1) / (batches - 4)
    half = _half_width(deviation, batches, min(max(correlation, _LEAST_CORRELATION), _MOST_CORRELATION))
    note = ""
    if (correlation > CORRELATED and len(values) < ROWS_TO_TELL) or correlation > _MOST_CORRELATION:
        note = f"neighbouring batches resemble each other (correlation {min(correlation, 1):.2f}): the true interval may be wider"
    cv = float(means.std(ddof=1)) / abs(mean) if mean else None
    return Estimate(mean, mean - half, mean + half, batches, cv, note)


def _half_width(deviation: float, batches: int, correlation: float) -> float:
    """Half of the 95 % interval of the mean of batches with this (population) deviation and autocorrelation."""
    inflation = (1 + correlation) / (1 - correlation)
    independent = max(batches / inflation, 2.0)
    freedom = batches - 1 if inflation <= 1 else max(batches / inflation, 1.0)
    return student(freedom) * deviation / math.sqrt(independent - 1)


def lag_one(values: Floats) -> float:
    """Autocorrelation of neighbours, -1 to 1; 0 for a constant series."""
    centred = values - values.mean()
    power = float(np.dot(centred, centred))
    return float(np.dot(centred[:-1], centred[1:])) / power if power > 0 else 0.0


def needed_for(quantile: float) -> int:
    """Requests that a percentile takes: one is expected beyond it. 100 for p99."""
    return math.ceil(round(1 / (1 - quantile), 6))


def percentile(values: Floats, quantile: float) -> float:
    """Nearest-rank percentile: an observed value, the smallest that ``quantile`` of all do not exceed.

    Raises ValueError when there are fewer values than ``needed_for`` says.
    """
    needed = needed_for(quantile)
    if len(values) < needed:
        raise ValueError(f"p{quantile * 100:g} takes at least {needed} requests, there are fewer")
    return float(np.quantile(values, quantile, method="inverted_cdf"))


def jain(values: Sequence[float]) -> float:
    """Jain's fairness index: 1 when all are equal, 1/n when one has everything.

    Raises ValueError when there is nothing to share.
    """
    squares = sum(value * value for value in values)
    if not squares:
        raise ValueError("nothing was served, so there is nothing to share")
    return sum(values) ** 2 / (len(values) * squares)


def ratio(
    numerator: Sequence[float], denominator: Sequence[float], share: float = 1.0, *, first: int | None = None
) -> Estimate:
    """Ratio of two means with a 95 % interval (Welch's, on the logarithms by the delta method).

    ``share``: see ``student``. ``first``: the spread of so many runs of the numerator said how many it would take (Stein
    1945): they alone give its degrees of freedom, and its variance unless that of all runs is larger.
    Raises ValueError when either is empty or a mean is not positive.
    """
    top, bottom = t_interval(numerator), t_interval(denominator)
    if top.mean <= 0 or bottom.mean <= 0:
        raise ValueError("a ratio needs positive means")
    value = top.mean / bottom.mean
    if top.cv is None or bottom.cv is None or first == 1:
        return Estimate(value, None, None, min(top.n, bottom.n), None, "one run has no interval")
    spread = _spread(numerator, denominator)
    if spread is None:
        return Estimate(value, None, None, min(top.n, bottom.n), None, NO_SPREAD)
    early = top.n if first is None else first
    above = max(spread[0], float(np.var(numerator[:early], ddof=1)) / top.n) / top.mean**2
    below = spread[1] / bottom.mean**2
    factor = math.exp(student(_freedom(above, early, below, bottom.n), share) * math.sqrt(above + below))
    return Estimate(value, value / factor, value * factor, min(top.n, bottom.n), None)


def runs_needed(
    numerator: Sequence[float], denominator: Sequence[float], margin: float, most: int, share: float = 1.0
) -> int | None:
    """Runs of the numerator, those there are included, until the interval of the ratio lies within ``margin`` of 1.

    That is likely (95 %) where the true ratio is 1. It follows from the spreads alone, so that who runs as many and then
    looks errs no more often than the interval says (see ``ratio``, ``first``).

    Args:
        numerator: at least one, positive in the mean.
        denominator: likewise.
        margin: e.g. 0.1: from 1 / 1.1 to 1.1.
        most: runs that there may be; the answer where they could do, but are not likely to.
        share: see ``student``.

    Returns:
        None where ``most`` cannot do, whatever the ratio is.
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
    """Variances of the means of two sides of at least two runs each; None where all runs of each side are equal.

    Figures are counted or rounded: a side's variance is at least that of rounding to the smallest step that lies
    between two of the figures.
    """
    figures = np.unique([*a, *b])
    steps = np.diff(figures)
    steps = steps[steps > _SAME * np.abs(figures).max()]
    variances = [float(np.var(side, ddof=1)) for side in (a, b)]
    if not len(steps) or max(variances) <= (_SAME * float(np.abs(figures).max())) ** 2:
        return None
    floor = float(steps.min()) ** 2 / 12
    return max(variances[0], floor) / len(a), max(variances[1], floor) / len(b)


def _freedom(first: float, runs: int, second: float, other_runs: int) -> float:
    """Degrees of freedom of the difference of two means with these variances.

    Welch's (Satterthwaite 1946), and for sides of unlike length at most a number that comes down to Hsu's (1938, those
    of the smaller side): Welch's alone errs in 11 % of comparisons of 2 runs against 10. The benchmark holds the cap.
    """
    welchs = (first + second) ** 2 / (first**2 / (runs - 1) + second**2 / (other_runs - 1))
    few, many = sorted((runs - 1, other_runs - 1))
    return min(welchs, max(few, 2 * few**2 / many))


def mean_difference(a: Sequence[float], b: Sequence[float], share: float = 1.0) -> Estimate:
    """Mean of ``a`` less mean of ``b``, in their unit, with Welch's 95 % interval; none with a single run on a side.

    ``share``: see ``student``. Raises ValueError when either is empty.
    """
    gap = t_interval(a).mean - t_interval(b).mean
    runs = min(len(a), len(b))
    if runs == 1:
        return Estimate(gap, None, None, 1, None, "one run has no interval")
    spread = _spread(a, b)
    if spread is None:
        return Estimate(gap, None, None, runs, None, NO_SPREAD)
    half = student(_freedom(spread[0], len(a), spread[1], len(b)), share) * math.sqrt(sum(spread))
    return Estimate(gap, gap - half, gap + half, runs, None)


@dataclass(frozen=True, slots=True)
class Difference:
    """Two sets of runs held against each other.

    Attributes:
        change: relative change of the mean from a to b; 0.1 is 10 % more.
        welch_p: p of Welch's t-test; None when one side has a single run, or no side has any spread.
        mann_whitney_p: p of the exact Mann-Whitney test; None when one side has a single run.
        mann_whitney_floor: the smallest p that this many runs can give (0.1 for 3 against 3).
        hedges_g: difference in standard deviations, corrected for few runs; None without spread.
        cliffs_delta: share of pairs where b is larger minus where it is smaller, -1 to 1.
        adjusted_p: Welch's p after Holm's correction for all comparisons made together.
    """

    a: Estimate
    b: Estimate
    change: float | None
    welch_p: float | None
    mann_whitney_p: float | None
    mann_whitney_floor: float | None
    hedges_g: float | None
    cliffs_delta: float
    adjusted_p: float | None = None

    @property
    def significant(self) -> bool | None:
        """Whether the means differ at 5 %; None when the spread of the runs is not known, so that nobody can tell."""
        p = self.welch_p if self.adjusted_p is None else self.adjusted_p
        return None if p is None else p < SIGNIFICANCE

    @property
    def sentence(self) -> str:
        """The answer in words."""
        if self.significant is None:
            single = min(self.a.n, self.b.n) == 1
            return f"cannot tell: {'a single run has no spread; repeat it' if single else NO_SPREAD}"
        if not self.significant:
            alone = self.welch_p is not None and self.welch_p < SIGNIFICANCE
            # Its interval, which stands for itself, leaves out "no difference" then: say why the answer does not.
            return NO_DIFFERENCE + (" among all comparisons" if alone else "")
        direction = "higher" if self.b.mean > self.a.mean else "lower"
        return direction if self.change is None else f"{100 * abs(self.change):.1f} % {direction}"


def difference(a: Sequence[float], b: Sequence[float], share: float = 1.0) -> Difference:
    """Compare two sets of independent runs: Welch decides, Mann-Whitney stands beside it, effect sizes say how much.

    ``share``: see ``student``; p-values are divided by it. Raises ValueError when either is empty.
    """
    first, second = t_interval(a, share), t_interval(b, share)
    change = second.mean / first.mean - 1 if first.mean else None
    pairs = np.sign(np.subtract.outer(np.asarray(b, dtype=float), np.asarray(a, dtype=float)))
    delta = float(pairs.mean())
    if len(a) < 2 or len(b) < 2:
        return Difference(first, second, change, None, None, None, None, delta)
    p = welch(a, b)
    exact, floor = (min(1.0, value / share) for value in (mann_whitney(a, b), 2 / math.comb(len(a) + len(b), len(a))))
    p = None if p is None else min(1.0, p / share)
    return Difference(first, second, change, p, exact, floor, _hedges_g(a, b), delta)


def student(freedom: float, share: float = 1.0) -> float:
    """Student's t of the 95 % interval.

    ``share``: how much of the 5 % this interval may err in; less than 1 where it is one of several that were looked at.
    """
    return student_quantile(float(freedom), 1 - SIGNIFICANCE * share / 2)


def welch(a: Sequence[float], b: Sequence[float]) -> float | None:
    """P of Welch's t-test, of at least two values on each side; None when there is no spread to test against."""
    spread = _spread(a, b)
    if spread is None:
        return None
    gap = abs(float(np.mean(b) - np.mean(a)))
    return float(2 * student_cdf(_freedom(spread[0], len(a), spread[1], len(b)), -gap / math.sqrt(sum(spread))))


def _hedges_g(a: Sequence[float], b: Sequence[float]) -> float | None:
    freedom = len(a) + len(b) - 2
    pooled = math.sqrt(((len(a) - 1) * np.var(a, ddof=1) + (len(b) - 1) * np.var(b, ddof=1)) / freedom)
    if not pooled:
        return None
    return float((np.mean(b) - np.mean(a)) / pooled * (1 - 3 / (4 * freedom - 1)))


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values corrected for being looked at together, in the order given."""
    adjusted = [0.0] * len(p_values)
    running = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        running = max(running, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = running
    return adjusted
