import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from harness.metrics.prometheus.adapter import Series
from harness.metrics.prometheus.series import used_bounds
from harness.metrics.promql_math import histogram_quantile

BOUNDS = ["0.1", "0.2", "0.5", "1.0", "2.0", "5.0", "+Inf"]
VALUES = np.array([float(bound) for bound in BOUNDS])


def series(counts):
    return [
        Series({"le": bound}, np.array([1]), np.array([float(count)]))
        for bound, count in zip(BOUNDS, counts, strict=True)
    ]


def test_only_buckets_with_news_and_their_edges_are_read():
    before = series([5, 5, 5, 9, 9, 9, 9])
    after = series([5, 5, 7, 19, 19, 19, 19])
    assert used_bounds(before, after) == ["0.2", "0.5", "1.0", "5.0", "+Inf"]


def test_a_replica_that_began_in_the_range_began_at_zero():
    assert used_bounds([], series([0, 3, 3, 3, 3, 3, 3])) == ["0.1", "0.2", "5.0", "+Inf"]


def test_an_idle_replica_needs_only_the_end():
    same = series([5, 5, 5, 9, 9, 9, 9])
    assert used_bounds(same, same) == ["5.0", "+Inf"]


def test_after_a_reset_everything_has_to_be_read():
    assert used_bounds(series([5, 5, 5, 9, 9, 9, 9]), series([5, 5, 5, 8, 9, 9, 9])) == []


def test_without_an_infinite_bucket_everything_has_to_be_read():
    assert used_bounds([], series([0, 3, 3, 3, 3, 3, 3])[:-1]) == []
    assert used_bounds([], []) == []


counts = st.lists(st.integers(0, 5), min_size=len(BOUNDS), max_size=len(BOUNDS))


@given(st.lists(st.tuples(counts, counts), min_size=1, max_size=4), st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_quantiles_of_the_used_buckets_are_those_of_all(replicas, quantile):
    grown = [np.cumsum(growth).astype(float) for _, growth in replicas]
    before = np.sum([np.cumsum(base) for base, _ in replicas], axis=0)
    used = [BOUNDS.index(bound) for bound in used_bounds(series(before), series(before + np.sum(grown, axis=0)))]
    for cumulative in [*grown, np.sum(grown, axis=0)]:
        full = histogram_quantile(quantile, VALUES, cumulative)
        narrow = histogram_quantile(quantile, VALUES[used], cumulative[used])
        np.testing.assert_equal(narrow, full)
