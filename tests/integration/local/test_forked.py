"""Replicas forked from one process, which behave as new ones do."""

import signal
import threading
from types import SimpleNamespace

import psutil
import pytest

from harness.backends.forked import ForkServer
from harness.backends.local import LocalBackend
from harness.backends.local_replica import Lifeline, ReplicaSlot, import_paths
from harness.spec import Timing, WorkloadSpec
from harness.spec.replica import OF_ITS_START
from tests.support.processes import eventually

TINY = "tests.support.tiny_workload:steady"


@pytest.fixture
def server():
    made = ForkServer(TINY, {"PYTHONPATH": import_paths(), **OF_ITS_START})
    yield made
    made.close()


@pytest.fixture
def lifeline():
    made = Lifeline()
    yield made
    made.cut()


def start(server, lifeline, folder, number=0):
    environment = {"WORKLOAD": TINY, "HOST": "127.0.0.1", "PORT": "0", "REPLICA": str(number)}
    log = folder / "logs" / f"{number}.log"
    guard = server.start(lifeline.read_end, log=log, environment=environment)
    eventually(lambda: "serving" in log.read_text())
    return guard, log


def test_each_drains_by_itself_and_its_log_is_its_own(server, lifeline, tmp_path):
    assert server.ready
    (first, first_log), (second, second_log) = start(server, lifeline, tmp_path), start(server, lifeline, tmp_path, 1)

    first.terminate()

    assert first.wait(10) == 0
    assert second.poll() is None
    assert "stopped after" in first_log.read_text()
    assert "replica 1" in second_log.read_text()
    assert "replica 0" not in second_log.read_text()
    lifeline.cut()
    assert second.wait(10) == 128 + signal.SIGKILL


def test_a_killed_replica_is_told_by_its_signal(server, lifeline, tmp_path):
    guard, _ = start(server, lifeline, tmp_path)

    psutil.Process(guard.pid).children()[0].kill()

    assert guard.wait(10) == 128 + signal.SIGKILL


def test_it_ends_with_its_lifeline(server, lifeline, tmp_path):
    guard, _ = start(server, lifeline, tmp_path)
    replica = psutil.Process(guard.pid).children()[0]

    lifeline.cut()

    assert guard.wait(10) == 128 + signal.SIGKILL
    eventually(lambda: not replica.is_running())


def test_one_whose_server_was_killed_runs_on_and_its_code_is_not_known(server, lifeline, tmp_path):
    guard, _ = start(server, lifeline, tmp_path)

    server._process.kill()

    assert guard.wait(10) == -signal.SIGKILL
    eventually(lambda: not server.ready)
    lifeline.cut()
    eventually(lambda: not psutil.pid_exists(guard.pid))


def test_a_workload_that_cannot_be_imported_is_left_to_a_new_process():
    made = ForkServer("no.such.module:make", {"PYTHONPATH": import_paths()})

    assert not made.ready
    made.close()


def test_the_backend_forks_a_built_in_workload_and_no_other(monkeypatch, tmp_path):
    from tests.support.experiments import experiment

    monkeypatch.setattr("harness.spec.workload.BUILTIN_WORKLOADS", [TINY])
    backend = LocalBackend("forks")
    wishes = {"timing": {"start": "forked"}}
    try:
        deployment = backend.deploy(
            experiment(replicas=2, **wishes), tmp_path, abort=threading.Event(), on_death=lambda _death: None
        )
        parents = {psutil.Process(replica.guard.pid).ppid() for replica in deployment._replicas}
        assert deployment.stop(timeout_s=10) == []
    finally:
        backend.close()
    assert len(parents) == 1
    assert parents != {psutil.Process().pid}


def test_an_environment_may_be_larger_than_a_socket_takes_at_once(server, lifeline, tmp_path, monkeypatch):
    for number in range(5):
        monkeypatch.setenv(f"LARGE_{number}", "x" * 100_000)
    guard, _ = start(server, lifeline, tmp_path)

    guard.terminate()

    assert guard.wait(10) == 0


def test_a_replica_with_cpus_of_its_own_imports_on_them(monkeypatch, tmp_path):
    monkeypatch.setattr("harness.spec.workload.BUILTIN_WORKLOADS", [TINY])
    monkeypatch.setattr("harness.backends.local.ForkServer", lambda *_: SimpleNamespace(ready=True))
    forks = LocalBackend("forks")._forks
    workload = WorkloadSpec(name="tiny", factory=TINY)

    assert forks(ReplicaSlot(workload, 0, tmp_path), Timing(start="forked")) is not None
    of_its_own = workload.model_copy(update={"cpus_per_replica": 1})
    assert forks(ReplicaSlot(of_its_own, 0, tmp_path), Timing(start="forked")) is None
