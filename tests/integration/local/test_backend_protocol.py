"""What every backend promises to the runner, held against the real one and the fake alike."""

import math
import os
import threading
import time

import pytest

from harness.backends.kubernetes.api import KubernetesApi
from harness.backends.local import LocalBackend
from harness.errors import BackendError, IssueLevel
from harness.results import layout
from harness.spec import KubernetesSpec, Timing
from tests.support.cluster_driver import ClusterDriver
from tests.support.cluster_trial import Trial
from tests.support.experiments import experiment
from tests.support.fake_backend import FakeBackend, recording_request
from tests.support.fake_cluster import FakeCluster
from tests.support.fake_metrics import RowList
from tests.support.processes import DRAINED_S


@pytest.fixture
def on_cluster(tmp_path):
    with FakeCluster() as cluster:
        config = cluster.write_kubeconfig(tmp_path / "kubeconfig")
        spec = KubernetesSpec(kubeconfig=str(config), gpus_per_replica=0, runtime_class=None)
        with ClusterDriver(KubernetesApi(spec), tmp_path / "node", forked=("harness.replica",)):
            yield Trial(spec)


@pytest.fixture(params=["local", "fake", "kubernetes"])
def backend(request):
    if request.param == "kubernetes":
        return request.getfixturevalue("on_cluster")
    return LocalBackend(f"protocol-{os.getpid()}") if request.param == "local" else FakeBackend()


def test_a_deployment_says_where_it_runs_is_recorded_there_and_ends_cleanly(backend, tmp_path):
    deployment = backend.deploy(experiment(replicas=2), tmp_path, abort=threading.Event(), on_death=lambda _death: None)
    try:
        assert [status["phase"] for status in deployment.statuses()] == ["serving", "serving"]
        assert deployment.provenance().host.cpus > 0
        rows = RowList()
        request = recording_request(["throughput"], Timing(step_s=0.2, stabilise_s=0, record_s=0.4), sink=rows)
        summary = deployment.recording(request).record(math.ceil(time.time() / 0.2 + 5) * 0.2, 3)
    finally:
        ends = [list(deployment.stop(timeout_s=DRAINED_S)) for _ in range(2)]

    assert (summary.rows, summary.stopped) == (3, False)
    assert {row.series for row in rows.rows} == {"replica-0", "replica-1", "all"}
    # Of a replica that got no processor there is a row with the reason.
    assert all(bool(row.value) is not bool(row.reason) for row in rows.rows if row.timestamp_s == summary.end_s)
    assert (ends, list(deployment.deaths)) == ([[], []], [])
    assert all(layout.replica_log(tmp_path, index).is_file() for index in range(2)), (
        "a cluster's are fetched at the end"
    )


def test_a_backend_looks_and_rehearses_and_leaves_nothing(backend, tmp_path):
    assert [finding for finding in backend.check([experiment()]) if finding.check != "load"] == []
    found = backend.rehearse(experiment(replicas=2), tmp_path / "rehearsal", abort=threading.Event())
    assert [finding for finding in found if finding.severity is IssueLevel.ERROR] == []
    assert list(backend.sweep()) == []


def test_an_abort_before_the_replicas_serve_is_an_error(backend, tmp_path):
    abort = threading.Event()
    abort.set()

    with pytest.raises(BackendError, match="stopped before every replica had served"):
        backend.deploy(experiment(replicas=1), tmp_path, abort=abort, on_death=lambda _death: None)
