from __future__ import annotations

import numpy as np
import pytest

from harness.analysis.statistics.scaling_models import LATENCY_LAWS, THROUGHPUT_LAWS, knee, most_within, scaling_law


def runs(values: dict[int, float], spread: float = 0.01, repeats: int = 3) -> dict[int, list[float]]:
    """Repeats around each value that scatter by ``spread``, the same on both sides."""
    steps = np.linspace(-spread, spread, repeats) if repeats > 1 else [0.0]
    return {count: [value * (1 + step) for step in steps] for count, value in values.items()}


def test_growth_without_end_is_linear() -> None:
    found = scaling_law(runs({1: 100, 3: 300, 8: 800}))
    assert found.best.law.name == "linear"
    rate = found.best.parameters["r"]
    assert rate.low < 100 < rate.high
    assert found.best.at(4) == pytest.approx(400, rel=0.01)


def test_a_ceiling_is_a_bottleneck_with_its_knee() -> None:
    found = scaling_law(runs({1: 370, 3: 850, 8: 850}))
    assert found.best.law.name == "bottleneck"
    assert found.best.parameters["C"].mean == pytest.approx(850, rel=0.01)
    assert knee(found.best) == pytest.approx(850 / 370, rel=0.02)


@pytest.mark.parametrize(("name", "serial", "crosstalk"), [("Amdahl", 0.3, 0.0), ("universal scalability", 0.05, 0.02)])
def test_serial_work_and_crosstalk_are_told_apart(name: str, serial: float, crosstalk: float) -> None:
    truth = {n: 100 * n / (1 + serial * (n - 1) + crosstalk * n * (n - 1)) for n in (1, 2, 4, 8, 16)}
    found = scaling_law(runs(truth))
    assert found.best.law.name == name
    assert found.best.parameters["s"].mean == pytest.approx(serial, rel=0.2)
    assert knee(found.best) is None


def test_what_follows_no_law_is_said_with_the_nearest() -> None:
    found = scaling_law(runs({1: 100, 3: 50, 8: 100}))
    assert found.best is None
    assert found.nearest.p < 0.05
    assert found.nearest.off > 0.1
    assert "none fits" in found.reason
    assert "universal scalability" in found.advice


def test_nothing_is_claimed_without_repeats_or_counts() -> None:
    once = scaling_law(runs({1: 100, 3: 300, 8: 800}, repeats=1))
    assert once.best is None
    assert once.nearest is None
    assert "repeats" in once.advice
    alone = scaling_law(runs({1: 100}))
    assert alone.best is None
    assert "two replica counts" in alone.reason


def test_a_law_never_claims_more_parameters_than_counts_can_tell() -> None:
    nearest = scaling_law(runs({1: 100, 3: 240})).nearest
    assert nearest is not None
    assert len(nearest.law.parameters) < 2


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("constant", {1: 5.0, 3: 5.0, 8: 5.0}),
        ("proportional", {1: 5.0, 3: 15.0, 8: 40.0}),
        ("queue behind a bottleneck", {1: 5.0, 3: 6.0, 8: 16.0}),
        ("affine", {1: 5.0, 3: 9.0, 8: 19.0}),
    ],
)
def test_latency_has_laws_of_its_own(name: str, values: dict[int, float]) -> None:
    found = scaling_law(runs(values), LATENCY_LAWS)
    assert found.best.law.name == name


def test_the_most_within_a_limit_is_the_last_count_that_keeps_it() -> None:
    found = scaling_law(runs({1: 5.0, 3: 15.0, 8: 40.0}), LATENCY_LAWS)
    assert found.best is not None
    assert most_within(found.best, 27.0, highest=8) == 5
    assert most_within(found.best, 4.0, highest=8) == 0
    assert most_within(found.best, 1e6, highest=8) == 8


def test_runs_without_spread_fit_exactly_or_not_at_all() -> None:
    exact = scaling_law(runs({1: 100, 3: 300, 8: 800}, spread=0.0), THROUGHPUT_LAWS)
    assert exact.best.law.name == "linear"
    assert scaling_law(runs({1: 100, 3: 200, 8: 210}, spread=0.0)).best is None


@pytest.mark.parametrize("spread", [0.001, 0.01])
def test_turns_that_cost_are_a_bottleneck_with_a_switching_cost(spread: float) -> None:
    found = scaling_law(runs({1: 65.5, 2: 61.6, 4: 61.5, 8: 61.5}, spread=spread))
    assert found.best.law.name == "bottleneck with a switching cost"
    assert found.best.parameters["w"].mean == pytest.approx(65.5 / 61.53 - 1, rel=0.02)
    assert knee(found.best) is None


def test_turns_that_cost_nothing_are_a_bottleneck() -> None:
    found = scaling_law(runs({1: 584, 2: 583, 4: 584, 8: 583}))
    assert found.best.law.name == "bottleneck"
