"""What the machine does to a recording (limits of control groups), and that nobody else measures there meanwhile."""

import errno
import os
import signal
import subprocess
import sys
import threading

import pytest

from harness import host
from harness.backends import devices
from harness.backends.devices import measured_on
from harness.campaign.runner import CampaignRunner
from harness.campaign.verdict import GroupWatch
from harness.clock import SystemClock
from harness.errors import DeviceInUseError, ReasonCode
from harness.host import DeviceLocks, FileLock
from harness.metrics.nvml import GpuFacts
from harness.metrics.quality import Severity
from harness.spec import Sharing, WorkloadSpec
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

    def begin(*names, wait_s=0.0, wake=None):
        lock = DeviceLocks(names or ["host"], folder=tmp_path)
        lock.said = []
        locks.append(lock)
        lock.take(SystemClock(), wake or threading.Event(), lock.said.append, wait_s)
        return lock

    yield begin
    for lock in locks:
        lock.release()


def test_a_second_harness_on_the_same_gpu_is_refused_with_the_process_that_measures(harness):
    first = harness("GPU-a", "GPU-b")

    with pytest.raises(DeviceInUseError, match=rf"process {os.getpid()}\) measures on GPU-b") as refused:
        harness("GPU-b", "GPU-c")
    assert (refused.value.exit_code, first.said) == (15, [])
    assert not harness("GPU-c").said  # nothing of the refused one is left


def test_who_waits_says_so_once_and_measures_when_the_first_has_ended(harness, monkeypatch):
    monkeypatch.setattr(host, "POLL_S", 0.01)
    first, said, began = harness(), threading.Event(), []

    def second():
        lock = DeviceLocks(["host"], folder=first._folder)
        lock.take(SystemClock(), threading.Event(), lambda sentence: (began.append(sentence), said.set()), 30.0)
        lock.release()

    waiting = threading.Thread(target=second)
    waiting.start()
    assert said.wait(30)
    first.release()
    waiting.join()

    assert [sentence.split(":")[0] for sentence in began] == ["waits up to 30 s"]


def test_an_interruption_ends_the_wait_with_nothing_held(harness):
    first, interrupted = harness("GPU-b"), threading.Event()
    interrupted.set()
    harness("GPU-a", "GPU-b", wait_s=30.0, wake=interrupted)
    first.release()

    assert harness("GPU-a", "GPU-b").said == []


def test_harnesses_on_other_gpus_measure_at_once_and_say_it(harness):
    first, second = harness("GPU-a"), harness("GPU-b", "GPU-c")

    assert first.said == second.said == []
    assert [*second.beside()] == [f"note: another harness (process {os.getpid()}) measures on GPU-a of this machine."]


def test_the_lock_of_a_killed_process_is_taken_although_a_child_of_it_lives(harness, tmp_path):
    program = f"""
import os, pathlib, sys, threading
from harness.clock import SystemClock
from harness.host import DeviceLocks
DeviceLocks(["GPU-a"], folder=pathlib.Path({str(tmp_path)!r})).take(SystemClock(), threading.Event(), print)
if not os.fork():
    print(os.getpid(), flush=True)
sys.stdin.read()
"""
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        child = int(process.stdout.readline())
        with pytest.raises(DeviceInUseError, match=f"process {process.pid}"):
            harness("GPU-a")
        process.kill()
        process.wait()
        try:
            assert harness("GPU-a").said == []
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_lock_that_cannot_be_made_is_said_and_measured_without(harness, monkeypatch):
    def full(path, *_):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(host.os, "open", full)

    assert [sentence.split(":")[0] for sentence in harness().said] == [
        "whether another harness measures here is unknown"
    ]


def test_the_file_of_another_user_is_locked_as_well(harness, monkeypatch):
    harness().release()
    opened = os.open

    def not_to_be_made(path, flags, *mode):
        if flags & os.O_CREAT:  # as of the kernel's fs.protected_regular
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return opened(path, flags, *mode)

    monkeypatch.setattr(host.os, "open", not_to_be_made)
    first = harness()

    assert first.said == []
    with pytest.raises(DeviceInUseError):
        harness()


def test_locks_are_where_every_user_has_them(monkeypatch, tmp_path):
    monkeypatch.delenv(host.LOCKS_VARIABLE)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    for writable in ("/run/lock", "/tmp", str(tmp_path)):
        monkeypatch.setattr(host.os, "access", lambda path, _mode, here=writable: str(path) == here)
        assert str(host._lock_folder()) == writable


def test_experiments_are_measured_on_their_gpus_or_on_the_machine(monkeypatch):
    gpus = [GpuFacts("a GPU", 1, 1, uuid=uuid, mig_uuids=(f"MIG-{uuid}",)) for uuid in ("GPU-a", "GPU-b")]
    monkeypatch.setattr(devices, "gpu_facts", lambda: (gpus, ""))
    one_gpu, two_gpus, cpu = experiment(), experiment(gpus=2), experiment(workload={"device": "cpu"})

    assert measured_on([one_gpu]) == {"GPU-a"}
    assert measured_on([one_gpu, two_gpus, cpu]) == {"GPU-a", "GPU-b", "host"}
    assert measured_on([cpu]) == {"host"}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-GPU-b")
    assert measured_on([one_gpu]) == {"GPU-b"}


def test_a_server_that_is_elsewhere_is_measured_on_no_gpu_of_this_machine(monkeypatch):
    monkeypatch.setattr(devices, "gpu_facts", lambda: ([GpuFacts("a GPU", 1, 1, uuid="GPU-a")], ""))

    def of(url):
        workload = WorkloadSpec(name="chat", server={"url": url, "protocol": "openai-chat"})
        return measured_on([experiment(workload=workload, sharing=Sharing.AS_FOUND)])

    assert of("http://127.0.0.1:8000") == {"GPU-a"}
    assert of("http://gpu.example:8000") == {"host"}


def test_a_lock_that_was_let_go_of_does_not_let_go_of_the_next(tmp_path):
    first, second = FileLock(tmp_path / "first"), FileLock(tmp_path / "second")
    assert first.take()
    first.release()
    assert second.take()  # the kernel gives it the number of the first
    first.release()
    try:
        assert second.is_held()
    finally:
        second.release()


@pytest.mark.parametrize("interrupted", [True, False])
def test_the_machine_is_let_go_of_whatever_ends_the_start(monkeypatch, stage, harness, interrupted):
    on, told = stage(), []
    runner = on.runner()
    monkeypatch.setattr(CampaignRunner, "here", True)
    monkeypatch.setattr(host, "_lock_folder", lambda: harness("GPU-z")._folder)
    monkeypatch.setattr("harness.campaign.runner.measured_on", lambda _experiments: {"host"})

    def ends(why):
        told.append(why)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(runner, "_end_start", ends)
    with pytest.raises(OSError, match="No space"), runner._alone():
        (runner.interrupt if interrupted else str)()

    assert (told == ["the harness was interrupted"]) == interrupted
    harness("host")
