"""Do the intervals hold the truth as often as they claim, and is "significant" rarely said in vain?

    python -m tests.benchmarks.statistics_coverage [--trials 4000] [--law-trials 5000] [--contrasts 20000 [--only-contrasts]]

Draws data of known truth and puts it through the statistics of the reports. Of 95% intervals 93 to 97% must hold the
truth; where nothing differs, at most 6% of contrasts may be called significant, and in at most 5% of families any; a law that is true
may be rejected in at most 6%; and where the truth is the very limit of what agrees, a campaign that ran again may be told to agree or
to differ in at most 6%. What a contrast finds (5% apart, a spread of 2%) must not fall with more runs of one arm. Prints every figure;
exit code 1 when one is beyond. The margin for chance of so many trials (three standard errors) is printed beside each.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.signal import lfilter

from harness.analysis.contrasts.contrast import COMPARED, MIN_BLOCKS
from harness.analysis.statistics import (
    SIGNIFICANCE,
    Estimate,
    LogRatio,
    batch_means,
    corrected,
    paired,
    ratio,
    runs_needed,
    t_interval,
    unpaired,
)
from harness.analysis.statistics.scaling_models import LATENCY_LAWS, THROUGHPUT_LAWS, Law, scaling_law

COVERAGE = (0.93, 0.97)
FALSE_ALARMS = (0.0, 0.06)
REPEATS = (3, 5)
SPREADS = ((0.02, 0.02), (0.05, 0.005), (0.005, 0.05))
"""Coefficients of variation of the two sides: alike, and as far apart as runs of one and of eight replicas are."""
SIZES = ((3, 3), (5, 5), (3, 8), (3, 12))
UNLIKE = ((0.02, 0.02), (0.05, 0.005), (0.005, 0.05))
UNEQUAL = ((2, 2), (2, 3), (2, 10), (3, 5), (3, 20), (5, 20))
BETWEEN = (0.0, 0.07)
"""What lies between and beyond the sizes and spreads above may err a little more: few runs do not tell which case it is."""
DRIFT = 0.8
"""Autocorrelation of runs that follow each other, of both arms in turn."""
POWER = {(3, 3): 0.52, (3, 8): 0.65, (8, 3): 0.65, (3, 12): 0.68, (12, 3): 0.68}
"""Share of differences of 5% to be found, with a spread of 2%, by runs of the baseline and of the candidate, which is the faster."""
ROUNDED = (0.1, 0.3, 0.5, 1.0, 3.0)
"""Standard deviations of counts, in the counts' own step."""
ROWS = (61, 121, 721)
CORRELATIONS = (0.0, 0.3, 0.5, 0.7, 0.9)
FAMILY = 12
MANY = 10
"""Times as many trials for Welch's test and interval. With three runs a side they err in 3.4% where the spreads are alike and
in 5.9% where they differ fivefold: it takes many trials to tell that from 3 and from 6."""


@dataclass(frozen=True)
class Result:
    """One share of trials, and where it must lie."""

    name: str
    share: float
    trials: int
    bounds: tuple[float, float]

    @property
    def margin(self) -> float:
        """Three standard errors of the share."""
        return 3 * math.sqrt(max(self.share * (1 - self.share), 1e-4) / self.trials)

    @property
    def kept(self) -> bool:
        """Whether the share lies within the bounds."""
        return self.bounds[0] <= self.share <= self.bounds[1]


def holds(estimate: Estimate, truth: float) -> bool:
    """Whether the interval is there and holds the truth."""
    return estimate.low is not None and estimate.high is not None and estimate.low <= truth <= estimate.high


def share_of(trials: int, trial: Callable[[], bool]) -> float:
    """Share of trials that are true."""
    return sum(trial() for _ in range(trials)) / trials


def intervals(random: np.random.Generator, trials: int) -> Iterator[Result]:
    """Means, ratios and differences of repeats."""
    for repeats in REPEATS:

        def mean(repeats: int = repeats) -> bool:
            return holds(t_interval(random.normal(100, 2, repeats).tolist()), 100)

        yield Result(f"mean of {repeats} runs", share_of(trials, mean), trials, COVERAGE)

        def skewed(repeats: int = repeats) -> bool:
            return holds(t_interval(random.lognormal(0, 0.1, repeats).tolist()), math.exp(0.1**2 / 2))

        yield Result(f"mean of {repeats} skewed runs", share_of(trials, skewed), trials, COVERAGE)
        for first, second in SPREADS:

            def sides(repeats: int = repeats, first: float = first, second: float = second) -> list[list[float]]:
                return [
                    random.normal(300, 300 * first, repeats).tolist(),
                    random.normal(100, 100 * second, repeats).tolist(),
                ]

            many = MANY * trials
            name = f"{repeats} runs a side, CV {100 * first:g} and {100 * second:g}%"
            held = share_of(many, lambda sides=sides: holds(ratio(*sides()), 3))  # type: ignore[misc]
            yield Result(f"ratio, {name}", held, many, COVERAGE)


