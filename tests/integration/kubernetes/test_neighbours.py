"""Neighbours on a cluster: pods of their own on the GPU of the measured ones, told apart in every figure, ended with them."""

import contextlib
import json
import signal
import subprocess
import sys
import threading
import time

import pytest

from harness.backends.kubernetes import monitoring, objects
from harness.backends.kubernetes.backend import KubernetesBackend
from harness.campaign.folder import create
from harness.campaign.runner import CampaignRunner
from harness.campaign.verify import verify_campaign
from harness.errors import BackendError, ReasonCode
from harness.metrics.csv_reader import read_experiment
from harness.metrics.prometheus.client import PrometheusServer
from harness.metrics.prometheus.exporter import export
from harness.results import layout
from harness.results.from_prometheus import read_source
from harness.results.manifest import Status, read_manifest
from harness.results.requests import LATENCY, records_of
from harness.spec import ConditionSpec, Sharing
from tests.integration.metrics.prometheus_server import NEEDED, RunningPrometheus
from tests.support.cluster_trial import Trial
from tests.support.experiments import FAST, campaign, experiment, neighbour
from tests.support.fake_backend import recording_request
from tests.support.fake_metrics import FakeGpus, RowList
from tests.support.processes import DRAINED_S, eventually

BESIDE = ConditionSpec(name="beside", neighbours=[neighbour("on_lent_gpu")])
METRICS = ("throughput", "total_count", "latency_p50")


def crowded(**changes):
    return experiment(**{"factory": "on_lent_gpu", "condition": BESIDE, "metrics": METRICS} | changes)


@pytest.fixture
def one_gpu(driver):
    driver.gpus = ["GPU-a"]
    return driver


