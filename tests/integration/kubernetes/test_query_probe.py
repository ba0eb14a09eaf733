"""Preflight and canary against a real Prometheus: what it does not see, or not as often as assumed, is said before."""

import contextlib
import json
import re
import threading

import pytest

from harness.backends.kubernetes.probe import Rehearsal, check_prometheus, cost_of
from harness.clock import SystemClock
from harness.errors import IssueLevel
from harness.metrics.catalogue import STANDARD, select
from harness.metrics.prometheus.client import PrometheusServer
from harness.metrics.prometheus.recorder import active
from harness.metrics.promql import PrometheusSource
from harness.spec import ExperimentSpec, KubernetesSpec, Limits, Sharing, Timing, WorkloadSpec
from tests.integration.metrics.pages import Pages
from tests.integration.metrics.prometheus_server import NEEDED, RunningPrometheus
from tests.support.ports import free_port
from tests.support.processes import eventually, wait_for

pytestmark = [pytest.mark.long, NEEDED]

SPEC = KubernetesSpec(scrape_interval_s=1.0)
TIMING = Timing(step_s=1.0, record_s=10.0)
EXPERIMENT = ExperimentSpec(
    workload=WorkloadSpec(name="resnet50"),
    replicas=1,
    sharing=Sharing.TIME_SLICING,
    repeat=1,
    timing=TIMING,
    metrics=list(STANDARD),
    limits=Limits(),
)


class Scene:
    """Pages, and the server that scrapes them."""

    def __init__(self, folder, **options):
        self._stack = contextlib.ExitStack()
        self.pages = self._stack.enter_context(contextlib.closing(Pages(**options)))
        running = self._stack.enter_context(RunningPrometheus(folder, self.pages.config()))
        self.server = self._stack.enter_context(PrometheusServer(running.url, timeout_s=5))

    def close(self):
        self._stack.close()

    def rehearse(self, *, pods=("work-a",), nodes=("n1",), abort=None, metrics="all", server=None):
        origin = PrometheusSource(self.server.url, "inference", pods, nodes)
        rehearsal = Rehearsal(server or self.server, origin, select(metrics), TIMING, SystemClock())
        return rehearsal.run(1.0, abort or threading.Event())

    def check(self, spec=SPEC, experiment=EXPERIMENT, ahead_s=0.0):
        clock = SystemClock()
        return check_prometheus(self.server, spec, [experiment], lambda: clock.now_s() - ahead_s)


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    with contextlib.closing(Scene(tmp_path_factory.mktemp("scene"))) as scene:
        assert eventually(lambda: scene.rehearse() == [])  # by then every page has been scraped
        yield scene


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """Longer than the 5 s in which a Prometheus that was just started has no targets."""
    monkeypatch.setattr("harness.backends.kubernetes.probe.LEAST_S", 6.0)


def test_a_pod_that_is_not_discovered_is_one_error_with_the_servers_reason(scene):
    found = {one.severity: one for one in scene.rehearse(pods=("work-x",))}
    error, warning = found[IssueLevel.ERROR], found[IssueLevel.WARNING]
    assert len(found) == 2
    assert error.message.startswith(
        "latency_avg, latency_p50, latency_p95, latency_p99, throughput, total_count of a running replica have no value"
    )
    assert (
        "has no target with the label pod=work-x: its discovery does not find it. A query was: sum by (pod) (rate("
        in (error.message)
    )
    assert "its page /targets" in error.advice
    assert warning.message.startswith("cpu_usage, memory_usage of a running replica have no value")
    assert "it matches nothing. A query was: sum by (pod)" in warning.message


def test_a_pod_that_cannot_be_scraped_is_an_error_with_the_scrapes_own(scene):
    scene.pages.down.add("work-b")
    try:
        [found] = scene.rehearse(pods=("work-b",), metrics=["throughput"])
    finally:
        scene.pages.down.clear()
    assert "cannot scrape http://127.0.0.1" in found.message
    assert "/work-b: server returned HTTP status 500" in found.message


def test_a_metric_that_a_scraped_replica_does_not_publish_is_no_matter_of_discovery(scene):
    [found] = scene.rehearse(metrics=["client_ttft_p50"])
    assert (found.severity, "it matches nothing. The query was" in found.message) == (IssueLevel.WARNING, True)


