"""How well a figure is known while it is recorded, on requests of known truth."""

import math

import numpy as np
import pytest

from harness.analysis.statistics.sequential_ci import (
    FIRST_SLICES,
    MAX_SLICES,
    Looks,
    Requests,
    half_width,
    relative_half_width,
)
from tests.benchmarks.stop_when_known import mean_coverage, percentile_coverage

ALL = ["throughput", "latency_p50_exact", "latency_p95_exact", "latency_p99_exact"]
MIN_S = 10.0


def closed_loop(latencies_s):
    """Ends of requests that follow each other without a pause."""
    return np.cumsum(latencies_s)


def known(latencies_s, *, until_s, metrics=ALL, pieces=1):
    requests = Requests(MIN_S / FIRST_SLICES)
    ends_s = closed_loop(latencies_s)
    moments = [until_s * (piece + 1) / pieces for piece in range(pieces)]
    taken = 0
    for moment_s in moments:
        here = int(np.searchsorted(ends_s, moment_s, side="right"))
        requests.add(ends_s[taken:here], latencies_s[taken:here], until_s=moment_s)
        taken = here
    return requests.estimates(metrics)


def test_figures_are_those_of_the_requests():
    latencies_s = np.random.default_rng(1).gamma(50, 0.0002, 10_000)

    found = known(latencies_s, until_s=60)

    ended = latencies_s[closed_loop(latencies_s) <= 60]
    assert found["throughput"].mean == pytest.approx(len(ended) / 60, rel=0.001)
    for name, quantile in (("latency_p50_exact", 0.5), ("latency_p95_exact", 0.95), ("latency_p99_exact", 0.99)):
        assert found[name].mean == pytest.approx(np.quantile(ended, quantile), rel=0.005)
        assert found[name].low < found[name].mean < found[name].high
    assert relative_half_width(found["latency_p50_exact"]) < relative_half_width(found["latency_p99_exact"]) < 0.03


def test_requests_taken_in_pieces_and_joined_slices_say_the_same():
    latencies_s = np.random.default_rng(2).gamma(50, 0.0002, 20_000)

    whole = known(latencies_s, until_s=100)
    pieces = known(latencies_s, until_s=100, pieces=37)

    for name in ALL:
        assert pieces[name].mean == pytest.approx(whole[name].mean)
        assert pieces[name].half_width == pytest.approx(whole[name].half_width)
    assert FIRST_SLICES // 2 < whole["throughput"].n < MAX_SLICES


def test_few_long_requests_do_not_round_the_rate():
    """Nine requests in ten seconds would be 0.9 +- 1 per slice when counted whole."""
    found = known(np.full(400, 1.1), until_s=400, metrics=["throughput"])

    assert found["throughput"].mean == pytest.approx(1 / 1.1, rel=0.01)
    assert relative_half_width(found["throughput"]) < 0.001


def test_a_rate_that_is_counted_in_whole_requests_is_rounded():
    ends_s = closed_loop(np.full(70, 0.1))
    found = {}
    for counters in (0, 8):
        requests = Requests(5 / FIRST_SLICES, counters=counters)
        requests.add(ends_s, np.full(70, 0.1), until_s=7)
        found[counters] = requests.estimates(["throughput"])["throughput"]

    assert found[0].half_width == pytest.approx(0, abs=1e-9)
    assert found[8].mean == found[0].mean
    # Eight counters, each wrong by the difference of two uniform shares of a request, of variance 1/6.
    shares = np.random.default_rng(3).random((2, 8, 100_000))
    assert found[8].half_width * 7 == pytest.approx(1.96 * np.std((shares[0] - shares[1]).sum(axis=0)), rel=0.02)


def test_a_percentile_that_would_not_be_reported_is_not_known():
    alike = np.full(99, 0.1)

    assert known(alike, until_s=10, metrics=["latency_p99_exact"])["latency_p99_exact"].half_width is None
    assert known(alike, until_s=10, metrics=["latency_p50_exact"])["latency_p50_exact"].half_width < 0.001


def test_requests_that_are_all_alike_are_known_at_once():
    found = known(np.full(5000, 0.01), until_s=MIN_S, metrics=["latency_p50_exact", "latency_p99_exact"])

    assert all(relative_half_width(estimate) < 0.003 for estimate in found.values())


def test_without_enough_in_the_tail_there_is_no_interval_and_a_reason():
    latencies_s = np.random.default_rng(3).gamma(50, 0.001, 1000)  # twenty a second

    found = known(latencies_s, until_s=MIN_S, metrics=["latency_p50_exact", "latency_p99_exact"])

    assert found["latency_p50_exact"].high is not None
    assert found["latency_p99_exact"].high is None
    assert "too few for an interval of p99" in found["latency_p99_exact"].note
    assert relative_half_width(found["latency_p99_exact"]) == math.inf


def test_nothing_is_known_without_requests():
    found = known(np.full(10, 0.5), until_s=2, metrics=["throughput"])

    assert found["throughput"].half_width is None
    assert "too few" in found["throughput"].note


def test_a_drift_is_not_narrow():
    """A machine that grows slower by a tenth has no steady rate to know within 2%."""
    drifting = 0.01 * np.linspace(1, 1.1, 3000)

    found = known(drifting, until_s=MIN_S * 3, metrics=["throughput", "latency_p50_exact"])

    assert all(relative_half_width(estimate) > 0.02 for estimate in found.values())


def test_neighbours_that_resemble_each_other_widen_the_interval():
    random = np.random.default_rng(4)
    noise = random.standard_normal(60)
    walk = np.convolve(random.standard_normal(75), np.ones(16) / 4, mode="valid")[:60]

    assert half_width(walk / walk.std()) > 3 * half_width(noise / noise.std())


def test_one_narrow_look_is_not_believed():
    looks = Looks(MIN_S, ["throughput"], 0.02)
    requests = Requests(MIN_S / FIRST_SLICES)
    latencies_s = np.full(2000, 0.01)
    requests.add(closed_loop(latencies_s), latencies_s, until_s=20)

    assert not looks.due(MIN_S - 0.1)
    assert looks.due(MIN_S)
    assert not looks.known(requests, 20)
    assert not looks.due(21.9)
    assert looks.known(requests, 22)


@pytest.mark.parametrize(("correlation", "noise"), [(0.0, 1.0), (0.3, 1.0), (0.6, 1.0)])
def test_the_interval_at_the_stop_covers_the_mean(correlation, noise):
    """Nominal 95%; 200 series allow for 4.6% of chance. The benchmark does the same with more of everything."""
    covered, _ = mean_coverage(np.random.default_rng(5), 200, correlation, noise)

    assert 0.904 < covered < 0.996


def test_the_interval_at_the_stop_covers_the_percentile():
    covered, _ = percentile_coverage(np.random.default_rng(6), 40, "latency_p99_exact", 0.99, 0.0)

    assert covered > 0.84