@pytest.mark.parametrize("kind", ["deployment", "job"])
def test_neighbours_are_pods_of_their_own_and_end_with_the_measured_ones(deploy, server, one_gpu, kind):
    deployment, folder = deploy(crowded(), by=KubernetesBackend(server.spec(kind=kind), "c0ffee"))

    found = {pod["metadata"]["name"]: pod for pod in one_gpu.api.list(one_gpu.collection)}
    measured, beside = deployment.statuses(), deployment.neighbour_statuses()
    assert [status["replica"] for status in measured] == [0, 1]
    [noisy] = beside["noisy"]
    assert found.keys() == {noisy["pod"], *(status["pod"] for status in measured)}
    assert {status["gpu_uuid"] for status in (noisy, *measured)} == {"GPU-a"}
    labels = {name: pod["metadata"]["labels"] for name, pod in found.items()}
    assert {each[objects.CAMPAIGN_LABEL] for each in labels.values()} == {"c0ffee"}
    of_measured = {labels[status["pod"]][objects.EXPERIMENT_LABEL] for status in measured}
    assert {labels[noisy["pod"]][objects.NEIGHBOUR_LABEL]} == of_measured
    assert not any(objects.NEIGHBOUR_LABEL in labels[status["pod"]] for status in measured)
    [near] = found[noisy["pod"]]["spec"]["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert set(near["labelSelector"]["matchLabels"].values()) == of_measured

    assert list(deployment.stop(timeout_s=DRAINED_S)) == []
    assert one_gpu.left() == []
    assert len(records_of(layout.replica_folder(folder, 1) / layout.RAW_LATENCIES, LATENCY)) > 1
    place = layout.neighbour_folder(folder, "noisy")
    assert len(records_of(layout.replica_folder(place, 0) / layout.RAW_LATENCIES, LATENCY)) > 1
    assert "serving" in layout.replica_log(place, 0).read_text()


@pytest.mark.parametrize(
    ("gpus", "said"),
    [
        (["GPU-a", "GPU-b"], r"replica 0 \(pod tiny-r1-.*\) is on GPU GPU-[ab], where no neighbour is"),
        ([""], r"replica 0 \(pod tiny-r1-.*\) does not say on which GPU it is"),
    ],
    ids=["another", "unknown"],
)
def test_a_neighbour_that_is_not_seen_on_the_same_gpu_is_not_believed(deploy, driver, gpus, said):
    driver.gpus = gpus

    with pytest.raises(BackendError, match=said) as caught:
        deploy(crowded(replicas=1))

    assert caught.value.code is ReasonCode.NEIGHBOUR_APART
    assert driver.left() == []


def test_with_a_gpu_each_the_node_is_what_they_share(deploy, driver):
    driver.gpus = ["GPU-a", "GPU-b"]

    deployment, _ = deploy(crowded(replicas=1, sharing=Sharing.EXCLUSIVE))

    statuses = [*deployment.statuses(), *deployment.neighbour_statuses()["noisy"]]
    assert {status["gpu_uuid"] for status in statuses} == {"GPU-a", "GPU-b"}


def test_a_neighbour_that_finds_no_room_ends_the_measured_ones_too(deploy, one_gpu):
    one_gpu.lend(2)

    with pytest.raises(BackendError, match="Unschedulable: 0/1 nodes are available: 1 Insufficient"):
        deploy(crowded())

    assert one_gpu.left() == []


def test_a_neighbours_death_is_told_as_its_own(deploy, one_gpu, deaths):
    deployment, folder = deploy(crowded())
    [noisy] = deployment.neighbour_statuses()["noisy"]

    one_gpu.kill(noisy["pod"], reason="OOMKilled")

    assert eventually(lambda: deaths)
    assert (deaths[0].neighbour, deaths[0].replica, deaths[0].code) == ("noisy", 0, ReasonCode.NEIGHBOUR_DIED)
    assert str(deaths[0]).startswith("replica 0 of the neighbour noisy was killed by signal 9 (OOMKilled)")
    assert eventually(lambda: one_gpu.pods[noisy["pod"]].ready)  # the kubelet starts it again
    assert list(deployment.stop(timeout_s=DRAINED_S)) == []
    assert list(deployment.deaths) == deaths
    assert one_gpu.left() == []
    assert "serving" in layout.replica_log(layout.neighbour_folder(folder, "noisy"), 0).read_text()


def test_a_campaign_killed_beside_neighbours_is_resumed_and_tells_them_apart(server, one_gpu, tmp_path):
    conditions = [ConditionSpec(name="alone"), BESIDE]
    of = crowded().workload
    timing = {**FAST, "record_s": 1.0}
    spec = campaign(
        backend="kubernetes",
        kubernetes=server.spec().model_dump(),
        workloads=[of],
        replicas=[2],
        conditions=conditions,
        timing=timing,
        metrics=list(METRICS),
    )
    folder = create(tmp_path / "results", spec, text="text", source="shipped:test")
    killed = subprocess.run(
        [sys.executable, "-m", "tests.support.cluster_trial", str(folder.path), "beside"],
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert len(one_gpu.names()) == 3  # nobody ended them
    said = []

    outcome = CampaignRunner(folder, Trial(server.spec()), gpus=FakeGpus, listener=said.append).run()

    assert sum("deleted Deployment" in str(event) for event in said) == 2, said
    assert one_gpu.left() == []
    assert verify_campaign(folder.path).ok
    for identity, status in outcome.statuses.items():
        final = folder.final_folder(identity)
        manifest = read_manifest(final)
        assert status in {Status.VALID, Status.DEGRADED}, manifest.verdict
        own, theirs = {"all", "replica-0", "replica-1"}, {"noisy/all", "noisy/replica-0"}
        expected = own | theirs if "beside" in identity else own
        tables = read_experiment(final).metrics
        assert {name: set(series) for name, series in tables.items()} == dict.fromkeys(METRICS, expected)
        assert manifest.neighbours.keys() == ({"noisy"} if "beside" in identity else set())
        table = layout.neighbour_folder(final, "noisy") / layout.REQUESTS
        assert table.is_file() == ("beside" in identity)


@pytest.fixture
def scraping(one_gpu, tmp_path):
    """A Prometheus whose discovery follows the cluster's pods, as a file that is rewritten when they change."""
    folder = tmp_path / "prometheus"
    folder.mkdir()
    targets = folder / "targets.json"
    targets.write_text("[]")
    files = f"file_sd_configs: [{{files: ['{targets}'], refresh_interval: 1s}}]"
    config = f"global: {{scrape_interval: 1s}}\nscrape_configs: [{{job_name: pods, {files}}}]\n"
    over = threading.Event()

    def discover():
        while not over.wait(0.1):
            with contextlib.suppress(RuntimeError):  # a pod came while they were read
                groups = [
                    {"targets": [f"{one_gpu.address}:{pod.port}"], "labels": {"namespace": "inference", "pod": name}}
                    for name, pod in one_gpu.pods.items()
                ]
                new = targets.with_name("new.tmp")
                new.write_text(json.dumps(groups))
                new.replace(targets)

    thread = threading.Thread(target=discover)
    thread.start()
    try:
        with RunningPrometheus(folder, config) as running, PrometheusServer(running.url) as asked:
            yield asked
    finally:
        over.set()
        thread.join()


@NEEDED
def test_a_prometheus_gives_each_workload_series_of_its_own_now_and_later(deploy, server, scraping):
    backend = Trial(server.spec(prometheus_url=scraping.url), record=monitoring.recording)
    timing = {"step_s": 2.0, "record_s": 4.0, "ready_timeout_s": 120, "drain_timeout_s": 4}
    of = crowded(timing=timing)
    deployment, folder = deploy(of, by=backend)
    wait = "count(count_over_time(inference_requests_total[5s]) > 3)"
    assert eventually(lambda: _value(scraping, wait) == 3)
    rows, start_s = RowList(), 2.0 * (int(time.time() / 2) + 1)
    request = recording_request(METRICS, of.timing, sink=rows)

    summary = deployment.recording(request).record(start_s, 3)

    series = {"all", "replica-0", "replica-1", "noisy/all", "noisy/replica-0"}
    assert {name: set(found.series) for name, found in summary.metrics.items()} == dict.fromkeys(METRICS, series)
    names = {"pod": deployment.neighbour_statuses()["noisy"][0]["pod"]}
    assert summary.identities["noisy/replica-0"] == names

    deployment.stop(timeout_s=DRAINED_S)
    origin, again = read_source(folder), RowList()
    export(
        scraping,
        metrics=request.metrics,
        dialect=origin.dialect(),
        start_s=start_s,
        rows=3,
        step_s=2.0,
        window_s=of.timing.window_s,
        sink=again,
        replicas=origin.pods,
        neighbours=origin.neighbour_replicas(),
    )
    assert {(row.metric, row.series) for row in again.rows} == {(row.metric, row.series) for row in rows.rows}
    for time_s in {row.timestamp_s for row in again.rows}:
        value = {
            one.series: one.value for one in again.rows if (one.metric, one.timestamp_s) == ("total_count", time_s)
        }
        if None not in value.values():  # a busy machine may have scraped too late
            assert value["all"] == value["replica-0"] + value["replica-1"]
            assert value["noisy/all"] == value["noisy/replica-0"]


def _value(server, promql):
    with contextlib.suppress(Exception):  # nothing was scraped yet
        return server.query(promql).series[0].values[-1]
    return None
