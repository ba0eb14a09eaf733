"""What the machine does to a recording: limits of control groups, and a second harness."""

import errno
import os
import threading
from contextlib import suppress

import pytest

from harness.campaign import verdict
from harness.campaign.verdict import GroupWatch, MachineLock, measured_on
from harness.clock import SystemClock
from harness.errors import ReasonCode
from harness.metrics.nvml import GpuFacts
from harness.metrics.quality import Severity
from tests.support.cgroups import Machine
from tests.support.experiments import experiment


def of(findings):
    return [(finding.severity, finding.code) for finding in findings]


@pytest.mark.parametrize(
    ("files", "codes"),
    [
        ({}, []),
        ({"cpu__stat": "nr_periods 120\nnr_throttled 5"}, []),
        ({"cpu__stat": "nr_periods 120\nnr_throttled 60"}, [ReasonCode.CPU_THROTTLED]),
        ({"cpu__max": "150000 100000"}, [ReasonCode.LIMITS_CHANGED]),
        ({"cpu__max": "max 100000"}, [ReasonCode.LIMITS_CHANGED]),
        ({"memory__max": 7}, [ReasonCode.LIMITS_CHANGED]),
    ],
    ids=["nothing", "a little", "throttled", "more", "no limit any more", "less memory"],
)
def test_what_the_limits_did_to_a_recording_degrades_it(tmp_path, files, codes):
    machine = Machine(tmp_path).in_group("/a").has("", cgroup__controllers="cpu memory")
    machine.has("a", cpu__max="50000 100000", cpu__stat="nr_periods 20\nnr_throttled 0")
    watch = GroupWatch(machine.cgroup)
    machine.has("a", **files)

    assert of(watch.findings()) == [(Severity.DEGRADED, code) for code in codes]


@pytest.fixture
def harness(tmp_path):
    """Another harness each time; what each was told is kept."""
    locks = []

    def begin(*names, wait_s=0.0):
        lock = MachineLock(names or ["host"], folder=tmp_path)
        lock.said = []
        lock.acquire(SystemClock(), threading.Event(), lock.said.append, wait_s)
        locks.append(lock)
        return lock

    yield begin
    for lock in locks:
        list(lock.release())


def test_two_harnesses_that_measure_at_once_are_both_degraded_and_the_next_is_not(harness):
    first, second = harness(), harness()

    assert (first.said, len(second.said)) == ([], 1)
    assert of(first.release()) == of(second.release()) == [(Severity.DEGRADED, ReasonCode.HOST_SHARED)]
    assert of(harness().release()) == []


def test_who_waits_until_the_first_has_ended_is_alone(harness):
    first = harness()
    waiting = threading.Thread(target=lambda: found.append(harness(wait_s=30)))
    found = []
    waiting.start()
    with suppress(StopIteration):
        assert of(first.release()) == []
    waiting.join()

    assert of(found[0].release()) == []


def test_harnesses_on_other_gpus_do_not_meet(harness):
    first, second = harness("GPU-a"), harness("GPU-b", "GPU-c")

    assert of([*first.release(), *second.release()]) == []


def test_a_lock_that_cannot_be_made_is_said_and_measured_without(tmp_path, monkeypatch):
    def full(path, *_):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(verdict.os, "open", full)
    lock = MachineLock(["host"], folder=tmp_path)
    lock.acquire(SystemClock(), threading.Event(), print)

    assert of(lock.release()) == [(Severity.INFO, ReasonCode.NOT_JUDGED)]


def test_the_file_of_another_user_is_locked_as_well(tmp_path, monkeypatch):
    opened = os.open

    def not_for_writing(path, flags, *mode):
        if flags & os.O_CREAT:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return opened(path, flags, *mode)

    MachineLock(["host"], folder=tmp_path).acquire(SystemClock(), threading.Event(), print)
    monkeypatch.setattr(verdict.os, "open", not_for_writing)
    lock = MachineLock(["host"], folder=tmp_path)
    lock.acquire(SystemClock(), threading.Event(), lambda _sentence: None, 0.0)

    assert of(lock.release()) == [(Severity.DEGRADED, ReasonCode.HOST_SHARED)]


def test_an_experiment_is_measured_on_its_gpus_or_on_the_machine(monkeypatch):
    gpus = [GpuFacts("a GPU", 1, 1, uuid=uuid) for uuid in ("GPU-a", "GPU-b")]
    monkeypatch.setattr(verdict, "gpu_facts", lambda: (gpus, ""))

    assert measured_on(experiment()) == ["GPU-a"]
    assert measured_on(experiment(gpus=2)) == ["GPU-a", "GPU-b"]
    assert measured_on(experiment(workload={"device": "cpu"})) == ["host"]
