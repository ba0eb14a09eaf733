"""Series over one node and over several: who is called what, and who must not be mixed."""

import json
import math

import numpy as np
import pytest

from harness.errors import NoDataError, UsageError
from harness.metrics.catalogue import CATALOGUE
from harness.metrics.prometheus.adapter import QueryAnswer, Series
from harness.metrics.prometheus.series import device_names, identity, key_labels, mixed, natural, node_names
from harness.metrics.prometheus.source import PrometheusSource
from harness.metrics.promql import Labels, cluster, local, one_of, render

DEVICE, NODE, REPLICA = CATALOGUE["gpu_power"], CATALOGUE["io_psi"], CATALOGUE["throughput"]


def series(first_ms, last_ms, **labels):
    return Series(labels, np.array([first_ms, last_ms]), np.array([0.0, 1.0]))


def test_one_node_keeps_the_drivers_numbers():
    assert device_names([("n", "3"), ("n", "10")]) == {("n", "3"): "gpu-3", ("n", "10"): "gpu-10"}
    assert device_names([("0",)]) == {("0",): "gpu-0"}
    assert node_names([("n",)]) == {("n",): "node"}
    assert node_names([()]) == {(): "node"}


def test_devices_of_several_nodes_are_counted_through_in_order():
    keys = [("n10", "0"), ("n2", "1"), ("n2", "0")]
    assert device_names(keys) == {("n2", "0"): "gpu-0", ("n2", "1"): "gpu-1", ("n10", "0"): "gpu-2"}
    assert node_names([("n10",), ("n2",)]) == {("n2",): "node-n2", ("n10",): "node-n10"}


def test_labels_that_tell_series_apart():
    foreign = cluster("x", ".+", labels=Labels(pod="pod_name", node="kubernetes_node", gpu_node="Hostname"))
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


def test_two_things_with_one_name_at_the_same_time_are_told():
    assert "instance a and b" in mixed(NODE, [series(0, 10, instance="a"), series(5, 20, instance="b")])
    assert "UUID 1 and 2" in mixed(DEVICE, [series(0, 10, UUID="1"), series(0, 10, UUID="2")])


def test_one_after_another_and_the_same_thing_twice_are_fine():
    assert mixed(NODE, [series(0, 10, instance="a"), series(10, 20, instance="b")]) == ""
    assert mixed(DEVICE, [series(0, 10, UUID="1", pod="a"), series(0, 10, UUID="1", pod="b")]) == ""
    assert mixed(REPLICA, [series(0, 10, instance="a"), series(0, 10, instance="b")]) == ""
    assert mixed(NODE, []) == ""


def test_natural_order():
    assert sorted(["pod-10", "pod-9", "pod"], key=natural) == ["pod", "pod-9", "pod-10"]


def test_only_the_very_names_match():
    assert one_of(["a.b", "c-d"]) == r"a\.b|c-d"
    query = render(NODE, cluster("x", ".+", nodes=["n.1"], node='job="node-exporter"'), 20).raw
    assert query == 'node_pressure_io_waiting_seconds_total{node=~"n\\\\.1",job="node-exporter"}'


def test_an_origin_survives_its_file():
    origin = PrometheusSource("http://x:9090", "inference", ("a-1", "a-2"), ("n1",), Labels(gpu_node="Hostname"))
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
            [Series({"UUID": uuid, "gpu": "0"}, np.array([0]), np.array([value])) for uuid, value in known]
        )


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
    assert server.asked == ['DCGM_FI_DEV_GPU_TEMP{node=~"n1",UUID=~"GPU-b|GPU-c"}']
    assert origin.hottest_celsius(Knows()) == math.inf


def test_processors_and_memory_are_those_of_the_server_without_its_client():
    origin = PrometheusSource("http://x:9090", "inference", ("a-1",), container="server")
    assert PrometheusSource.from_dict(origin.to_dict()) == origin
    assert origin.dialect().containers == 'namespace="inference",pod=~"a-1",container="server"'


def test_an_origin_written_before_devices_were_told_apart_is_still_read():
    written = PrometheusSource("http://x:9090", "inference", ("a-1",)).to_dict()
    del written["gpus"], written["gpus_why"]
    assert PrometheusSource.from_dict(written).gpus == ()