def test_a_prometheus_that_keeps_no_buckets_is_told_before(scene, tmp_path):
    config = json.loads(scene.pages.config())
    for job in config["scrape_configs"]:
        job["metric_relabel_configs"] = [{"source_labels": ["__name__"], "regex": ".*_bucket", "action": "drop"}]
    with (
        RunningPrometheus(tmp_path, json.dumps(config)) as running,
        PrometheusServer(running.url, timeout_s=30) as server,
    ):
        [found] = scene.rehearse(server=server, metrics=["throughput", "latency_avg", "latency_p95"])
    assert found.severity is IssueLevel.ERROR
    assert "latency_p95 of a running replica has no value" in found.message
    assert "holds inference_latency_seconds_count and no bucket" in found.message


def test_a_replica_that_is_scraped_twice_is_an_error_with_both_jobs(scene, tmp_path):
    config = json.loads(scene.pages.config())
    jobs = config["scrape_configs"]
    jobs.append({**jobs[0], "job_name": "podmonitor"})
    with (
        RunningPrometheus(tmp_path, json.dumps(config)) as running,
        PrometheusServer(running.url, timeout_s=30) as server,
    ):
        wait_for(lambda: len(active(server)) == len(jobs))
        found = scene.rehearse(server=server, metrics=["throughput"])
    errors = [one.message for one in found if "every request would count as often" in one.message]
    assert len(errors) == 1
    assert "scrapes pod=work-a 2 times" in errors[0]
    assert "podmonitor" in errors[0]


def test_an_exporter_that_is_down_is_a_warning(scene):
    scene.pages.down.add("dcgm")
    try:
        found = scene.rehearse(nodes=("n1",), metrics=["gpu_power", "total_count"])
    finally:
        scene.pages.down.clear()
    # Its old samples are in the window still, its newest are marked as stale.
    assert [one.severity for one in found] == [IssueLevel.WARNING]
    assert "gpu_power of a running replica has no value" in found[0].message


def test_containers_that_are_measured_too_rarely_are_told(tmp_path):
    with contextlib.closing(Scene(tmp_path, housekeeping_s=3.0)) as scene:
        [found] = [one for one in scene.rehearse(metrics=["cpu_usage", "total_count"]) if "new sample" in one.message]
    assert "cpu_usage have a new sample every 3.0 s, and a row is wanted every 1 s" in found.message
    assert "--housekeeping-interval" in found.advice


def test_an_interrupted_rehearsal_ends_the_canary_at_once(scene):
    abort = threading.Event()
    abort.set()
    assert scene.rehearse(pods=("work-x",), abort=abort) == []


def test_a_prometheus_as_assumed_gets_no_remark(scene):
    assert eventually(lambda: scene.check() == []), scene.check()


def test_a_prometheus_that_is_not_there():
    with PrometheusServer(f"http://127.0.0.1:{free_port()}", timeout_s=1) as server:
        [found] = check_prometheus(server, SPEC, [EXPERIMENT], SystemClock().now_s)
    assert (found.severity, found.check) == (IssueLevel.ERROR, "prometheus")
    assert "cannot be reached" in found.message


@pytest.mark.parametrize(
    ("step_s", "severity", "words"),
    [
        (0.5, IssueLevel.ERROR, "scrapes dcgm-exporter every 1 s, and a row is wanted every 0.5 s: gpu_utilization"),
        (5.0, None, ""),
    ],
)
def test_a_scrape_interval_that_is_longer_than_the_step(scene, step_s, severity, words):
    timing = Timing(step_s=step_s, record_s=10.0)
    found = scene.check(experiment=EXPERIMENT.model_copy(update={"timing": timing}))
    assert {one.severity for one in found} == ({severity} if severity else set())
    assert not words or any(words in one.message for one in found)


def test_a_scrape_interval_that_is_not_the_assumed_one(scene):
    found = scene.check(KubernetesSpec(scrape_interval_s=5.0), EXPERIMENT.model_copy(update={"timing": Timing()}))
    messages = [one.message for one in found if one.check == "scrape interval"]
    assert "Prometheus scrapes dcgm-exporter every 1 s; the campaign assumes 5 s." in messages


def test_clocks_that_differ(scene):
    [found] = scene.check(ahead_s=30)
    assert (found.severity, found.check) == (IssueLevel.ERROR, "clock")
    assert "30.0 s ahead of this machine's" in found.message


