"""A Prometheus that scraped neighbours beside the measured replicas: each workload's rows are as if it had been alone."""

import pytest

from harness.metrics.catalogue import STANDARD, Level, select
from harness.metrics.prometheus.client import PrometheusServer
from harness.metrics.prometheus.exporter import export
from harness.metrics.promql import PrometheusSource
from harness.metrics.rows import neighbour_of
from tests.integration.metrics.prometheus_server import NEEDED, backfill, prometheus
from tests.support.fake_metrics import RowList

pytestmark = NEEDED
START_S, ROWS, STEP_S, WINDOW_S = 1_700_000_000.0, 8, 5.0, 20.0
RATES = {"victim-0": 7.0, "victim-1": 9.0, "noisy-0": 31.0, "noisy-1": 37.0, "quiet-0": 2.0}
ORIGIN = PrometheusSource("", "team", ("victim-0", "victim-1"), ("n1",), neighbours={"noisy": ("noisy-1", "noisy-0"), "quiet": ("quiet-0",)})  # fmt: skip
METRICS = select([*STANDARD, "output_tokens_per_second"])


def lines():
    """Neighbours are faster, have other buckets, and alone publish tokens; ``quiet`` publishes nothing but requests."""
    for second in range(-40, 60):
        time_s = START_S + second + 0.25
        for pod, rate in RATES.items():
            labels, served = f'namespace="team",pod="{pod}"', 500 + rate * second
            yield f"inference_requests_total{{{labels}}} {served!r} {time_s:.3f}"
            if pod == "quiet-0":
                continue
            edges = ("0.01", "0.02", "+Inf") if pod.startswith("victim") else ("0.001", "0.004", "+Inf")
            for edge, share in zip(edges, (0.4, 0.9, 1.0), strict=True):
                yield f'inference_latency_seconds_bucket{{{labels},le="{edge}"}} {served * share!r} {time_s:.3f}'
            yield f"inference_latency_seconds_sum{{{labels}}} {served * 0.01!r} {time_s:.3f}"
            yield f"inference_latency_seconds_count{{{labels}}} {served!r} {time_s:.3f}"
            if pod.startswith("noisy"):
                yield f"inference_client_output_tokens_total{{{labels}}} {served * 50!r} {time_s:.3f}"
            work = f'{labels},container="replica"'
            yield f"container_memory_working_set_bytes{{{work}}} {1e9 + rate!r} {time_s:.3f}"
        yield f'node_pressure_cpu_waiting_seconds_total{{node="n1"}} {100 + second / 9!r} {time_s:.3f}'


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scraped")
    with prometheus(folder, database=backfill(folder, list(lines()))) as url, PrometheusServer(url) as asked:
        yield asked


def exported(server, dialect, replicas, neighbours=(), sink=None, metrics=METRICS):
    rows = RowList()
    summary = export(
        server,
        metrics=metrics,
        dialect=dialect,
        start_s=START_S,
        rows=ROWS,
        step_s=STEP_S,
        window_s=WINDOW_S,
        sink=sink or rows,
        replicas=replicas,
        neighbours=neighbours,
    )
    return summary, rows.rows


@pytest.fixture(scope="module")
def together(server):
    return exported(server, ORIGIN.dialect(), ORIGIN.pods, ORIGIN.neighbour_replicas())


def keyed(rows, *, of_neighbour=""):
    """Rows that have something to say, by metric, series and time."""
    return {
        (row.metric, row.series.removeprefix(f"{of_neighbour}/"), row.timestamp_s): (row.value, row.reason)
        for row in rows
        if neighbour_of(row.series) == of_neighbour
    }


def test_the_measured_replicas_rows_are_those_without_neighbours(server, together):
    alone, rows = exported(server, ORIGIN.dialect(), ORIGIN.pods)

    assert keyed(together[1]) == keyed(rows)
    assert together[0].replicas == alone.replicas == ["victim-0", "victim-1"]
    assert set(together[0].absent) == set(alone.absent) - {"output_tokens_per_second"}


@pytest.mark.parametrize("place", [0, 1])
def test_a_neighbours_rows_are_those_of_its_pods_measured_by_themselves(server, together, place):
    one = ORIGIN.neighbour_replicas()[place]
    own = [metric for metric in METRICS if metric.level is Level.REPLICA and metric.name not in together[0].absent]
    _, rows = exported(server, one.dialect, one.replicas, metrics=own)

    found = keyed(together[1], of_neighbour=one.workload)
    assert found == keyed(rows)
    last = {series: value for (metric, series, _), (value, _) in found.items() if metric == "throughput"}
    rates = [RATES[pod] for pod in one.replicas]
    assert last == pytest.approx({"all": sum(rates)} | {f"replica-{index}": rate for index, rate in enumerate(rates)})


def test_what_one_workload_alone_publishes_is_missing_with_a_reason_for_the_others(together):
    tokens = [row for row in together[1] if row.metric == "output_tokens_per_second"]

    assert {row.series for row in tokens} == {"all", "noisy/all", "noisy/replica-0", "noisy/replica-1", "quiet/all"}
    assert all((row.value is None) is (neighbour_of(row.series) != "noisy") for row in tokens)
    reasons = {row.reason for row in tokens if row.series == "quiet/all"}
    assert reasons == {
        'Prometheus has no sample of inference_client_output_tokens_total{namespace="team",pod=~"quiet-0"}'
    }
    assert together[0].identities["noisy/replica-0"] == {"pod": "noisy-1"}
