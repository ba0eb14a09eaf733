"""When requests are meant to be sent."""

import itertools

import numpy as np
import pytest
from scipy import stats

from harness.traffic.arrivals import NS_PER_S, of_targets


def take(arrivals, number):
    found = list(itertools.islice(arrivals, number))
    return np.array([at for at, _ in found]), np.array([target for _, target in found])


def test_poisson_arrivals_have_exponential_gaps_of_the_rate_at_every_target():
    at_ns, targets = take(of_targets(50.0, "poisson", 3, seed=7), 30_000)

    for target in range(3):
        gaps_s = np.diff(at_ns[targets == target]) / NS_PER_S
        assert gaps_s.mean() == pytest.approx(1 / 50, rel=0.04)
        assert stats.kstest(gaps_s, "expon", args=(0, 1 / 50)).pvalue > 0.001


def test_poisson_arrivals_are_those_of_the_seed():
    same = [take(of_targets(10.0, "poisson", 2, seed), 100) for seed in (1, 1, 2)]

    assert (same[0][0] == same[1][0]).all()
    assert (same[0][1] == same[1][1]).all()
    assert (same[0][0] != same[2][0]).any()


def test_constant_arrivals_are_evenly_spaced_and_take_turns():
    at_ns, targets = take(of_targets(100.0, "constant", 2, seed=0), 1000)

    assert np.abs(np.diff(at_ns) - NS_PER_S / 200).max() <= 1
    assert at_ns[-1] == 5 * NS_PER_S
    assert targets[:4].tolist() == [0, 1, 0, 1]
