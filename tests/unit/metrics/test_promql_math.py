import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.metrics.promql_math import CounterWindow, extrapolated_rate, histogram_quantile, to_ms

INF = math.inf


def rate(samples: list[tuple[int, float]], start_ms: int, end_ms: int) -> float:
    times_ms = [time_ms for time_ms, _ in samples]
    values = np.array([[value] for _, value in samples])
    result = extrapolated_rate(times_ms, values, start_ms, end_ms)
    return float(result[0])


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        ([(1000, 100), (2000, 110), (3000, 120), (4000, 130)], 10.0),
        # A reset: 100 to 110 is 10, then from zero to 5 and on to 15: 25 in 3 s, extrapolated by the step before the first sample.
        ([(1000, 100), (2000, 110), (3000, 5), (4000, 15)], 25 * (4 / 3) / 4),
        # Never below zero: 1 at the first sample, 10 a second: it was zero 0.1 s before, not a whole step before.
        ([(1000, 1), (2000, 11), (3000, 21), (4000, 31)], 30 * (3.1 / 3) / 4),
        # The window's last two scrapes are missing: 1 s of samples, 1 s before them, half an interval after.
        ([(1000, 100), (2000, 110)], 10 * 2.5 / 4),
    ],
)
def test_a_rate_is_extrapolated_to_the_windows_edges(samples, expected):
    assert rate(samples, 0, 4000) == pytest.approx(expected)


@pytest.mark.parametrize("phase_ms", [1, 250, 700, 999])
def test_the_phase_of_the_scrapes_does_not_matter(phase_ms):
    samples = [(phase_ms + 1000 * k, 1000.0 + 7 * k) for k in range(4)]
    assert rate(samples, 0, 4000) == pytest.approx(7.0, rel=1e-12)


def test_one_sample_has_no_rate():
    assert extrapolated_rate([1000], np.array([[5.0]]), 0, 4000) is None


def test_the_window_is_left_open_and_slides():
    window = CounterWindow(2000)
    for k in range(5):
        window.add(1000 * k, np.array([10.0 * k * k]))
    # (2000, 4000] holds 3000 and 4000: 160 - 90.
    assert window.rate(4000) == pytest.approx(70.0)


@given(st.lists(st.integers(1, 50), min_size=6, max_size=40), st.integers(2, 5))
def test_the_window_agrees_with_the_plain_formula(increments, steps):
    window = CounterWindow(1000 * steps)
    values = np.cumsum([1000, *increments]).astype(float)
    for k, value in enumerate(values):
        window.add(1000 * k, np.array([value]))
    expected = (values[-1] - values[-steps]) / (steps - 1)
    found = window.rate(1000 * (len(values) - 1))
    assert found[0] == pytest.approx(expected)


BOUNDS = np.array([1.0, 2.0, 4.0, INF])


@pytest.mark.parametrize(
    ("quantile", "cumulative", "expected"),
    [
        (0.5, [10, 20, 40, 40], 2.0),
        (0.25, [10, 20, 40, 40], 1.0),
        (0.75, [10, 20, 40, 40], 3.0),
        (0.05, [10, 20, 40, 40], 0.2),
        (0.99, [10, 20, 40, 80], 4.0),
        (0.5, [0, 0, 8, 8], 3.0),
    ],
)
def test_quantiles_are_linear_inside_a_bucket(quantile, cumulative, expected):
    assert histogram_quantile(quantile, BOUNDS, np.array(cumulative, dtype=float)) == pytest.approx(expected)


def test_the_infinite_bucket_gives_the_highest_finite_bound():
    assert histogram_quantile(0.5, BOUNDS, np.array([0.0, 0, 0, 9])) == 4.0


@pytest.mark.parametrize("bounds", [BOUNDS, np.array([INF])])
def test_no_observation_no_quantile(bounds):
    assert math.isnan(histogram_quantile(0.5, bounds, np.zeros(len(bounds))))


def test_buckets_torn_by_a_scrape_are_made_monotonic():
    assert histogram_quantile(0.5, BOUNDS, np.array([10.0, 9.0, 20.0, 20.0])) == pytest.approx(1.0)


@given(st.lists(st.floats(0.001, 3.99), min_size=1, max_size=200), st.sampled_from([0.5, 0.95, 0.99]))
def test_a_quantile_lies_in_the_bucket_of_the_true_one(latencies, quantile):
    data = np.sort(latencies)
    cumulative = np.searchsorted(data, BOUNDS, side="right").astype(float)
    rank = math.ceil(quantile * len(data) - 1e-9)
    true = data[max(rank, 1) - 1]
    upper = BOUNDS[np.searchsorted(BOUNDS, true, side="left")]
    lower = {1.0: 0.0, 2.0: 1.0, 4.0: 2.0}[upper]
    assert lower <= histogram_quantile(quantile, BOUNDS, cumulative) <= upper


def test_milliseconds_round_instead_of_cutting():
    assert to_ms(1795237221.3) == 1795237221300
