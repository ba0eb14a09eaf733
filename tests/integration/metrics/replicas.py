"""Real replica processes for the tests of the recorder."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from harness.metrics.row_builder import ReplicaTarget

REPOSITORY = Path(__file__).parents[3]
READY_TIMEOUT_S = 60
FORWARD = ("nice", "-n", "-10")
"""Before whatever else keeps the machine busy, where the user may; otherwise it only says so."""


@contextlib.contextmanager
def running_replicas(workload: str, count: int, folder: Path) -> Iterator[list[ReplicaTarget]]:
    """Start replicas of ``module:factory``; yields them when each serves, ends them with the block."""
    processes = []
    for index in range(count):
        (folder / str(index)).mkdir()
        environment = os.environ | {
            "WORKLOAD": workload,
            "HOST": "127.0.0.1",
            "PORT": "0",
            "REPLICA": str(index),
            "REPLICA_DIR": str(folder / str(index)),
            "WARMUP_REQUESTS": "0",
            "PYTHONPATH": str(REPOSITORY),
        }
        command = [*FORWARD, sys.executable, "-m", "harness.replica"]
        processes.append(subprocess.Popen(command, cwd=REPOSITORY, env=environment))
    try:
        yield [
            ReplicaTarget(index, process.pid, f"http://127.0.0.1:{_port(folder / str(index))}/metrics")
            for index, process in enumerate(processes)
        ]
    finally:
        for process in processes:
            process.send_signal(signal.SIGCONT)  # a test may have stopped it
            process.terminate()
        for process in processes:
            process.wait(60)


def _port(folder: Path) -> int:
    deadline_s = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline_s:
        with contextlib.suppress(OSError, ValueError):
            status = json.loads((folder / "replica.json").read_text())
            if status["phase"] == "serving":
                return int(status["port"])
        time.sleep(0.05)
    raise AssertionError(f"no replica serves in {folder}")
