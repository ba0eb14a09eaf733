"""What every backend promises to the conductor, held against the real one and the fake alike."""

import os
import threading

import pytest

from harness.backends.fake import FakeBackend
from harness.backends.local import LocalBackend
from harness.errors import BackendError
from harness.results import layout
from tests.support.experiments import experiment

pytestmark = pytest.mark.integration


@pytest.fixture(params=["local", "fake"])
def backend(request):
    return LocalBackend(f"protocol-{os.getpid()}") if request.param == "local" else FakeBackend()


@pytest.fixture
def deployment(backend, tmp_path):
    deployed = backend.deploy(experiment(replicas=2), tmp_path, abort=threading.Event(), on_death=lambda _death: None)
    yield deployed
    deployed.stop(timeout_s=5)


def test_a_deployment_has_one_target_and_one_status_per_replica_in_order(deployment):
    assert [target.replica for target in deployment.targets] == [0, 1]
    assert all(target.metrics_url.startswith("http://") for target in deployment.targets)
    assert [status["phase"] for status in deployment.statuses()] == ["serving", "serving"]
    assert [status["pid"] for status in deployment.statuses()] == [target.pid for target in deployment.targets]


def test_every_replica_has_a_log(deployment, tmp_path):
    assert deployment.targets
    assert all(layout.replica_log(tmp_path, index).is_file() for index in range(2))


def test_nobody_is_dead_and_the_end_is_clean_and_can_be_asked_for_twice(deployment):
    assert list(deployment.deaths) == []
    assert list(deployment.stop(timeout_s=5)) == []
    assert list(deployment.stop(timeout_s=5)) == []
    assert list(deployment.deaths) == []


def test_an_abort_before_the_replicas_serve_is_an_error(backend, tmp_path):
    abort = threading.Event()
    abort.set()

    with pytest.raises(BackendError, match="stopped before every replica had served"):
        backend.deploy(experiment(replicas=1), tmp_path, abort=abort, on_death=lambda _death: None)


def test_looking_starts_nothing_and_there_is_nothing_to_sweep(backend):
    assert [finding for finding in backend.check([experiment()]) if finding.check != "load"] == []
    assert list(backend.sweep()) == []
