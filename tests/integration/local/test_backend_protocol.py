"""What every backend promises to the runner, held against the real one and the fake alike."""

import math
import os
import threading

import pytest

from harness.backends.base import RecordingRequest
from harness.backends.kubernetes.api import KubernetesApi
from harness.backends.local import LocalBackend
from harness.clock import SystemClock
from harness.errors import BackendError, IssueLevel
from harness.metrics.catalogue import select
from harness.results import layout
from harness.spec import KubernetesSpec, Timing
from tests.support.cluster_driver import ClusterDriver
from tests.support.cluster_trial import Trial
from tests.support.experiments import experiment
from tests.support.fake_backend import FakeBackend
from tests.support.fake_cluster import FakeCluster
from tests.support.fake_metrics import RowList
from tests.support.processes import DRAINED_S

pytestmark = pytest.mark.integration


@pytest.fixture
def on_cluster(tmp_path):
    with FakeCluster() as cluster:
        config = cluster.write_kubeconfig(tmp_path / "kubeconfig")
        spec = KubernetesSpec(kubeconfig=str(config), gpus_per_replica=0, runtime_class=None)
        with ClusterDriver(KubernetesApi(spec), tmp_path / "node"):
            yield Trial(spec)


@pytest.fixture(params=["local", "fake", "kubernetes"])
def backend(request):
    if request.param == "kubernetes":
        return request.getfixturevalue("on_cluster")
    return LocalBackend(f"protocol-{os.getpid()}") if request.param == "local" else FakeBackend()


@pytest.fixture
def deployment(backend, tmp_path):
    deployed = backend.deploy(experiment(replicas=2), tmp_path, abort=threading.Event(), on_death=lambda _death: None)
    yield deployed
    deployed.stop(timeout_s=DRAINED_S)


def test_a_deployment_has_one_status_per_replica_and_says_where_they_run(deployment):
    assert [status["phase"] for status in deployment.statuses()] == ["serving", "serving"]
    assert deployment.provenance().host.cpus > 0


def test_a_deployment_is_recorded_where_it_runs(deployment):
    rows, clock = RowList(), SystemClock()
    request = RecordingRequest(
        metrics=select(["throughput"]),
        timing=Timing(step_s=0.2, stabilise_s=0, record_s=0.4),
        sink=rows,
        clock=clock,
        wake=threading.Event(),
        on_tick=lambda _rows, _of_rows: None,
        notice=lambda _sentence: None,
    )
    start_s = math.ceil(clock.now_s() / 0.2 + 5) * 0.2

    summary = deployment.recording(request).record(start_s, 3)

    assert (summary.rows, summary.stopped) == (3, False)
    assert {row.series for row in rows.rows} == {"replica-0", "replica-1", "all"}
    assert all(row.value for row in rows.rows if row.timestamp_s == summary.end_s)


def test_a_backend_rehearses_and_leaves_nothing(backend, tmp_path):
    found = backend.rehearse(experiment(replicas=2), tmp_path / "rehearsal", abort=threading.Event())
    assert [finding for finding in found if finding.severity is IssueLevel.ERROR] == []


def test_every_replica_has_a_log(deployment, tmp_path):
    assert deployment.statuses()
    deployment.stop(timeout_s=DRAINED_S)  # a cluster's logs are fetched then
    assert all(layout.replica_log(tmp_path, index).is_file() for index in range(2))


def test_nobody_is_dead_and_the_end_is_clean_and_can_be_asked_for_twice(deployment):
    assert list(deployment.deaths) == []
    assert list(deployment.stop(timeout_s=DRAINED_S)) == []
    assert list(deployment.stop(timeout_s=DRAINED_S)) == []
    assert list(deployment.deaths) == []


def test_an_abort_before_the_replicas_serve_is_an_error(backend, tmp_path):
    abort = threading.Event()
    abort.set()

    with pytest.raises(BackendError, match="stopped before every replica had served"):
        backend.deploy(experiment(replicas=1), tmp_path, abort=abort, on_death=lambda _death: None)


def test_looking_starts_nothing_and_there_is_nothing_to_sweep(backend):
    assert [finding for finding in backend.check([experiment()]) if finding.check != "load"] == []
    assert list(backend.sweep()) == []
