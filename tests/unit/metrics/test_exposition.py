import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from harness.errors import MetricsError
from harness.metrics.catalogue import LATENCY, REQUESTS
from harness.metrics.scrape import ReplicaParser
from harness.replica.custom_metrics import BUCKET_BOUNDS_NS
from harness.replica.metrics import RequestMetrics
from harness.traffic.exposition import read, split

PLAIN = """# HELP inference_latency_seconds x
# TYPE inference_latency_seconds histogram
inference_latency_seconds_bucket{le="0.1"} 3
inference_latency_seconds_bucket{le="0.5"} 5
inference_latency_seconds_bucket{le="+Inf"} 6
inference_latency_seconds_sum 1.5
inference_latency_seconds_count 6
inference_requests_total 6
inference_queue_depth 1
inference_info{workload="a b",precision="fp32"} 1
"""


def of(sample, name):
    """What a family's counters are, and its bounds."""
    family = sample.families[name]
    return sample.counters[family.at : family.end].tolist(), list(family.bounds)


def test_reads_a_replica():
    sample = ReplicaParser().parse(PLAIN)
    assert of(sample, REQUESTS) == ([6], [])
    assert of(sample, LATENCY) == ([1.5, 6, 3, 5, 6], [0.1, 0.5, math.inf])


def test_reads_what_the_replicas_really_write():
    metrics = RequestMetrics({"workload": 'we"ird\n{le="1"}'})
    for latency_ns in (2_000_000, 3_000_000, 70_000_000_000):
        metrics.observe(latency_ns, 1)
    sample = ReplicaParser().parse(metrics.render())
    (total, count, *buckets), bounds = of(sample, LATENCY)
    assert len(bounds) == len(buckets) == len(BUCKET_BOUNDS_NS) + 1
    assert of(sample, REQUESTS)[0] == [count] == [buckets[-1]] == [3]
    assert buckets[-2] == 2
    assert total == pytest.approx(70.005)


def test_reads_the_general_client_with_labels_and_timestamps():
    registry = CollectorRegistry()
    histogram = Histogram("inference_latency_seconds", "x", ["model"], registry=registry, buckets=[0.1, 1])
    Counter("inference_requests", "x", registry=registry).inc(4)
    for model, latency_s in (("a", 0.05), ("a", 0.5), ("b", 0.05), ("b", 3)):
        histogram.labels(model).observe(latency_s)
    text = generate_latest(registry).decode()
    stamped = "\n".join(line if line.startswith("#") else f"{line} 1700000000000" for line in text.splitlines())
    for answer in (text, stamped):
        sample = ReplicaParser().parse(answer)
        assert of(sample, LATENCY)[0] == pytest.approx([3.6, 4, 2, 3, 4])


OPEN = """# TYPE inference_latency_seconds histogram
inference_latency_seconds_bucket{le="0.1"} 3 # {trace_id="4bf92f35 77}"} 0.067 1520879607.789
inference_latency_seconds_bucket{le="0.5"} 5 1700000000.123
inference_latency_seconds_bucket{le="+Inf"} 6 # {} 0.9
inference_latency_seconds_sum 1.5
inference_latency_seconds_count 6
inference_latency_seconds_created 1.7e9
# TYPE inference_requests counter
inference_requests_total 6.0 # {trace_id="a"} 1
inference_requests_created 1.7e9
inference_native {count:24,sum:100,schema:0,zero_threshold:0.001,zero_count:4} 1700000000
{"inference_client_output_tokens_total"} 384
{"inference.quoted",le="x"} 1
# EOF
"""


def test_an_answer_in_openmetrics_is_read_and_a_line_that_cannot_be_costs_no_other():
    parser = ReplicaParser()
    for _ in range(2):
        sample = parser.parse(OPEN)
        assert of(sample, LATENCY) == of(ReplicaParser().parse(PLAIN), LATENCY)
        assert of(sample, REQUESTS) == ([6], [])
        assert of(sample, "inference_client_output_tokens_total") == ([384], [])


SERIES = ["a", "a:b_total", '{"a.b"}', '{"a.b",c="d"}', 'a{b="}{\\"\\\\",c="#  1"}', 'a{b="c",}', "a{}"]
NAMES = st.sampled_from(SERIES)


