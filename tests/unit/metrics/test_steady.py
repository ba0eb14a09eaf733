import numpy as np
import pytest

from harness.metrics.quality import steady_state


def test_a_constant_is_steady_from_the_start():
    state = steady_state([5.0] * 100)
    assert (state.judged, state.steady, state.from_row) == (True, True, 0)
    assert state.means == (5.0,) * 10


def test_noise_within_ten_percent_is_steady():
    values = 100 + np.random.default_rng(3).normal(0, 5, 721)
    assert steady_state(values).from_row == 0


def test_a_warm_up_is_left_behind():
    state = steady_state([10.0] * 30 + [100.0] * 70)
    assert (state.steady, state.from_row) == (True, 30)


@pytest.mark.parametrize("values", [np.linspace(1, 100, 100), [100.0] * 90 + [50.0] * 10, [0.0] * 100])
def test_drift_a_late_break_and_nothing_at_all_are_not_steady(values):
    state = steady_state(values)
    assert (state.judged, state.steady, state.from_row) == (True, False, None)


@pytest.mark.parametrize("values", [[], [5.0] * 8, [np.nan] * 100])
def test_too_little_cannot_be_judged(values):
    assert not steady_state(values).judged


def test_nine_rows_are_three_windows():
    assert steady_state([5.0] * 9).means == (5.0,) * 3


def test_missing_values_do_not_count_as_zero():
    values = [100.0] * 100
    values[3] = values[55] = float("nan")
    assert steady_state(values).from_row == 0
