"""Runs load generators and what they send to, as processes of their own, and reads their logs."""

import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from harness.results.requests import GENERATED
from harness.traffic.generator import LoadPlan
from harness.traffic.records import CLIENT_FIELDS
from tests.support.processes import eventually

ROOT = Path(__file__).parents[2]


@contextmanager
def fake_service(median_ms, sigma=0.0, seed=0):
    """The port of a server that answers after known times."""
    command = [sys.executable, "-m", "tests.support.fake_service", str(median_ms), str(sigma), str(seed)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


def start(plan: LoadPlan) -> subprocess.Popen:
    """Start a generator; its plan lies beside its log."""
    path = Path(plan.log).with_suffix(".json")
    path.write_text(plan.model_dump_json())
    return subprocess.Popen(
        [sys.executable, "-m", "harness.traffic.generator", str(path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def run(plan: LoadPlan) -> np.ndarray:
    """Run a generator to the end of its plan; returns its records."""
    assert start(plan).wait(timeout=plan.duration_s + 30) == 0
    return records(Path(plan.log))


def records(log: Path) -> np.ndarray:
    return np.fromfile(log, dtype=GENERATED)


def plan_for(port, folder: Path, **wishes) -> LoadPlan:
    values = {"targets": [("127.0.0.1", port)], "rate": 100.0, "duration_s": 1.0, "log": str(folder / "requests.bin")}
    return LoadPlan(**{**values, **wishes})


def asked_of(log: Path) -> dict[str, np.ndarray]:
    """What the client of a user's server wrote down: a column of all requests for each field."""
    return dict(zip(CLIENT_FIELDS, np.fromfile(log, dtype="<i8").reshape(-1, len(CLIENT_FIELDS)).T, strict=True))


def wait_for_requests(count: int, *logs: Path, timeout_s: float = 120.0) -> None:
    """Until each client has written down so many."""
    size = count * 8 * len(CLIENT_FIELDS)
    there = eventually(lambda: all(log.is_file() and log.stat().st_size >= size for log in logs), timeout_s)
    assert there, [log.stat() for log in logs]
