import numpy as np
import pytest

from harness.metrics.rows import LatenessHistogram, MetricRow, RowStatistics


def test_quantiles_of_lateness_are_at_most_five_percent_too_high():
    generator = np.random.default_rng(1)
    lateness_s = generator.lognormal(-7, 1.5, 5000)
    histogram = LatenessHistogram()
    for value in lateness_s:
        histogram.add(float(value))
    for quantile in (0.5, 0.99):
        true = float(np.quantile(lateness_s, quantile, method="inverted_cdf"))
        assert true <= histogram.quantile(quantile) <= 1.05 * true
    assert histogram.summary(missed=3).max_s == lateness_s.max()
    assert histogram.summary(missed=3).missed == 3


def test_no_tick_no_lateness():
    summary = LatenessHistogram().summary(missed=0)
    assert (summary.ticks, summary.p50_s, summary.p99_s, summary.max_s) == (0, None, None, None)


@pytest.mark.parametrize("lateness_s", [-1.0, 0.0, 1e-9, 1e9])
def test_no_lateness_is_out_of_range(lateness_s):
    histogram = LatenessHistogram()
    histogram.add(lateness_s)
    assert histogram.quantile(0.99) == max(lateness_s, 0.0) or histogram.quantile(0.99) <= 1e4


def test_reasons_are_counted_and_bounded():
    statistics = RowStatistics()
    statistics.add([MetricRow("throughput", "all", 0.0, 1.0), MetricRow("throughput", "replica-0", 0.0, None, "gone")])
    statistics.add([MetricRow("throughput", "all", 1.0, None, f"reason {k}") for k in range(100)])
    summary = statistics.summaries(["throughput", "io_psi"])
    assert summary["throughput"].series == ["all"]
    assert (summary["throughput"].values, summary["throughput"].missing) == (1, 101)
    assert len(summary["throughput"].reasons) == 21
    assert sum(summary["throughput"].reasons.values()) == 101
    assert summary["io_psi"].values == summary["io_psi"].missing == 0
