from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.signal import lfilter

from harness.analysis.campaign import LoadState, load_state
from harness.analysis.statistics import (
    NO_SPREAD,
    batch_means,
    holm,
    jain,
    needed_for,
    paired,
    percentile,
    ratio,
    runs_needed,
    t_interval,
    unpaired,
)


def test_the_t_interval_of_three_runs() -> None:
    estimate = t_interval([10.0, 11.0, 12.0])
    assert estimate.mean == 11
    assert estimate.half_width == pytest.approx(4.302653 / math.sqrt(3), rel=1e-6)
    assert estimate.cv == pytest.approx(1 / 11)


def test_one_run_has_no_interval_and_none_is_an_error() -> None:
    estimate = t_interval([5.0])
    assert (estimate.mean, estimate.low, estimate.high, estimate.cv) == (5.0, None, None, None)
    assert "no interval" in estimate.note
    with pytest.raises(ValueError, match="at least one"):
        t_interval([])


def autocorrelated(random: np.random.Generator, rows: int, correlation: float) -> list[float]:
    """First-order autoregressive rows around 10, in their steady state from the first."""
    shocks = random.normal(size=rows)
    shocks[0] /= math.sqrt(1 - correlation**2)
    return (10 + lfilter([1], [1, -correlation], shocks)).tolist()


@pytest.mark.parametrize(("rows", "correlation"), [(721, 0.8), (121, 0.8), (61, 0.5), (721, 0.0)])
def test_batch_means_cover_an_autocorrelated_series(rows: int, correlation: float) -> None:
    random = np.random.default_rng(11)
    covered = naive_covered = 0
    for _ in range(1000):
        series = autocorrelated(random, rows, correlation)
        batch, naive = batch_means(series), t_interval(series)
        covered += batch.low <= 10 <= batch.high
        naive_covered += naive.low <= 10 <= naive.high
    assert 930 <= covered <= 970
    assert naive_covered < 850 or not correlation  # The test can tell a bad interval from a good one.


def test_batch_means_say_when_the_run_is_too_short_or_drifts() -> None:
    short = batch_means([1.0] * 19)
    assert short.low is None
    assert "too few" in short.note
    drifting = batch_means([float(value) for value in range(721)])
    assert "wider" in drifting.note
    assert batch_means([5.0] * 40).half_width == 0
    with pytest.raises(ValueError, match="at least one"):
        batch_means([])


@pytest.mark.parametrize(("quantile", "needed"), [(0.5, 2), (0.9, 10), (0.95, 20), (0.99, 100), (0.999, 1000)])
def test_a_percentile_takes_enough_requests(quantile: float, needed: int) -> None:
    assert needed_for(quantile) == needed
    values = np.arange(1, needed + 1, dtype=float)
    assert percentile(values, quantile) in values
    with pytest.raises(ValueError, match=f"at least {needed} requests, there are fewer"):
        percentile(values[1:], quantile)


def test_fairness() -> None:
    assert jain([5, 5, 5]) == pytest.approx(1)
    assert jain([9, 0, 0]) == pytest.approx(1 / 3)
    with pytest.raises(ValueError, match="nothing was served"):
        jain([0, 0])


@settings(max_examples=50)
@given(st.lists(st.floats(0.001, 1e6), min_size=1, max_size=8))
def test_fairness_stays_within_its_bounds(values: list[float]) -> None:
    assert 1 / len(values) - 1e-9 <= jain(values) <= 1 + 1e-9


def test_more_runs_than_planned_narrow_a_ratio_by_the_spread_of_the_first_ones() -> None:
    bottom, first = [10.0, 10.4, 9.6], [10.0, 10.6, 9.4]
    planned, more = ratio(first, bottom), ratio([*first, 10.0, 10.0, 10.0], bottom, first=3)
    assert planned.low < more.low
    assert ratio(first, bottom, first=3) == planned
    wide = ratio([*first, 20.0, 1.0, 9.0], bottom, first=3)
    assert wide.low < planned.low  # a later spread that is larger counts
    assert ratio([*first, 10.0], bottom, first=1).note == "one run has no interval"


