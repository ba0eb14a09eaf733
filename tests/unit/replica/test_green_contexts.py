"""Multiprocessors of a replica's own, against a stand-in for the driver's library, which a process of its own loads."""

import json
import os
import subprocess
import sys

import pytest

from tests.support.cuda_library import library_folder

JOIN = """
import ctypes, json, sys
from types import SimpleNamespace
library = ctypes.CDLL("libcuda.so.1")
library.fake_stream.restype = ctypes.c_void_p
used, pool = [], []
cuda = SimpleNamespace(is_available=lambda: {gpu}, synchronize=lambda: None, set_stream=used.append)
def stream(priority=0):
    if not pool or {lazy}:
        pool.append(library.fake_stream())
    return SimpleNamespace(cuda_stream=pool[-1])
cuda.Stream = stream
sys.modules["torch"] = SimpleNamespace(cuda=cuda, __version__="2")
from harness.replica import green_contexts
from harness.replica.errors import CannotBeMetError
try:
    facts = green_contexts.join()
except CannotBeMetError as error:
    sys.exit(str(error))
first = library.fake_first(ctypes.c_void_p(used[0].cuda_stream))
json.dump([facts, first, library.fake_stream()], sys.stdout)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return library_folder(tmp_path_factory.mktemp("cuda"))


def run(folder, *arguments, **variables):
    environment = os.environ | {"LD_LIBRARY_PATH": folder} | variables
    return subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("multiprocessors", "groups", "sizes"),
    [
        (132, 1, [128]),
        (132, 3, [40] * 3),
        (132, 8, [16] * 8),
        (132, 12, [8] * 12),
        (132, 16, [8] * 16),
        (132, 17, [8] * 16),
        (114, 3, [32] * 3),
        (16, 2, [8] * 2),
        (7, 1, []),
    ],
)
def test_the_groups_are_as_large_as_the_driver_makes_so_many(folder, multiprocessors, groups, sizes):
    """132 in 3 are 44, which the driver rounds up to 48, so that there would be two."""
    done = run(folder, "-m", "harness.replica.green_contexts", str(groups), FAKE_CUDA_SMS=str(multiprocessors))
    assert json.loads(done.stdout) == [multiprocessors, *sizes]


@pytest.mark.parametrize(("index", "groups", "size"), [(0, 3, 40), (2, 3, 40), (7, 8, 16), (0, 1, 128)])
def test_a_replica_uses_its_own_group_and_says_how_many_it_really_had(folder, index, groups, size):
    done = run(folder, "-c", JOIN.format(gpu=True, lazy=False), REPLICA_SM_GROUP=f"{index}/{groups}")
    facts, first, context = json.loads(done.stdout)
    assert facts == {"multiprocessors": size, "multiprocessor_group": f"{index} of {groups}"}
    assert first == index * size
    assert context == 1  # that of torch is current again


@pytest.mark.parametrize(
    ("gpu", "variables", "why"),
    [
        (False, {}, "torch 2 sees no GPU"),
        (
            True,
            {"REPLICA_SM_GROUP": "16/17"},
            "no group 16 of 17 of the GPU's multiprocessors: the driver makes 16 at most",
        ),
        (True, {"FAKE_CUDA_VERSION": "12030"}, "the driver is of CUDA 12.3, and they need 12.4 or newer"),
        (True, {"FAKE_CUDA_FAILS": "100"}, "cuInit: no CUDA-capable device is detected (100)"),
        (True, {"FAKE_CUDA_STREAMS_BEFORE": "1"}, "torch makes its streams at another time"),
        (True, {"lazy": "1"}, "torch makes its streams at another time"),
    ],
)
def test_a_replica_without_its_group_does_not_run_on_the_whole_gpu(folder, gpu, variables, why):
    variables = dict(variables)
    lazy = variables.pop("lazy", "")
    done = run(folder, "-c", JOIN.format(gpu=gpu, lazy=bool(lazy)), **{"REPLICA_SM_GROUP": "1/3"} | variables)
    assert done.returncode == 1
    assert why in done.stderr
