from __future__ import annotations

import math
from dataclasses import replace

import pytest

from harness.analysis.format import number, percent, quantity, with_interval
from harness.analysis.pages.table import figure_entry, ratio_entry
from harness.analysis.statistics import Estimate
from harness.errors import clipped


def estimate(mean: float, half: float | None) -> Estimate:
    if half is None:
        return Estimate(mean, None, None, 1, None)
    return Estimate(mean, mean - half, mean + half, 3, 0.1)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (1234567, "1,234,567"),
        (837.4, "837"),
        (12.345, "12.3"),
        (1.0, "1.00"),
        (9.996, "10.0"),
        (0.9997, "1.00"),
        (0.01234, "0.0123"),
        (-5.5, "-5.50"),
    ],
)
def test_three_significant_digits(value: float, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0057, "s", "5.70 ms"),
        (2.5, "s", "2.50 s"),
        (3e-5, "s", "30.0 µs"),
        (3.34e9, "bytes", "3.11 GiB"),
        (512, "bytes", "512 B"),
        (0.25, "J", "250 mJ"),
        (173, "requests/s", "173 requests/s"),
    ],
)
def test_units_that_fit(value: float, unit: str, text: str) -> None:
    assert quantity(value, unit) == text


@pytest.mark.parametrize(
    ("mean", "half", "text"),
    [
        (0.0057, 0.00012, "5.70 ± 0.12 ms"),
        (0.0057, None, "5.70 ms"),
        (0.0057, 0.0, "5.70 ± 0 ms"),
        (0.0057, 1e-7, "5.70 ± <0.01 ms"),
        (0.098, 0.04, "98.0 ± 40.0 ms"),
        (223, 158, "223 (65.0 to 381) s"),
        (223, 910, "223 (0 to 1,133) s"),
        (0.0, 0.0, "0 ± 0 µs"),
    ],
)
def test_interval_shares_decimals_and_unit(mean: float, half: float | None, text: str) -> None:
    assert with_interval(estimate(mean, half), "s") == text


@pytest.mark.parametrize(("low", "high", "said"), [(1.97, 2.68, "1.97 to 2.68"), (0.1, 80.0, "interval too wide")])
def test_a_ratio_known_to_a_factor_of_ten_at_best_is_not_decided(low: float, high: float, said: str) -> None:
    ratio = Estimate(2.3, low, high, 2, None)
    assert ratio_entry(ratio).small == (said,)
    assert (percent(ratio)[1] == said) == (said == "interval too wide")


def test_a_difference_reaches_below_nothing_and_a_quantity_does_not() -> None:
    wide = Estimate(-1e-5, -8e-5, 6e-5, 3, None)
    assert figure_entry(wide, "s", least=-math.inf).small == ("-80.0 to 60.0",)
    assert figure_entry(replace(wide, mean=1e-5), "s").small == ("0 to 60.0",)


def test_long_stories_are_cut_to_one_line() -> None:
    assert clipped("a\n b") == "a b"
    assert clipped("x" * 400) == "x" * 297 + "..."