def rows_of_one_run(random: np.random.Generator, trials: int) -> Iterator[Result]:
    """Means of rows that resemble their neighbours."""
    for rows in ROWS:
        for correlation in CORRELATIONS:

            def trial(rows: int = rows, correlation: float = correlation) -> bool:
                shocks = random.normal(size=rows)
                shocks[0] /= math.sqrt(1 - correlation**2)
                return holds(batch_means((100 + lfilter([1], [1, -correlation], shocks)).tolist()), 100)

            name = f"mean within a run of {rows} rows, correlation {correlation:g}"
            yield Result(name, share_of(trials, trial), trials, COVERAGE)


Arms = tuple[list[float], list[float]]


def independent(
    random: np.random.Generator, sizes: tuple[int, int], spreads: tuple[float, float], apart: float = 0.0
) -> Arms:
    """Runs of a baseline and of a candidate that is so much faster."""
    return (
        random.normal(1, spreads[0], sizes[0]).tolist(),
        random.normal(1 + apart, spreads[1], sizes[1]).tolist(),
    )


def interleaved(random: np.random.Generator, repeats: int) -> Arms:
    """Runs in turn on a machine that drifts, of arms that do not differ."""
    shocks = random.normal(size=2 * repeats)
    shocks[0] /= math.sqrt(1 - DRIFT**2)
    series = 1 + 0.02 * lfilter([1], [1, -DRIFT], shocks) * math.sqrt(1 - DRIFT**2)
    return series[::2].tolist(), series[1::2].tolist()


def contrast(arms: Arms, *, blocks: bool = False) -> LogRatio:
    """As the engine does: blocks are pairs where there are enough of them."""
    baseline, candidate = arms
    return (paired if blocks and len(baseline) >= MIN_BLOCKS else unpaired)(candidate, baseline)


def judged(
    name: str, draws: Sequence[LogRatio], *, alarms: tuple[float, float] = FALSE_ALARMS, coverage: bool = True
) -> Iterator[Result]:
    """Of contrasts of what does not differ, drawn one family after another."""
    trials, family = len(draws), len(COMPARED)
    yield Result(f"false alarm, {name}", sum(alarm(test.p) for test in draws) / trials, trials, alarms)
    if coverage:
        held = sum(holds(test.estimate(), 1) for test in draws) / trials
        yield Result(f"coverage, {name}", held, trials, COVERAGE)
    families = [draws[start : start + family] for start in range(0, trials - family + 1, family)]
    in_vain = sum(any(significant(test, tests) for test in tests) for tests in families)
    yield Result(f"any false alarm among {family}, {name}", in_vain / len(families), len(families), (0.0, 0.05))


def significant(test: LogRatio, family: Sequence[LogRatio]) -> bool:
    """Whether a test is after the correction; its shown interval has to say the same."""
    if test.p is None:
        return False
    ratio, _, p = corrected(test, [p for other in family if other is not test and (p := other.careful.p) is not None])
    assert (p < SIGNIFICANCE) == (not holds(ratio, 1))
    return p < SIGNIFICANCE


def contrasts(random: np.random.Generator, trials: int) -> Iterator[Result]:
    """False alarms, coverage and power of two arms held against each other."""
    for sizes in SIZES:
        for spreads in UNLIKE:
            name = f"{sizes[0]} runs against {sizes[1]}, CV {100 * spreads[0]:g} and {100 * spreads[1]:g}%"
            yield from judged(name, [contrast(independent(random, sizes, spreads)) for _ in range(trials)])
    for repeats in (3, MIN_BLOCKS):
        draws = [contrast(interleaved(random, repeats), blocks=True) for _ in range(trials)]
        name = f"{repeats} blocks, autocorrelation {DRIFT:g}"
        yield from judged(name, draws, coverage=repeats >= MIN_BLOCKS)
    for sizes in UNEQUAL:
        for spreads in ((0.02, 0.02), (0.03, 0.01), (0.05, 0.005)):
            name = f"{sizes[0]} runs against {sizes[1]}, CV {100 * spreads[0]:g} and {100 * spreads[1]:g}%"
            draws = [contrast(independent(random, sizes, spreads)) for _ in range(trials)]
            yield Result(f"false alarm, {name}", sum(alarm(test.p) for test in draws) / trials, trials, BETWEEN)
    for sizes, least in POWER.items():
        draws = [contrast(independent(random, sizes, (0.02, 0.02), 0.05)) for _ in range(trials)]
        name = f"5% found, {sizes[0]} runs against {sizes[1]}, CV 2%"
        yield Result(name, sum(alarm(test.p) for test in draws) / trials, trials, (least, 1.0))


