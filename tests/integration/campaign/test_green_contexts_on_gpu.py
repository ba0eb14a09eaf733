"""On a GPU: which multiprocessors the kernels of replicas under green contexts really run on. Skipped where there is no GPU."""

import json
import subprocess
import sys
from contextlib import ExitStack

import pytest
import torch

from harness.backends.local_replica import CAMPAIGN_VARIABLE, Lifeline, await_end, import_paths
from harness.metrics.nvml import VISIBLE, gpu_facts
from harness.sharing.mode import ThisMachine
from harness.sharing.modes import mode_of
from harness.spec import Sharing

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")

DEFAULT_STREAM = "default stream of a thread"
ENDS_WITHIN_S = 90


def read(folder, replicas):
    """What each of so many processes under the mode says."""
    gpu = gpu_facts()[0][0]
    name = f"green-{replicas}"
    with ExitStack() as stack:
        lifeline = Lifeline()
        stack.callback(lifeline.cut)
        host = ThisMachine(name, lifeline, {CAMPAIGN_VARIABLE: name}, folder / "mps")
        mode = mode_of(Sharing.GREEN_CONTEXTS)
        setup = mode.set_up(host, gpus=[gpu.uuid], limits=None, replicas_per_gpu=replicas)
        stack.callback(setup.put_back)
        processes = []
        for index in range(replicas):
            command = [
                sys.executable,
                "-m",
                "tests.support.read_multiprocessors",
                f"{folder}/{index}.json",
                f"{folder}/lock",
            ]
            environment = {VISIBLE: gpu.uuid, "PYTHONPATH": import_paths(), **setup.environment(index)}
            processes.append(lifeline.start(command, log=folder / f"{index}.log", environment=environment))
            stack.callback(await_end, processes[-1])
            stack.callback(processes[-1].terminate)
        for index, process in enumerate(processes):
            try:
                assert process.wait(ENDS_WITHIN_S) == 0, (folder / f"{index}.log").read_text()[-3000:]
            except subprocess.TimeoutExpired:
                pytest.fail((folder / f"{index}.log").read_text()[-3000:])
    return [json.loads((folder / f"{index}.json").read_text()) for index in range(replicas)]


@pytest.mark.parametrize("replicas", [3, 8])
def test_each_replica_runs_on_multiprocessors_of_its_own(tmp_path, replicas):
    said = read(tmp_path, replicas)

    for index, one in enumerate(said):
        sizes = {way: len(used) if isinstance(used, list) else used for way, used in one["ways"].items()}
        print(
            f"replica {index} of {replicas}: {one['multiprocessors']} of {len(one['whole'])} multiprocessors, by way {sizes}; "
            f"a product {one['whole_ms']:.2f} ms on all, {one['own_ms']:.2f} ms on its own, {one['together_ms']:.2f} ms beside the others; own {one['ways']['own stream']}"
        )
    for one in said:
        ways = dict(one["ways"])
        ways.pop(DEFAULT_STREAM)
        own = ways["own stream"]
        assert len(own) == one["multiprocessors"] < len(one["whole"])
        assert all(used == own for used in ways.values()), ways
        assert one["own_ms"] > 1.5 * one["whole_ms"], "cuBLAS used more than the group"
    # Under MPS %smid counts within the group, so that each process sees 0 to its size: whether two share is told by time.
    for one in said:
        assert one["together_ms"] < 1.5 * one["own_ms"], "replicas share multiprocessors"
