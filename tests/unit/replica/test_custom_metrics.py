"""What a workload publishes of its own, read back by Prometheus's own parser."""

import threading
import time

import pytest
from prometheus_client.parser import text_string_to_metric_families

from harness.metrics.catalogue import PUBLISHED_COUNTERS, PUBLISHED_HISTOGRAMS
from harness.metrics.scrape import ReplicaParser
from harness.replica.custom_metrics import Activity, Counter, Histogram
from harness.replica.metrics import BUCKET_BOUNDS_NS, RequestMetrics


def scraped(family):
    """Samples by name and, for a bucket, its bound."""
    return {
        (sample.name, sample.labels["le"]) if sample.labels else sample.name: sample.value
        for one in text_string_to_metric_families(family.render())
        for sample in one.samples
    }


def test_a_counter_counts_and_forgets():
    counter = Counter("inference_client_output_tokens_total", "Tokens generated.")
    counter.add(64)
    counter.add(64)
    assert scraped(counter) == {"inference_client_output_tokens_total": 128}
    counter.reset()
    assert scraped(counter) == {"inference_client_output_tokens_total": 0}


def test_a_histogram_has_the_buckets_of_the_latencies_and_an_exact_sum():
    histogram = Histogram("inference_client_ttft_seconds", "Time to first token.")
    for duration_ns in (50_000, BUCKET_BOUNDS_NS[3], 120_000_000_001):
        histogram.observe(duration_ns)
    samples = scraped(histogram)
    name = "inference_client_ttft_seconds"
    assert samples[f"{name}_count"] == 3
    assert f"{name}_sum 120.{50_000 + BUCKET_BOUNDS_NS[3] + 1:09d}\n" in histogram.render()
    assert samples[f"{name}_bucket", repr(BUCKET_BOUNDS_NS[2] / 1e9)] == 1
    assert samples[f"{name}_bucket", repr(BUCKET_BOUNDS_NS[3] / 1e9)] == 2
    assert samples[f"{name}_bucket", "60.0"] == 2
    assert samples[f"{name}_bucket", "+Inf"] == 3
    histogram.reset()
    assert set(scraped(histogram).values()) == {0}


def test_times_go_on_between_two_changes():
    activity = Activity()
    activity.enter("active")
    time.sleep(0.02)
    during = activity.spent_ns()
    activity.enter("idle")
    after = activity.spent_ns()
    time.sleep(0.03)
    later = activity.spent_ns()
    assert 20e6 <= during["active"] <= after["active"] == later["active"]
    assert later["idle"] - after["idle"] >= 30e6
    samples = scraped(activity)
    assert samples["inference_active_seconds_total"] == pytest.approx(later["active"] / 1e9, abs=1e-9)
    assert samples["inference_idle_seconds_total"] >= later["idle"] / 1e9
    begun_ns = time.perf_counter_ns()
    activity.reset()
    assert activity.spent_ns()["active"] == 0
    assert activity.spent_ns()["idle"] <= time.perf_counter_ns() - begun_ns


def test_active_and_idle_are_all_of_the_time():
    earliest_ns = time.perf_counter_ns()
    activity = Activity()
    begun_ns = time.perf_counter_ns()
    for state in ("active", "idle") * 50:
        activity.enter(state)
        time.sleep(0.0002)
    asked_ns = time.perf_counter_ns()
    spent_ns = sum(activity.spent_ns().values())
    assert asked_ns - begun_ns <= spent_ns <= time.perf_counter_ns() - earliest_ns


def test_a_scrape_never_sees_half_an_observation():
    histogram = Histogram("inference_client_ttft_seconds", "Time to first token.")
    stop = threading.Event()

    def observe():
        while not stop.is_set():
            histogram.observe(1_000_000_000)

    thread = threading.Thread(target=observe)
    thread.start()
    try:
        seen = [scraped(histogram) for _ in range(20)]
    finally:
        stop.set()
        thread.join()
    name = "inference_client_ttft_seconds"
    assert seen[-1][f"{name}_count"] > 0
    assert all(
        samples[f"{name}_sum"] == samples[f"{name}_count"] == samples[f"{name}_bucket", "+Inf"] for samples in seen
    )


def test_the_recorder_finds_all_that_the_catalogue_is_made_of():
    metrics = RequestMetrics()
    own = [Counter(name, "x") for name in sorted(PUBLISHED_COUNTERS) if name != "inference_inputs_total"]
    own += [Histogram(name, "x") for name in sorted(PUBLISHED_HISTOGRAMS)]
    metrics.publish(*own)
    own[-1].observe(2_000_000)
    sample = ReplicaParser().parse(metrics.render().decode())
    assert set(sample.families) == PUBLISHED_COUNTERS | PUBLISHED_HISTOGRAMS
    family = sample.families[max(PUBLISHED_HISTOGRAMS)]
    assert sample.counters[family.at : family.at + 2].tolist() == [0.002, 1]
    metrics.forget_warm_up()
    assert ReplicaParser().parse(metrics.render().decode()).counters.sum() == 0
