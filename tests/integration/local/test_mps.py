"""MPS for local replicas: a daemon of our own, with real processes; on the real one where there is a GPU."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
from pathlib import Path

import psutil
import pytest

from harness.backends.local import LocalBackend
from harness.errors import BackendError, ReplicaDiedError
from harness.metrics.nvml import GpuFacts
from harness.results import layout
from harness.sharing.mps import CONTROL
from harness.spec import ConditionSpec, MpsLimits, Sharing
from tests.support.cuda_library import library_folder
from tests.support.experiments import experiment, neighbour
from tests.support.processes import eventually, marked

FAKE = Path(__file__).parents[2] / "support/fake_mps_control.py"

REAL = shutil.which(CONTROL) is not None and Path("/dev/nvidiactl").exists()


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """A control program of ours, first on the path."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / CONTROL
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {FAKE} "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.skipif(not REAL, reason="no GPU here"))])
def control(request):
    """The fake or the original; answers with the factory of a workload that becomes a client of it."""
    if request.param == "fake":
        request.getfixturevalue("fake")
        return "steady"
    return "on_the_gpu"


@pytest.fixture
def campaign_id(request):
    yield (identity := f"mps-{os.getpid()}-{abs(hash(request.node.name)) % 10**6}")
    assert eventually(lambda: marked(identity) == [])
    LocalBackend(identity).sweep()
    assert list(Path(tempfile.gettempdir()).glob(f"harness-mps-{identity}-*")) == []


def deploy(tmp_path, campaign_id, *, sharing=Sharing.MPS, **wishes):
    spec = experiment(sharing=sharing, timing={"ready_timeout_s": 60}, **wishes)
    folder = tmp_path / "attempt"
    folder.mkdir()
    return LocalBackend(campaign_id).deploy(spec, folder, abort=threading.Event(), on_death=lambda _death: None)


