"""Answers of a server as series: when each was measured, what it is called, which buckets it uses."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import NoDataError, UsageError
from harness.metrics.catalogue import CATALOGUE
from harness.metrics.prometheus.client import QueryAnswer, SampledSeries
from harness.metrics.prometheus.exporter import why_no_buckets
from harness.metrics.prometheus.series import (
    CountedTotal,
    identity,
    key_labels,
    measured,
    mixed,
    used_bounds,
)
from harness.metrics.promql import PrometheusSource, cluster, local, one_of, render
from harness.metrics.promql_math import histogram_quantile
from harness.spec.kubernetes import PrometheusLabels


def series(times_ms, values=None, **labels):
    times = np.array(times_ms, dtype=np.int64)
    return SampledSeries(labels, times, np.array(values if values is not None else times * 0.0, dtype=float))


GRID_MS = np.arange(0, 6000, 1000)


@pytest.mark.parametrize(
    ("samples", "steps"),
    [([[0, 1, 1999, 4000]], {0, 1, 2, 4}), ([[0, 1000], [3000]], {0, 1, 3}), ([], set())],
)
def test_a_row_needs_a_sample_in_its_own_step_of_any_series_of_the_replica(samples, steps):
    flags = measured([series(times_ms) for times_ms in samples], GRID_MS, 1000)
    assert set(np.flatnonzero(flags)) == steps


def test_totals_go_on_from_chunk_to_chunk_even_over_a_gap():
    whole = CountedTotal(0).advance([series([0, 1000, 4000, 5000], [10, 12, 20, 3])], GRID_MS)
    parts = CountedTotal(0)
    first = parts.advance([series([0, 1000], [10, 12])], GRID_MS[:2])
    nothing = parts.advance([], GRID_MS[2:4])
    last = parts.advance([series([4000, 5000], [20, 3])], GRID_MS[4:])
    assert [*first, *nothing, *last] == whole.tolist() == [0, 2, 2, 2, 10, 13]


@pytest.mark.parametrize(
    ("samples", "totals"),
    [
        ([series([-1000, 0, 1000, 2000, 3000, 4000], [5, 10, 15, 2, 3, 9])], [0, 5, 7, 8, 14, 14]),
        ([series([2000, 3000], [100, 103])], [np.nan, np.nan, 0, 3, 3, 3]),
        (  # a restarted container adds to its predecessor
            [series([0, 1000], [50, 60], container="x"), series([3000, 4000, 5000], [1, 4, 9], container="y")],
            [0, 10, 10, 10, 13, 18],
        ),
        ([], [np.nan] * 6),
    ],
)
def test_totals_count_over_resets_and_are_not_known_before_the_first_sample(samples, totals):
    np.testing.assert_equal(CountedTotal(0).advance(samples, GRID_MS), totals)


DEVICE, NODE, REPLICA = CATALOGUE["gpu_power"], CATALOGUE["io_psi"], CATALOGUE["throughput"]


def spanning(first_ms, last_ms, **labels):
    return SampledSeries(labels, np.array([first_ms, last_ms]), np.array([0.0, 1.0]))


def test_labels_that_tell_series_apart():
    foreign = cluster("x", ".+", labels=PrometheusLabels(pod="pod_name", node="kubernetes_node", gpu_node="Hostname"))
    assert key_labels(DEVICE, foreign) == ("Hostname", "gpu")
    assert key_labels(NODE, foreign) == ("kubernetes_node",)
    assert key_labels(REPLICA, foreign) == ("pod_name",)
    assert key_labels(DEVICE, local("x")) == ("gpu",)
    assert key_labels(NODE, local("x")) == ()
    assert "max by (Hostname, gpu) (" in render(DEVICE, foreign, 20).each


def test_what_a_series_stands_for():
    labels = {"node": "n", "gpu": "0", "UUID": "GPU-1", "modelName": "A16", "job": "x", "instance": "y"}
    dialect = cluster("x", ".+")
    assert identity(DEVICE, dialect, labels) == {"node": "n", "gpu": "0", "UUID": "GPU-1", "modelName": "A16"}
    assert identity(NODE, dialect, labels) == {"node": "n", "instance": "y"}
    assert identity(REPLICA, dialect, {"pod": "p"}) == {"pod": "p"}


def test_one_after_another_and_the_same_thing_twice_are_fine():
    assert mixed(NODE, [spanning(0, 10, instance="a"), spanning(10, 20, instance="b")]) == ""
    assert mixed(DEVICE, [spanning(0, 10, UUID="1", pod="a"), spanning(0, 10, UUID="1", pod="b")]) == ""
    assert mixed(REPLICA, [spanning(0, 10, instance="a"), spanning(0, 10, instance="b")]) == ""
    assert mixed(NODE, []) == ""


def test_only_the_very_names_match():
    assert one_of(["a.b", "c-d"]) == r"a\.b|c-d"
    query = render(NODE, cluster("x", ".+", nodes=["n.1"], node='job="node-exporter"'), 20).raw
    assert query == 'node_pressure_io_waiting_seconds_total{node=~"n\\\\.1",job="node-exporter"}'


def test_an_origin_survives_its_file():
    origin = PrometheusSource(
        "http://x:9090", "inference", ("a-1", "a-2"), ("n1",), PrometheusLabels(gpu_node="Hostname")
    )
    assert PrometheusSource.from_dict(origin.to_dict()) == origin
    assert 'pod=~"a-1|a-2"' in origin.dialect().replicas
    with pytest.raises(UsageError, match="does not say where"):
        PrometheusSource.from_dict({"url": "http://x:9090"})


class Knows:
    """A server whose devices have these UUIDs."""

    def __init__(self, *uuids, values=None):
        self.uuids, self.asked, self.values = uuids, [], values or [0.0] * len(uuids)

    def query(self, promql):
        self.asked.append(promql)
        if not self.uuids:
            raise NoDataError("nothing matches.")
        known = zip(self.uuids, self.values, strict=True)
        return QueryAnswer(
            [SampledSeries({"UUID": uuid, "gpu": "0"}, np.array([0]), np.array([value])) for uuid, value in known]
        )


class Names:
    """A server that holds series of these names."""

    def __init__(self, *names):
        self.names = names

    def query(self, _promql, _time_s=None):
        if not self.names:
            raise NoDataError("nothing matches.")
        return QueryAnswer([series([0], [1.0], __name__=name) for name in self.names])


LATENCY = "inference_latency_seconds"


@pytest.mark.parametrize(
    ("names", "why"),
    [
        ((), ""),
        ((f"{LATENCY}_bucket", f"{LATENCY}_count"), ""),
        ((LATENCY,), "holds it as a native histogram: have it keep inference_latency_seconds_bucket"),
        ((f"{LATENCY}_count",), "holds inference_latency_seconds_count and no bucket"),
    ],
)
def test_a_histogram_that_is_not_kept_as_a_classic_one_is_the_reason(names, why):
    reason = why_no_buckets(Names(*names), CATALOGUE["latency_p95"], local("x"), 20_000)
    assert (why in reason) if why else reason == ""


@pytest.mark.parametrize(
    ("told", "known", "gpus", "why"),
    [
        (["GPU-b", "GPU-b"], ["GPU-b"], ("GPU-b",), ""),
        (["GPU-b", ""], ["GPU-b"], (), "not every replica says which GPU it is on"),
        (["MIG-b"], ["GPU-b"], (), "Prometheus does not know MIG-b"),
        (["GPU-b"], [], (), "nothing matches."),
    ],
)
def test_only_the_devices_of_the_replicas_are_selected_where_they_and_the_server_tell(told, known, gpus, why):
    server = Knows(*known)
    origin = PrometheusSource("http://x:9090", "inference", ("a-1",), ("n1",)).with_gpus(server, told)
    assert origin.gpus == gpus
    assert origin.gpus_why == (f"every GPU of the nodes is recorded: {why}" if why else "")
    assert PrometheusSource.from_dict(json.loads(json.dumps(origin.to_dict()))) == origin
    selector = render(CATALOGUE["gpu_power"], origin.dialect(), 20).raw
    assert ('UUID=~"GPU-b"' in selector) == bool(gpus)
    assert all('node=~"n1"' in query for query in [selector, *server.asked])


def test_the_hottest_device_is_one_of_the_replicas_and_silence_is_not_cool():
    origin = PrometheusSource("http://x:9090", "inference", ("a-1",), ("n1",), gpus=("GPU-b", "GPU-c"))
    server = Knows("GPU-b", "GPU-c", values=[41.0, 47.5])

    assert origin.hottest_celsius(server) == 47.5
    assert server.asked == [render(CATALOGUE["gpu_temperature"], origin.dialect(), 1.0).each]
    assert origin.hottest_celsius(Knows()) == math.inf


def test_processors_and_memory_are_those_of_the_server_without_its_client():
    origin = PrometheusSource("http://x:9090", "inference", ("a-1",), container="server")
    assert PrometheusSource.from_dict(origin.to_dict()) == origin
    assert origin.dialect().containers == 'namespace="inference",pod=~"a-1",container="server"'


def test_an_origin_written_before_devices_were_told_apart_is_still_read():
    written = PrometheusSource("http://x:9090", "inference", ("a-1",)).to_dict()
    del written["gpus"], written["gpus_why"]
    assert PrometheusSource.from_dict(written).gpus == ()


BOUNDS = ["0.1", "0.2", "0.5", "1.0", "2.0", "5.0", "+Inf"]
VALUES = np.array([float(bound) for bound in BOUNDS])


def buckets_of(counts):
    return [
        SampledSeries({"le": bound}, np.array([1]), np.array([float(count)]))
        for bound, count in zip(BOUNDS, counts, strict=True)
    ]


NINE = [5, 5, 5, 9, 9, 9, 9]


@pytest.mark.parametrize(
    ("before", "after", "used"),
    [
        (NINE, [5, 5, 7, 19, 19, 19, 19], ["0.2", "0.5", "1.0", "5.0", "+Inf"]),
        (None, [0, 3, 3, 3, 3, 3, 3], ["0.1", "0.2", "5.0", "+Inf"]),  # a replica that began in the range began at zero
        (NINE, NINE, ["5.0", "+Inf"]),
        (NINE, [5, 5, 5, 8, 9, 9, 9], []),  # a reset: all are read
    ],
)
def test_only_buckets_with_news_and_their_edges_are_read(before, after, used):
    assert used_bounds(buckets_of(before) if before else [], buckets_of(after)) == used


def test_without_an_infinite_bucket_everything_has_to_be_read():
    assert used_bounds([], buckets_of([0, 3, 3, 3, 3, 3, 3])[:-1]) == used_bounds([], []) == []


counts = st.lists(st.integers(0, 5), min_size=len(BOUNDS), max_size=len(BOUNDS))


@given(st.lists(st.tuples(counts, counts), min_size=1, max_size=4), st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_quantiles_of_the_used_buckets_are_those_of_all(replicas, quantile):
    grown = [np.cumsum(growth).astype(float) for _, growth in replicas]
    before = np.sum([np.cumsum(base) for base, _ in replicas], axis=0)
    used = [
        BOUNDS.index(bound) for bound in used_bounds(buckets_of(before), buckets_of(before + np.sum(grown, axis=0)))
    ]
    for cumulative in [*grown, np.sum(grown, axis=0)]:
        full = histogram_quantile(quantile, VALUES, cumulative)
        narrow = histogram_quantile(quantile, VALUES[used], cumulative[used])
        np.testing.assert_equal(narrow, full)