def rounded(random: np.random.Generator, trials: int) -> Iterator[Result]:
    """Families of figures that are whole counts."""
    for repeats in (2, *REPEATS):
        for spread in ROUNDED:
            in_vain = 0
            for _ in range(trials):
                means = random.uniform(100, 1000, FAMILY)
                runs = np.round(random.normal(means, spread, (2, repeats, FAMILY))).transpose(2, 0, 1).tolist()
                tests = [unpaired(a, b) for a, b in runs]
                in_vain += any(significant(test, tests) for test in tests)
            name = f"any false alarm among {FAMILY}, {repeats} counts a side with a deviation of {spread:g}"
            yield Result(name, in_vain / trials, trials, FALSE_ALARMS)


def reproductions(random: np.random.Generator, trials: int) -> Iterator[Result]:
    """How often a campaign that ran again, with the repeats that its spread asks for, agrees or differs in vain."""
    edge = math.log(1.1)
    for runs, (first, second) in itertools.product((3, 6, 10), ((0.03, 0.03), (0.03, 0.07), (0.07, 0.03))):
        in_vain = 0
        for _ in range(trials):
            published, again = random.normal(1, first, runs).tolist(), random.normal(1.1, second, 4 * runs).tolist()
            wanted = runs_needed(again[:runs], published, 0.1, 4 * runs) or runs
            found = ratio(again[:wanted], published, first=runs)
            assert found.low is not None
            assert found.high is not None
            low, high = math.log(found.low), math.log(found.high)
            in_vain += (-edge <= low and high <= edge) or low > edge or high < -edge
        what = f"{runs} published, up to {4 * runs} here, spreads of {100 * first:g} and {100 * second:g}%"
        yield Result(f"agrees or differs though at the very limit: {what}", in_vain / trials, trials, FALSE_ALARMS)


def alarm(p: float | None) -> bool:
    """Whether one comparison is called significant."""
    return p is not None and p < SIGNIFICANCE


def laws(random: np.random.Generator, trials: int) -> Iterator[Result]:
    """Parameters of true laws, and how often a true law is rejected."""
    truths: Sequence[tuple[str, Sequence[Law], tuple[float, ...]]] = (
        ("linear", THROUGHPUT_LAWS, (100.0,)),
        ("bottleneck", THROUGHPUT_LAWS, (100.0, 270.0)),
        ("Amdahl", THROUGHPUT_LAWS, (100.0, 0.3)),
        ("affine", LATENCY_LAWS, (0.005, 0.002)),
    )
    counts = (1, 3, 8)
    for name, family, values in truths:
        (law,) = [law for law in family if law.name == name]
        curve = law.curve(np.array(counts, dtype=float), np.array(values))
        rejected, held = 0, dict.fromkeys(law.parameters, 0)
        for _ in range(trials):
            runs = {
                count: random.normal(value, 0.02 * value, 3).tolist()
                for count, value in zip(counts, curve, strict=True)
            }
            scaling = scaling_law(runs, [law])
            fit = scaling.nearest or scaling.best
            assert fit is not None
            rejected += fit.fits is False
            for parameter, truth in zip(law.parameters, values, strict=True):
                held[parameter] += holds(fit.parameters[parameter], truth)
        yield Result(f"law rejected though true: {name}", rejected / trials, trials, FALSE_ALARMS)
        for parameter in law.parameters:
            yield Result(f"parameter {parameter} of the law: {name}", held[parameter] / trials, trials, COVERAGE)


def results(
    trials: int, law_trials: int, contrast_trials: int, *, only_contrasts: bool, seed: int = 0
) -> Iterator[Result]:
    """Everything, one by one."""
    random = np.random.default_rng(seed)
    yield from contrasts(random, contrast_trials)
    if only_contrasts:
        return
    yield from intervals(random, trials)
    yield from rows_of_one_run(random, trials)
    yield from rounded(random, trials)
    yield from laws(random, law_trials)
    yield from reproductions(random, trials)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=4000)
    parser.add_argument("--law-trials", type=int, default=5000)
    parser.add_argument("--contrasts", type=int, default=20000)
    parser.add_argument("--only-contrasts", action="store_true")
    options = parser.parse_args()
    beyond = 0
    for result in results(options.trials, options.law_trials, options.contrasts, only_contrasts=options.only_contrasts):
        verdict = "kept" if result.kept else "BEYOND"
        beyond += not result.kept
        low, high = result.bounds
        print(
            f"{100 * result.share:6.2f}% ± {100 * result.margin:.2f}  {verdict:6s} "
            f"{100 * low:g}-{100 * high:g}%  {result.name}",
            flush=True,
        )
    print(f"{beyond} beyond their bounds")
    return 1 if beyond else 0


if __name__ == "__main__":
    sys.exit(main())