def test_replicas_are_clients_of_a_daemon_of_their_own_within_its_limits(control, tmp_path, campaign_id):
    limits = MpsLimits(share="1/N", pinned_memory_gb=2)
    deployment = deploy(tmp_path, campaign_id, factory=control, replicas=2, mps=limits)

    for target in deployment.targets:
        environment = psutil.Process(target.pid).environ()
        assert environment["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "50"
        assert environment["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=2000M"
        assert environment["CUDA_MPS_PIPE_DIRECTORY"].startswith(tempfile.gettempdir())
    assert list(deployment.stop(timeout_s=60)) == []
    assert layout.mps_logs(tmp_path / "attempt").joinpath("daemon.log").exists()


TORCH = """
import ctypes
class cuda:
    library = ctypes.CDLL("libcuda.so.1")
    library.fake_stream.restype = ctypes.c_void_p
    is_available = staticmethod(lambda: True)
    synchronize = set_stream = staticmethod(lambda *_: None)
    pool = []
    class Stream:
        def __init__(self, priority=0):
            cuda.pool.append(cuda.library.fake_stream())
            self.cuda_stream = cuda.pool[0]
"""
"""As much of torch as a replica needs to have its streams in a group of the stand-in for the driver."""


@pytest.mark.usefixtures("fake")
def test_replicas_and_neighbours_under_green_contexts_have_groups_of_their_own(tmp_path, campaign_id, monkeypatch):
    (tmp_path / "site").mkdir()
    (tmp_path / "site/torch.py").write_text(TORCH, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    monkeypatch.setenv("LD_LIBRARY_PATH", library_folder(tmp_path))
    beside = ConditionSpec(name="beside", neighbours=[neighbour()])

    deployment = deploy(tmp_path, campaign_id, sharing=Sharing.GREEN_CONTEXTS, replicas=2, condition=beside)

    said = [*deployment.statuses(), *deployment.neighbour_statuses()["noisy"]]
    assert [(status["multiprocessors"], status["multiprocessor_group"]) for status in said] == [
        (40, f"{group} of 3") for group in range(3)
    ]
    assert all(status["mps_pipe_directory"] for status in said)
    assert list(deployment.stop(timeout_s=60)) == []


@pytest.mark.usefixtures("fake")
def test_a_replica_that_gets_no_group_ends_the_experiment_with_the_reason(tmp_path, campaign_id, monkeypatch):
    monkeypatch.setenv("LD_LIBRARY_PATH", "")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(ReplicaDiedError, match=r"REPLICA_SM_GROUP: torch .* sees no GPU that could have groups"):
        deploy(tmp_path, campaign_id, sharing=Sharing.GREEN_CONTEXTS, replicas=1)


@pytest.mark.usefixtures("fake")
def test_each_gpu_has_a_daemon_of_its_own_with_the_replicas_there(tmp_path, campaign_id, monkeypatch):
    gpus = [GpuFacts(name="Test", total_bytes=1, free_bytes=1, uuid=uuid) for uuid in ("GPU-a", "GPU-b")]
    monkeypatch.setattr("harness.backends.devices.gpu_facts", lambda: (gpus, ""))
    deployment = deploy(tmp_path, campaign_id, replicas=3, gpus=2)

    environments = [psutil.Process(target.pid).environ() for target in deployment.targets]
    assert [one["CUDA_VISIBLE_DEVICES"] for one in environments] == ["GPU-a", "GPU-b", "GPU-a"]
    pipes = [one["CUDA_MPS_PIPE_DIRECTORY"] for one in environments]
    assert pipes[0] == pipes[2] != pipes[1]
    daemons = [one.environ() for one in marked(campaign_id) if one.cmdline()[-1] == "-f"]
    served = {(one["CUDA_MPS_PIPE_DIRECTORY"], one["CUDA_VISIBLE_DEVICES"]) for one in daemons}
    assert served == {(pipes[0], "GPU-a"), (pipes[1], "GPU-b")}
    assert list(deployment.stop(timeout_s=60)) == []
    logs = layout.mps_logs(tmp_path / "attempt")
    assert all(logs.joinpath(name, "daemon.log").exists() for name in ("gpu0", "gpu1"))


def test_a_daemon_that_ends_by_itself_is_said(control, tmp_path, campaign_id):
    deployment = deploy(tmp_path, campaign_id, factory=control, replicas=1)
    under_guard = [process for process in marked(campaign_id) if process.cmdline()[-1] == "-f"]
    daemon = next(process for process in under_guard if "supervisor.py" not in " ".join(process.cmdline()))

    daemon.send_signal(signal.SIGKILL)
    # Its guard, who tells the harness, ends a moment later.
    assert eventually(lambda: all(not one.is_running() or one.status() == psutil.STATUS_ZOMBIE for one in under_guard))
    problems = deployment.stop(timeout_s=60)

    assert any("the MPS daemon ended by itself" in problem for problem in problems)


def test_nothing_of_mps_outlives_a_killed_harness(control, tmp_path, campaign_id):
    script = f"""
        import pathlib, threading, time
        from tests.integration.local.test_mps import deploy
        deploy(pathlib.Path({str(tmp_path)!r}), {campaign_id!r}, factory={control!r}, replicas=2)
        print("up", flush=True)
        time.sleep(3600)
    """
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE) as harness:
        assert harness.stdout.readline() == b"up\n"
        assert len(marked(campaign_id)) >= 6  # a guard, a daemon, a server; two guards and two replicas
        harness.kill()
    assert eventually(lambda: marked(campaign_id) == [])


@pytest.mark.usefixtures("fake")
def test_a_replica_beside_mps_is_an_error_and_not_a_measurement(tmp_path, campaign_id, monkeypatch):
    monkeypatch.setenv("FAKE_MPS_BLIND", "1")
    with pytest.raises(BackendError, match="replica 0 runs beside MPS and not under it"):
        deploy(tmp_path, campaign_id, replicas=1)


@pytest.mark.usefixtures("fake")
def test_a_daemon_that_does_not_start_is_an_error_in_its_own_words(tmp_path, campaign_id, monkeypatch):
    monkeypatch.setenv("FAKE_MPS_REFUSES", "1")
    with pytest.raises(
        BackendError, match="the MPS daemon ended with 1: An instance of this daemon is already running"
    ):
        deploy(tmp_path, campaign_id, replicas=1)
