"""A real Prometheus server (Debian's package) for tests and benchmarks, on data that is known."""

from __future__ import annotations

import contextlib
import shutil
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Self

import pytest

from tests.support.ports import free_port
from tests.support.replicas import FORWARD

NEEDED = pytest.mark.skipif(
    shutil.which("prometheus") is None or shutil.which("promtool") is None,
    reason="Debian's package prometheus is not installed",
)
START_TIMEOUT_S = 60
EMPTY_CONFIG = "global: {scrape_interval: 1h}\n"


def backfill(folder: Path, lines: Iterable[str]) -> Path:
    """Make a database of OpenMetrics lines (``name{labels} value seconds``) and return its folder."""
    source = folder / "samples.om"
    with source.open("w") as file:
        file.writelines(f"{line}\n" for line in lines)
        file.write("# EOF\n")
    database = folder / "data"
    subprocess.run(
        ["promtool", "tsdb", "create-blocks-from", "openmetrics", "--quiet", str(source), str(database)],
        check=True,
        capture_output=True,
        timeout=600,
    )
    source.unlink()
    return database


class RunningPrometheus:
    """A server that a test may kill and start again: same address, same data. Ends with the block."""

    def __init__(self, folder: Path, config: str = EMPTY_CONFIG, database: Path | None = None, *options: str) -> None:
        self._folder = folder
        (folder / "prometheus.yml").write_text(config)
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self._command = [
            *FORWARD,
            "prometheus",
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={database or folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{self._port}",
            "--storage.tsdb.retention.time=365d",
            *options,
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it answers."""
        log = self._folder / "prometheus.log"
        with log.open("ab") as output:
            self._process = subprocess.Popen(self._command, stdout=output, stderr=subprocess.STDOUT)
        wait_until_ready(self.url, self._process, log)

    def reload(self, config: str) -> None:
        """Have it go on with another configuration; wants its option ``--web.enable-lifecycle``."""
        (self._folder / "prometheus.yml").write_text(config)
        request = urllib.request.Request(f"{self.url}/-/reload", method="POST")
        with urllib.request.urlopen(request, timeout=START_TIMEOUT_S):
            pass

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """End it as a power cut would."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self.kill()


@contextlib.contextmanager
def prometheus(folder: Path, config: str = EMPTY_CONFIG, database: Path | None = None) -> Iterator[str]:
    """Run a server until the block ends; yields its address."""
    with RunningPrometheus(folder, config, database) as server:
        yield server.url


def wait_until_ready(
    url: str,
    process: subprocess.Popen[bytes],
    log: Path,
    *,
    headers: dict[str, str] | None = None,
    context: ssl.SSLContext | None = None,
) -> None:
    question = urllib.request.Request(f"{url}/-/ready", headers=headers or {})
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline_s:
        if process.poll() is not None:
            raise AssertionError(f"prometheus ended: {log.read_text()[-2000:]}")
        try:
            with urllib.request.urlopen(question, timeout=2, context=context):
                return
        except OSError:
            time.sleep(0.05)
    raise AssertionError(f"prometheus is not ready after {START_TIMEOUT_S} s: {log.read_text()[-2000:]}")
