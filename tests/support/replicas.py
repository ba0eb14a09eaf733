"""Real replica processes, without a harness that has started them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from harness.metrics.recorder import ReplicaTarget
from tests.support.processes import eventually

REPOSITORY = Path(__file__).parents[2]
FORWARD = ("nice", "-n", "-10")
"""Before whatever else keeps the machine busy, where the user may; otherwise it only says so."""


@contextlib.contextmanager
def running_replicas(
    workload: str, count: int, folder: Path, *, before: Sequence[str] = FORWARD, **environment: str
) -> Iterator[list[ReplicaTarget]]:
    """Start replicas of a workload, each in a folder of its number; yields them when each serves, ends them with the block.

    before: words of the command that come first.
    """
    processes = []
    for index in range(count):
        (folder / str(index)).mkdir()
        own = os.environ | {
            "WORKLOAD": workload,
            "HOST": "127.0.0.1",
            "PORT": "0",
            "REPLICA": str(index),
            "REPLICA_DIR": str(folder / str(index)),
            "WARMUP_REQUESTS": "0",
            "PYTHONPATH": str(REPOSITORY),
        }
        command = [*before, sys.executable, "-m", "harness.replica"]
        processes.append(subprocess.Popen(command, cwd=REPOSITORY, env=own | environment))
    try:
        yield [_serving(index, process, folder / str(index)) for index, process in enumerate(processes)]
    finally:
        for process in processes:
            process.send_signal(signal.SIGCONT)  # a test may have stopped it
            process.terminate()
        for process in processes:
            process.wait(60)


def status_of(folder: Path) -> dict[str, Any]:
    """What the replica of a folder says of itself; nothing yet: an empty one."""
    with contextlib.suppress(OSError, ValueError):
        return dict(json.loads((folder / "replica.json").read_text()))
    return {}


def _serving(index: int, process: subprocess.Popen[bytes], folder: Path) -> ReplicaTarget:
    def over() -> bool:
        return status_of(folder).get("phase") == "serving" or process.poll() is not None

    assert eventually(over), f"no replica serves in {folder}"
    assert process.poll() is None, f"the replica ended with {process.poll()}: {status_of(folder)}"
    return ReplicaTarget(index, process.pid, f"http://127.0.0.1:{status_of(folder)['port']}/metrics")
