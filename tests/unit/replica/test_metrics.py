"""What a scrape of a replica says, its own metrics and those of a workload, read back by Prometheus's own parser."""

import itertools
import threading
import time

import pytest
from prometheus_client.parser import text_string_to_metric_families

from harness.metrics.catalogue import LATENCY, PUBLISHED_COUNTERS, PUBLISHED_HISTOGRAMS, REQUESTS
from harness.metrics.scrape import ReplicaParser
from harness.replica.custom_metrics import BUCKET_BOUNDS_NS, Activity, Counter, Histogram
from harness.replica.metrics import RequestMetrics


def scraped(metrics):
    """Samples by name and, for a bucket, its bound."""
    return {
        (sample.name, float(sample.labels["le"])) if "le" in sample.labels else sample.name: sample.value
        for family in text_string_to_metric_families(metrics.render())
        for sample in family.samples
    }


def buckets(metrics):
    samples = scraped(metrics).items()
    return {name[1]: value for name, value in samples if name[0] == "inference_latency_seconds_bucket"}


def test_buckets_are_dense_from_a_tenth_of_a_millisecond_to_a_minute():
    assert (BUCKET_BOUNDS_NS[0], BUCKET_BOUNDS_NS[-1]) == (100_000, 60_000_000_000)
    widths = [high / low for low, high in itertools.pairwise(BUCKET_BOUNDS_NS)]
    assert min(widths) > 1.01
    assert max(widths) < 1.09
    assert len(BUCKET_BOUNDS_NS) < 200


def test_a_new_replica_has_counted_nothing():
    assert {value for name, value in scraped(RequestMetrics()).items() if name != "inference_info"} == {0}


@pytest.mark.parametrize("bound_ns", [BUCKET_BOUNDS_NS[0], BUCKET_BOUNDS_NS[77], BUCKET_BOUNDS_NS[-1]])
def test_a_bound_belongs_to_the_bucket_below_it_as_le_says(bound_ns):
    metrics = RequestMetrics()
    metrics.observe(bound_ns, 1)
    assert buckets(metrics)[bound_ns / 1e9] == 1
    assert sum(value for bound, value in buckets(metrics).items() if bound < bound_ns / 1e9) == 0
    metrics.observe(bound_ns + 1, 1)
    assert buckets(metrics)[bound_ns / 1e9] == 1
    assert buckets(metrics)[float("inf")] == 2


def test_counts_are_cumulative_and_sum_is_exact():
    metrics = RequestMetrics()
    latencies_ns = [50_000, 5_500_000, 5_500_001, 120_000_000_000, 999_999_999]
    for latency_ns in latencies_ns:
        metrics.observe(latency_ns, 4)
    values = list(buckets(metrics).values())
    assert values == sorted(values)
    assert values[0] == 1
    assert values[-2] == 4
    assert values[-1] == 5
    samples = scraped(metrics)
    assert samples["inference_latency_seconds_count"] == samples["inference_requests_total"] == 5
    assert samples["inference_inputs_total"] == 20
    assert "inference_latency_seconds_sum 121.011050000\n" in metrics.render()


def test_types_are_what_prometheus_expects():
    families = {family.name: family.type for family in text_string_to_metric_families(RequestMetrics().render())}
    assert families == {
        "inference_latency_seconds": "histogram",
        "inference_requests": "counter",
        "inference_inputs": "counter",
        "inference_queue_depth": "gauge",
        "inference_info": "gauge",
    }


def test_queue_depth_is_the_request_in_flight():
    metrics = RequestMetrics()
    metrics.in_flight = 1
    assert scraped(metrics)["inference_queue_depth"] == 1


def test_labels_are_escaped():
    text = 'a "quoted" \\ name\nin two lines'
    *_, info = text_string_to_metric_families(RequestMetrics({"workload": text}).render())
    assert info.samples[0].labels == {"workload": text}


@pytest.mark.parametrize(
    ("metrics", "more"),
    [(RequestMetrics(), (1,)), (Histogram("inference_client_ttft_seconds", "Time to first token."), ())],
)
def test_a_scrape_never_sees_half_an_observation(metrics, more):
    stop = threading.Event()

    def observe():
        while not stop.is_set():
            metrics.observe(1_000_000_000, *more)

    thread = threading.Thread(target=observe)
    thread.start()
    try:
        seen = [scraped(metrics) for _ in range(40)]
    finally:
        stop.set()
        thread.join()
    name = "inference_latency_seconds" if more else "inference_client_ttft_seconds"
    for samples in seen:
        counts = {samples[f"{name}_sum"], samples[f"{name}_count"], samples[f"{name}_bucket", float("inf")]}
        assert counts == {samples.get("inference_requests_total", samples[f"{name}_count"])}
    assert seen[-1][f"{name}_count"] > 0


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
    bounds_s = (BUCKET_BOUNDS_NS[2] / 1e9, BUCKET_BOUNDS_NS[3] / 1e9, 60.0, float("inf"))
    assert [samples[f"{name}_bucket", bound_s] for bound_s in bounds_s] == [1, 2, 2, 3]
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


def test_the_recorder_finds_all_that_the_catalogue_is_made_of():
    metrics = RequestMetrics()
    own = [Counter(name, "x") for name in sorted(PUBLISHED_COUNTERS) if name != "inference_inputs_total"]
    own += [Histogram(name, "x") for name in sorted(PUBLISHED_HISTOGRAMS)]
    metrics.publish(*own)
    own[-1].observe(2_000_000)
    sample = ReplicaParser().parse(metrics.render())
    assert set(sample.families) == {REQUESTS, LATENCY, *PUBLISHED_COUNTERS, *PUBLISHED_HISTOGRAMS}
    family = sample.families[max(PUBLISHED_HISTOGRAMS)]
    assert sample.counters[family.at : family.at + 2].tolist() == [0.002, 1]
    metrics.forget_warm_up()
    assert ReplicaParser().parse(metrics.render()).counters.sum() == 0