def test_the_runs_needed_follow_from_the_spreads_alone() -> None:
    bottom, first = [100.0, 101.0, 99.0, 100.0], [100.0, 104.0, 96.0, 100.0]
    needed = runs_needed(first, bottom, 0.05, 50)
    assert 4 < needed < 50
    assert runs_needed([2 * figure for figure in first], bottom, 0.05, 50) == needed
    assert runs_needed(first, bottom, 0.5, 50) == 4
    assert runs_needed(first, bottom, 0.05, 4) is None
    assert runs_needed(first, bottom, 0.0001, 50) is None
    assert runs_needed([100.0], bottom, 0.1, 50) is None
    likely = ratio(first, bottom)
    assert runs_needed(first, bottom, likely.high - 1 + 1e-6, 4) == 4  # it could do, and is not likely to


def test_a_ratio_carries_both_spreads() -> None:
    estimate = ratio([20.0, 21.0, 22.0], [10.0, 10.5, 11.0])
    assert estimate.mean == pytest.approx(2)
    assert estimate.low < 2 < estimate.high
    assert estimate.low * estimate.high == pytest.approx(4)
    assert ratio([20.0], [10.0, 11.0]).low is None
    assert ratio([20.0, 20.0], [10.0, 10.0]).half_width is None
    with pytest.raises(ValueError, match="positive"):
        ratio([1.0], [0.0])


UNEVEN = ([598.5, 684.0, 618.9, 745.9, 848.6], [391.5, 412.5, 616.9, 652.5, 580.3])


@pytest.mark.parametrize("arms", [UNEVEN, tuple(reversed(UNEVEN)), ([1.0, 1.1, 1.3], [1.4, 1.5, 1.45])])
@pytest.mark.parametrize("test", [unpaired, paired])
def test_a_p_below_5_percent_is_an_interval_that_leaves_1_out(test: Any, arms: tuple[list[float], list[float]]) -> None:
    found = test(*arms)
    ratio = found.estimate()
    assert (found.p < 0.05) == (not ratio.low <= 1 <= ratio.high)
    assert found.estimate(found.p / 0.05).low == pytest.approx(1) or found.estimate(
        found.p / 0.05
    ).high == pytest.approx(1)


def test_u_shaped_figures_that_a_plain_welch_calls_different_are_not() -> None:
    assert stats.ttest_ind(*UNEVEN, equal_var=False).pvalue < 0.05
    assert unpaired(*UNEVEN).p == pytest.approx(0.056, abs=0.002)


@pytest.mark.parametrize("test", [unpaired, paired])
def test_runs_without_spread_tell_nothing(test: Any) -> None:
    for a, b in ([1.0, 1.0], [1.0, 1.0]), ([1000.0] * 5, [1001.0] * 5), ([0.3, 0.1 + 0.2], [0.4, 0.4]):
        assert (test(a, b).p, test(a, b).note) == (None, NO_SPREAD)  # The arithmetic of a rate is no spread.
    p = unpaired([100.0, 100.0], [101.0, 102.0]).p  # Equal runs have the spread of rounding.
    assert 0.05 < p < 1


@pytest.mark.parametrize(("few", "many", "noisier"), [(2, 10, 1), (2, 10, 3), (3, 11, 1), (3, 11, 3), (3, 5, 3)])
def test_arms_of_unlike_length_are_rarely_called_different_in_vain(few: int, many: int, noisier: float) -> None:
    random = np.random.default_rng(1)
    ps = [
        unpaired(random.normal(100, noisier, few).tolist(), random.normal(100, 1, many).tolist()).p for _ in range(2000)
    ]
    assert sum(p is not None and p < 0.05 for p in ps) <= 0.07 * len(ps)


def test_holm_corrects_in_place() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([]) == []
    assert holm([0.9, 0.8]) == pytest.approx([1.0, 1.0])


@pytest.mark.parametrize(
    ("percent", "state"),
    [
        (0, "empty"),
        (9.99, "empty"),
        (10, "modest"),
        (69.9, "modest"),
        (70, "high"),
        (90, "high"),
        (90.1, "critical"),
        (100, "critical"),
    ],
)
def test_load_states_have_no_gaps(percent: float, state: str) -> None:
    assert load_state(percent) is LoadState(state)