@given(NAMES, st.floats(allow_nan=False), st.sampled_from(["", " 1700000000", ' # {t="x} 1"} 0.5']))
def test_a_line_is_what_prometheus_client_takes_it_for(series, value, after):
    assert split(f"{series} {value}{after}") == (series, str(value))
    (family,) = text_string_to_metric_families(f"{series} {value}\n")
    (again,) = text_string_to_metric_families(f"{split(f'{series} {value}{after}')[0]} {value}\n")
    assert family.samples == again.samples


@pytest.mark.parametrize("openmetrics", [False, True])
def test_a_page_holds_what_prometheus_client_reads_of_it(openmetrics):
    registry = CollectorRegistry()
    histogram = Histogram("a_seconds", "x", ["model"], registry=registry, buckets=[0.1, 1])
    histogram.labels('a\u2028b\x85 \\"c"\n}').observe(0.5)
    Counter("b", "x \u2028 y", registry=registry).inc(4)
    write, parse = (
        (generate_openmetrics, parse_openmetrics) if openmetrics else (generate_latest, text_string_to_metric_families)
    )
    page = write(registry).decode()
    values, unread = read(page)
    samples = [sample for family in parse(page) for sample in family.samples]
    assert unread == []
    assert [float(value) for value in values.values()] == [sample.value for sample in samples]
    assert [series.partition("{")[0] for series in values] == [sample.name for sample in samples]


@pytest.mark.parametrize(
    "line", ["<html>", "name notanumber", "1abc 2", "a", 'a{b="c} 1', "n {count:24,sum:1} 3", "a{ 1"]
)
def test_what_is_no_line_is_not_read(line):
    assert split(line) is None
    assert read(f"{line}\nfine 1\n") == ({"fine": "1"}, [line])
    with pytest.raises(ValueError, match=r"is not a line of"):
        read(line)


def test_one_parser_follows_a_replica_that_changes_its_buckets():
    parser = ReplicaParser()
    parser.parse(PLAIN)
    changed = parser.parse(PLAIN.replace('le="0.5"', 'le="0.7"'))
    assert of(changed, LATENCY)[1] == [0.1, 0.7, math.inf]
    fewer = parser.parse(PLAIN.replace('inference_latency_seconds_bucket{le="0.5"} 5\n', ""))
    assert of(fewer, LATENCY)[1] == [0.1, math.inf]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("", "no inference_requests_total"),
        ("<html>busy</html>", "no inference_requests_total"),
        (PLAIN.replace("inference_requests_total 6\n", ""), "no inference_requests_total"),
        (PLAIN.replace('le="+Inf"', 'le="9"'), '\\{le="\\+Inf"\\}'),
        (PLAIN.replace("_total 6", "_total NaN"), "not a finite number"),
        (PLAIN.replace("_total 6", "_total six"), "no inference_requests_total but 'inference_requests_total six'"),
        (PLAIN.replace("_total 6", "_total"), "no inference_requests_total"),
        (PLAIN.replace('{le="0.1"}', '{ge="0.1"}'), "no number as its `le` label"),
    ],
)
def test_says_what_is_wrong(answer, reason):
    with pytest.raises(MetricsError, match=reason):
        ReplicaParser().parse(answer)


def test_a_torn_answer_is_no_sample_even_after_a_good_one():
    parser = ReplicaParser()
    parser.parse(PLAIN)
    torn = PLAIN[: PLAIN.index("inference_requests_total")]
    with pytest.raises(MetricsError, match="no inference_requests_total"):
        parser.parse(torn)


def test_what_only_some_workloads_publish_follows_the_latencies():
    own = (
        'inference_client_ttft_seconds_bucket{le="0.2"} 3\n'
        'inference_client_ttft_seconds_bucket{le="+Inf"} 6\n'
        "inference_client_ttft_seconds_sum 2.5\ninference_client_ttft_seconds_count 6\n"
        "inference_client_output_tokens_total 384\ninference_not_in_the_catalogue_total 9\n"
    )
    sample = ReplicaParser().parse(PLAIN + own)
    required = {REQUESTS, LATENCY}
    assert sample.families.keys() - required == {
        "inference_client_ttft_seconds",
        "inference_client_output_tokens_total",
    }
    assert of(sample, LATENCY) == of(ReplicaParser().parse(PLAIN), LATENCY)
    assert of(sample, "inference_client_output_tokens_total") == ([384], [])
    assert of(sample, "inference_client_ttft_seconds") == ([2.5, 6, 3, 6], [0.2, math.inf])
    halves = ReplicaParser().parse(PLAIN + own.replace("inference_client_ttft_seconds_count 6\n", ""))
    assert halves.families.keys() - required == {"inference_client_output_tokens_total"}, "half a histogram is none"
