"""Our own distributions and fits against scipy's, over all that the statistics ask of them."""

import numpy as np
import pytest
from scipy import optimize, special

from harness.analysis.statistics import distributions, scaling_models
from harness.analysis.statistics.scaling_models import LATENCY_LAWS, THROUGHPUT_LAWS
from tests.support.cases import every

FREEDOMS = [1, 1.3, 2, 2.7, 3, 4, 6.5, 10, 19, 30, 100, 999, 12345.6]


@every(FREEDOMS)
def test_student_s_t_is_that_of_scipy(freedom):
    for probability in (0.6, 0.9, 0.975, 0.995, 0.9999):
        expected = special.stdtrit(freedom, probability)
        assert distributions.student_quantile(freedom, probability) == pytest.approx(expected, rel=1e-9)
    for many in (1e6 * freedom, np.inf):
        assert distributions.student_quantile(many, 0.975) == pytest.approx(special.stdtrit(many, 0.975), rel=1e-8)
    for t in (-60.0, -12.0, -3.0, -1.0, -1e-3, 0.0, 0.5, 2.0, 9.0):
        expected = special.stdtr(freedom, t)
        assert distributions.student_cdf(freedom, t) == pytest.approx(expected, rel=1e-8, abs=1e-290)


@every([(1, 2), (2, 6), (1, 1), (3, 18), (5, 400), (40, 3)])
def test_the_tail_of_f_is_that_of_scipy(above, below):
    for value in (0.0, 1e-6, 0.3, 1.0, 4.2, 60.0, 5e4):
        expected = special.fdtrc(above, below, value)
        assert distributions.f_tail(above, below, value) == pytest.approx(expected, rel=1e-9)


@every([*THROUGHPUT_LAWS, *LATENCY_LAWS], lambda law: law.name)
def test_a_fit_misses_by_no_more_than_scipy_s(law):
    source = np.random.default_rng(5)
    counts = np.repeat([1.0, 2.0, 3.0, 5.0, 8.0], 3)
    highest = [1.0 if name in law.bounded else np.inf for name in law.parameters]
    for truth in (counts, np.minimum(counts, 3.2), counts / (1 + 0.2 * (counts - 1)), 1 + 0.3 * counts, counts**0):
        figures = 100 * truth * source.lognormal(0, 0.02, size=len(counts))
        runs = {int(count): figures[counts == count].tolist() for count in np.unique(counts)}

        def misses(theta, figures=figures):
            return np.log(law.curve(counts, theta)) - np.log(figures)

        costs, expected = [], []
        for start in scaling_models._starts(law, runs, sorted(runs)):
            costs.append(distributions.least_squares(misses, start, highest)[2])
            expected.append(optimize.least_squares(misses, start, bounds=(0, highest), x_scale=start).cost)

        assert min(costs) <= min(expected) * (1 + 1e-6)
