"""The Kubernetes backend on an API server: what it makes, sees, says, fetches and leaves behind."""

import threading
import time

import pytest

from harness.results import latencies, layout
from tests.support.experiments import experiment

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore:Unverified HTTPS request"),  # the test's API server signs for itself
]


def wait_for(what, timeout_s=15):
    deadline_s = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < deadline_s, "it did not happen"
        time.sleep(0.02)


@pytest.fixture
def deaths():
    return []


@pytest.fixture
def deploy(backend, tmp_path, deaths):
    """Deploys, and stops what a test has left running."""
    made = []

    def deploying(of=None, *, by=backend, abort=None):
        folder = tmp_path / f"attempt-{len(made)}"
        folder.mkdir()
        made.append(by.deploy(of or experiment(), folder, abort=abort or threading.Event(), on_death=deaths.append))
        return made[-1], folder

    yield deploying
    for deployment in made:
        deployment.stop(timeout_s=4)


def test_replicas_are_deployed_asked_and_ended_and_nothing_is_left(deploy, driver):
    deployment, folder = deploy(experiment(replicas=3))

    statuses = deployment.statuses()
    assert [status["replica"] for status in statuses] == [0, 1, 2]
    assert {status["phase"] for status in statuses} == {"serving"}
    assert [status["pod"] for status in statuses] == driver.names()
    assert {status["node"] for status in statuses} == {"node-a"}
    assert statuses[0]["image_id"].startswith("registry.example/workload@sha256:")
    assert deployment.provenance().host.hostname == "node-a"
    assert deployment.provenance().host.memory_bytes == 16 * 2**30

    assert list(deployment.stop(timeout_s=4)) == []
    assert list(deployment.stop(timeout_s=4)) == []
    assert driver.left() == []
    assert list(deployment.deaths) == []
    for index in range(3):
        requests = latencies.read(layout.replica_folder(folder, index) / layout.RAW_LATENCIES)
        assert len(requests) > 1
        assert (layout.replica_folder(folder, index) / "replica.json").is_file()
        assert "serving" in layout.replica_log(folder, index).read_text()
