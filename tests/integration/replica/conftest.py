"""Starts real replica processes, and ends every one of them."""

import http.client
import json
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.forked import Commands

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def with_torch() -> Iterator[Commands]:
    """Replicas forked from a process that has imported torch, which is most of what a small one costs."""
    with Commands("harness.replica", ["torch", "harness.replica.runner"]) as commands:
        yield commands


class ReplicaProcess:
    """One ``python -m harness.replica`` in a folder of its own, or what is like it but for its start."""

    def __init__(self, folder: Path, environment: dict[str, str], forked: Commands | None = None) -> None:
        self.folder = folder
        self.log = folder / "replica.log"
        clean = {name: value for name, value in os.environ.items() if name not in {"WORKLOAD", "REPLICA"}}
        defaults = {"HOST": "127.0.0.1", "PORT": "0", "DEVICE": "cpu", "TORCH_THREADS": "1", "REPLICA_DIR": str(folder)}
        if forked:
            self.process = forked.start(log=self.log, cwd=folder, environment=clean | defaults | environment)
            return
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "harness.replica"],
                cwd=folder,
                env=clean | defaults | {"PYTHONPATH": str(REPOSITORY)} | environment,
                stdout=subprocess.DEVNULL,
                stderr=log,
            )

    @property
    def status(self) -> dict:
        try:
            return json.loads((self.folder / "replica.json").read_text())
        except FileNotFoundError:
            return {"phase": "", "port": None}

    @property
    def latencies(self) -> list[tuple[int, int]]:
        return list(struct.iter_unpack("<qq", (self.folder / "latencies.bin").read_bytes()))

    @property
    def last_line(self) -> str:
        return self.log.read_text().strip().splitlines()[-1]

    def wait_for(self, what: Callable[[], bool], timeout_s: float = 200.0) -> None:
        deadline_s = time.monotonic() + timeout_s
        while not what():
            assert time.monotonic() < deadline_s, f"not within {timeout_s} s: {self.status}\n{self.log.read_text()}"
            time.sleep(0.01)

    def wait_for_phase(self, phase: str, timeout_s: float = 200.0) -> None:
        self.wait_for(lambda: self.status["phase"] == phase, timeout_s)

    def wait_until_ready(self, timeout_s: float = 200.0) -> None:
        self.wait_for(self._answers, timeout_s)

    def _answers(self) -> bool:
        try:
            return self.status["port"] is not None and self.get("/health")[0] == 200
        except ConnectionError as error:
            raise AssertionError(f"it went away: {self.status}\n{self.log.read_text()}") from error

    def get(self, path: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.status["port"], timeout=60)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def metrics(self) -> dict[str, float]:
        """Unlabelled samples and the bucket +Inf of one scrape."""
        return {
            sample.name: sample.value
            for family in text_string_to_metric_families(self.get("/metrics")[1])
            for sample in family.samples
            if sample.labels.get("le", "+Inf") == "+Inf"
        }

    def stop(self, number: int = signal.SIGTERM, timeout_s: float = 60.0) -> int:
        """Signal the replica; returns its exit code, which is to come soon."""
        self.process.send_signal(number)
        return self.process.wait(timeout_s)


@pytest.fixture
def start(tmp_path) -> Iterator[Callable[..., ReplicaProcess]]:
    """Return a function that starts a replica; ``source`` becomes the module ``own`` beside it."""
    replicas: list[ReplicaProcess] = []

    def start_replica(source: str = "", *, forked: Commands | None = None, **environment: str) -> ReplicaProcess:
        folder = tmp_path / f"replica-{len(replicas)}"
        folder.mkdir()
        if source:
            (folder / "own.py").write_text(source)
            environment.setdefault("WORKLOAD", "own:make")
        replica = ReplicaProcess(folder, environment, forked)
        replicas.append(replica)
        return replica

    yield start_replica
    for replica in replicas:
        if replica.process.returncode is None:
            replica.process.kill()
            if isinstance(replica.process, subprocess.Popen):
                replica.process.wait()


OWN = """
import time
class Own:
    name = "own"
    def __init__(self, settings):
        self.settings = settings
        {init}
    def infer(self):
        {infer}
        return self.settings.batch_size
def make(settings):
    return Own(settings)
"""


@pytest.fixture
def own_source() -> Callable[..., str]:
    """Return a function that writes the source of a small workload of one's own."""
    return lambda infer="time.sleep(0.005)", init="pass": OWN.format(infer=infer, init=init)