def test_another_number_of_gpus_than_expected(scene):
    [found] = scene.check(KubernetesSpec(scrape_interval_s=1.0, expected_gpus=2))
    assert "1 GPU where 2 were expected" in found.message


def test_targets_that_are_down_and_metrics_that_will_be_absent(tmp_path):
    with contextlib.closing(Scene(tmp_path)) as scene:
        scene.pages.down.add("node")
        scene.pages.gauges.remove("PROF_SM_ACTIVE")
        assert eventually(lambda: scene.rehearse(metrics=["total_count"]) == [])
        found = scene.check()
        without_gpus = scene.check(KubernetesSpec(scrape_interval_s=1.0, gpus_per_replica=0))
    [down] = [one.message for one in found if one.check == "targets"]
    assert "1 of 5 targets of Prometheus are down: node-exporter 127.0.0.1" in down
    assert "500" in down
    *absent, activity = [one.message for one in found if one.check == "metrics"]
    assert all("will be absent: Prometheus has no sample of node_pressure_" in message for message in absent)
    assert activity == (
        "the report will have no SM activity, which distinguishes sharing modes: Prometheus has no sample of DCGM_FI_PROF_SM_ACTIVE."
    )
    assert not any("SM activity" in one.message for one in without_gpus)


def test_a_busy_node_is_told_to_whom_reserves_no_processors(scene, monkeypatch):
    monkeypatch.setattr("harness.backends.kubernetes.probe.BUSY_WINDOW_S", 5.0)
    monkeypatch.setattr("harness.backends.kubernetes.probe.BUSY_PERCENT", 5.0)  # the page says 10
    elsewhere = SPEC.model_copy(update={"namespace": "team-b"})  # where no replica ran

    def told(spec=elsewhere, nodes=("n1",), **workload):
        of = EXPERIMENT.model_copy(update={"workload": WorkloadSpec(name="own", **(workload or {"factory": "a:b"}))})
        found = check_prometheus(scene.server, spec, [of], SystemClock().now_s, nodes=nodes)
        return [one for one in found if one.check == "busy"]

    [said] = told()
    assert said.severity is IssueLevel.WARNING
    assert re.search(
        r"processes waited for a processor of n1 in \d+% of the last 5 minutes, and own reserves none", said.message
    )
    assert "`kubernetes.reserve`" in said.advice
    assert told(nodes=()) == told(nodes=("n2",)) == [], "another node's is not theirs"
    assert told(SPEC) == [], "where replicas ran, whoever waited may have been one of them"
    assert told(elsewhere.model_copy(update={"reserve": {"cpu": "100m"}})) == []
    assert told(elsewhere.model_copy(update={"limit": {"cpu": "1"}})) == [], "a limit is a request"
    assert len(told(elsewhere.model_copy(update={"reserve": {"memory": "1Gi"}}))) == 1

    server = {"image": "x/y:1", "args": ["{port}"]}
    reserves = elsewhere.model_copy(update={"reserve": {"cpu": "1"}})
    assert len(told(reserves, server=server)) == 1, "a server has its own"
    assert told(server={**server, "reserve": {"cpu": "1"}}) == []
    monkeypatch.setattr("harness.backends.kubernetes.probe.BUSY_PERCENT", 90.0)
    assert told() == []


def test_a_server_that_forgets_before_it_is_collected(scene):
    timing = Timing(step_s=1.0, record_s=20 * 86_400)
    assert scene.check(experiment=EXPERIMENT.model_copy(update={"timing": timing})) == []
    timing = Timing(step_s=1.0, record_s=30 * 86_400.0)
    server = scene.server

    class Forgetful:
        def __getattr__(self, name):
            return getattr(server, name)

        def read(self, path, **params):
            return {"storage.tsdb.retention.time": "1d"} if path == "status/flags" else server.read(path, **params)

    experiment = EXPERIMENT.model_copy(update={"timing": timing})
    [found] = check_prometheus(Forgetful(), SPEC, [experiment], SystemClock().now_s)
    assert "forgets after 86400 s" in found.message


def test_the_cost_of_a_deployment(scene):
    assert cost_of(scene.server, "inference", "work") > 0
    assert cost_of(scene.server, "monitoring", "grafana") is None
