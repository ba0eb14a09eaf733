"""A Job that its queue has not admitted: what it waits for is told while it waits, in Kueue's words where they may be read."""

import threading

import pytest

from harness.backends.kubernetes import watch
from harness.backends.kubernetes.api import KubernetesApi
from harness.backends.kubernetes.backend import KubernetesBackend
from harness.errors import BackendError
from tests.support.experiments import experiment
from tests.support.kueue import Kueue, suspending
from tests.support.processes import DRAINED_S, eventually

FULL = "couldn't assign flavors to pod set main: insufficient unused quota for nvidia.com/gpu in flavor h100, 1 more needed"
HELD = "the Job is suspended: its queue team-a has not admitted it"


@pytest.fixture
def spec(server):
    return server.spec(kind="job", queue_name="team-a")


@pytest.fixture
def kueue(driver, monkeypatch):
    monkeypatch.setattr(watch, "QUEUE_POLL_S", 0.1)
    monkeypatch.setattr(watch, "TELL_S", 0.5)
    monkeypatch.setattr(KubernetesApi, "make", suspending(KubernetesApi.make))
    with Kueue(driver.api) as playing:
        yield playing
        assert eventually(lambda: driver.left() == [])


@pytest.fixture
def start(spec, tmp_path):
    def starting(notice, timing=None):
        of = experiment(replicas=2, timing=timing or {})
        backend = KubernetesBackend(spec, "c0ffee")
        return backend.deploy(of, tmp_path, abort=threading.Event(), on_death=lambda _death: None, notice=notice)

    return starting


def test_what_the_queue_says_is_told_once_for_each_reason_and_the_job_runs_when_it_is_admitted(spec, kueue, start):
    kueue.allow(spec)
    told = []

    def hear(sentence):
        told.append(sentence)
        steps = {1: lambda: kueue.says(FULL), 2: lambda: kueue.says("ClusterQueue gpus is inactive"), 3: kueue.admit}
        steps[len(told)]()

    running = start(hear, {"ready_timeout_s": 60})

    assert told == [
        f"waits up to 60 s: {HELD}.",
        f"waits up to 60 s: {HELD}: {FULL}.",
        f"waits up to 60 s: {HELD}: ClusterQueue gpus is inactive.",
    ]
    running.stop(timeout_s=DRAINED_S)


def test_a_job_that_is_never_admitted_ends_the_wait_with_the_queues_words(spec, kueue, start):
    kueue.allow(spec)

    with pytest.raises(BackendError, match=rf"not every replica served within 4 s: {HELD}: .* has no quota\."):
        start(lambda _sentence: kueue.says("admission check gpus has no quota", "Admitted"), {"ready_timeout_s": 4})


def test_an_account_that_may_not_read_workloads_is_told_that_the_job_is_held(server, kueue, start):
    if server.kind == "fake":
        pytest.skip("the fake knows one account, which plays the queue, too")
    told = []

    def hear(sentence):
        told.append(sentence)
        kueue.says(FULL)
        threading.Timer(1.5, kueue.admit).start()

    start(hear, {"ready_timeout_s": 60}).stop(timeout_s=DRAINED_S)

    assert told == [f"waits up to 60 s: {HELD}."]


def test_a_deployment_and_a_job_without_a_queue_are_not_asked_about(server, driver, tmp_path, monkeypatch):
    monkeypatch.setattr(watch, "TELL_S", 0.0)
    told = []

    for number, kind in enumerate(("deployment", "job")):
        backend = KubernetesBackend(server.spec(kind=kind), "c0ffee")
        folder = tmp_path / str(number)
        folder.mkdir()
        running = backend.deploy(
            experiment(replicas=1),
            folder,
            abort=threading.Event(),
            on_death=lambda _death: None,
            notice=told.append,
        )
        running.stop(timeout_s=DRAINED_S)

    assert told == []
    assert driver.left() == []
