"""What a replica says of the whole GPU, and of the MPS daemon that it was given, before it serves."""

import os
import stat
import sys
from types import SimpleNamespace

import pytest

from harness.replica import runner
from harness.replica.gpu import whole_gpu
from harness.replica.status import closed_pipe

UUID = "GPU-5b0c"


def answer(*values):
    """An NVML function that fills its last arguments; none: NVML_ERROR_NOT_SUPPORTED."""

    def function(*arguments):
        for place, value in zip(arguments[len(arguments) - len(values) :], values, strict=True):
            place._obj.value = value
        return 0 if values else 3

    return function


def driver(**answers):
    """An H200 by way of NVML, but for what ``answers`` say."""

    def memory(_handle, place):
        place._obj.total = 150_754_820_096
        return 0

    def version(place, _size):
        place.value = b"580.159.04"
        return 0

    facts = {
        "nvmlInit_v2": lambda: 0,
        "nvmlShutdown": lambda: 0,
        "nvmlDeviceGetHandleByUUID": lambda uuid, _handle: 0 if uuid == UUID.encode() else 6,
        "nvmlSystemGetDriverVersion": version,
        "nvmlSystemGetCudaDriverVersion": answer(13_000),
        "nvmlDeviceGetMemoryInfo": memory,
        "nvmlDeviceGetEnforcedPowerLimit": answer(700_000),
        "nvmlDeviceGetMaxClockInfo": answer(1980),
        "nvmlDeviceGetNumGpuCores": answer(16_896),
        "nvmlDeviceGetCudaComputeCapability": answer(9, 0),
    }
    return SimpleNamespace(**facts | answers)


def test_the_driver_knows_the_whole_gpu_where_a_share_of_mps_hides_it():
    said = whole_gpu(UUID, driver())
    assert (said["multiprocessors"], said["driver"], said["cuda"]) == (132, "580.159.04", "13.0")
    assert (said["memory_bytes"], said["power_limit_w"], said["clock_sm_max_mhz"]) == (150_754_820_096, 700.0, 1980)


@pytest.mark.parametrize(
    ("uuid", "answers", "said"),
    [
        ("GPU-other", {}, set()),
        (UUID, {"nvmlInit_v2": lambda: 9}, set()),
        (UUID, {"nvmlDeviceGetMemoryInfo": answer(), "nvmlDeviceGetNumGpuCores": answer()}, {"driver", "cuda"}),
    ],
    ids=["another GPU", "no driver", "GB10"],
)
def test_what_the_driver_does_not_tell_is_left_out(uuid, answers, said):
    facts = whole_gpu(uuid, driver(**answers))
    assert said == facts.keys() & {"driver", "cuda", "memory_bytes", "multiprocessors"}


@pytest.mark.parametrize(
    ("mode", "control", "why"),
    [(0o755, 0o666, ""), (0o700, 0o666, "drwx------"), (0o755, 0o600, "srw"), (None, None, "there is no")],
)
def test_pipes_of_mps_that_the_replicas_user_may_not_use_are_named(tmp_path, monkeypatch, mode, control, why):
    pipe = tmp_path / "pipe"
    if mode is not None:
        pipe.mkdir()
        os.mknod(pipe / "control", stat.S_IFSOCK | control)
        (pipe / "control").chmod(control)
        pipe.chmod(mode)
    of_others = {os.R_OK | os.X_OK: 0o005, os.W_OK: 0o002}
    monkeypatch.setattr(os, "access", lambda path, needed: path.stat().st_mode & of_others[needed] == of_others[needed])

    said = closed_pipe({"CUDA_MPS_PIPE_DIRECTORY": str(pipe)})

    assert said.startswith(why) if why.startswith("there") else why in said
    assert bool(said) == bool(why)
    assert closed_pipe({}) == ""


def held(**cuda):
    return SimpleNamespace(cuda=SimpleNamespace(**cuda))


@pytest.mark.parametrize(
    ("torch", "told"),
    [
        (None, {}),
        (SimpleNamespace(), {}),  # the replica is asked while it imports
        (held(is_initialized=lambda: False), {}),
        (
            held(is_initialized=lambda: True, memory_reserved=lambda: 5, max_memory_reserved=lambda: 7),
            {"gpu_reserved_bytes": 5, "gpu_reserved_most_bytes": 7},
        ),
    ],
    ids=["without torch", "half imported", "on the CPU", "on a GPU"],
)
def test_a_replica_tells_what_torch_holds_of_the_gpu(monkeypatch, torch, told):
    monkeypatch.setitem(sys.modules, "torch", torch)

    assert runner.gpu_memory() == told
