"""What a scrape of a replica says, read back by Prometheus's own parser."""

import itertools
import threading

import pytest
from prometheus_client.parser import text_string_to_metric_families

from harness.replica.metrics import BUCKET_BOUNDS_NS, RequestMetrics


def scraped(metrics: RequestMetrics) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    samples: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(metrics.render().decode()):
        for sample in family.samples:
            samples.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return samples


def buckets(metrics: RequestMetrics) -> dict[float, float]:
    return {
        float(dict(labels)["le"]): value
        for labels, value in scraped(metrics)["inference_latency_seconds_bucket"].items()
    }


def test_buckets_are_dense_from_a_tenth_of_a_millisecond_to_a_minute():
    assert (BUCKET_BOUNDS_NS[0], BUCKET_BOUNDS_NS[-1]) == (100_000, 60_000_000_000)
    widths = [high / low for low, high in itertools.pairwise(BUCKET_BOUNDS_NS)]
    assert min(widths) > 1.01
    assert max(widths) < 1.09
    assert len(BUCKET_BOUNDS_NS) < 200


def test_a_new_replica_has_counted_nothing():
    samples = scraped(RequestMetrics())
    assert samples["inference_requests_total"] == {(): 0}
    assert samples["inference_latency_seconds_count"] == {(): 0}
    assert samples["inference_latency_seconds_sum"] == {(): 0}
    assert samples["inference_queue_depth"] == {(): 0}


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
    assert samples["inference_latency_seconds_count"] == {(): 5}
    assert samples["inference_requests_total"] == {(): 5}
    assert samples["inference_inputs_total"] == {(): 20}
    assert b"inference_latency_seconds_sum 121.011050000\n" in metrics.render()


def test_types_are_what_prometheus_expects():
    families = {
        family.name: family.type for family in text_string_to_metric_families(RequestMetrics().render().decode())
    }
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
    assert scraped(metrics)["inference_queue_depth"] == {(): 1}


def test_labels_are_escaped():
    metrics = RequestMetrics({"workload": 'a "quoted" \\ name\nin two lines'})
    assert list(scraped(metrics)["inference_info"]) == [(("workload", 'a "quoted" \\ name\nin two lines'),)]


def test_a_scrape_never_sees_half_a_request():
    metrics = RequestMetrics()
    stop = threading.Event()

    def serve():
        while not stop.is_set():
            metrics.observe(1_000_000_000, 1)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        for _ in range(100):
            samples = scraped(metrics)
            count = samples["inference_latency_seconds_count"][()]
            assert samples["inference_latency_seconds_sum"][()] == count
            assert samples["inference_latency_seconds_bucket"][(("le", "+Inf"),)] == count
            assert samples["inference_requests_total"][()] == count
    finally:
        stop.set()
        thread.join()
    assert count > 0
