"""A real Prometheus server (Debian's package) for tests and benchmarks, on data that is known."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from tests.integration.metrics.replicas import FORWARD

INSTALLED = shutil.which("prometheus") is not None and shutil.which("promtool") is not None
START_TIMEOUT_S = 60
EMPTY_CONFIG = "global: {scrape_interval: 1h}\n"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def backfill(folder: Path, lines: list[str]) -> Path:
    """Make a database of OpenMetrics lines (``name{labels} value seconds``) and return its folder."""
    source = folder / "samples.om"
    source.write_text("".join(f"{line}\n" for line in [*lines, "# EOF"]))
    database = folder / "data"
    subprocess.run(
        ["promtool", "tsdb", "create-blocks-from", "openmetrics", "--quiet", str(source), str(database)],
        check=True,
        capture_output=True,
        timeout=300,
    )
    source.unlink()
    return database


@contextlib.contextmanager
def prometheus(folder: Path, config: str = EMPTY_CONFIG, database: Path | None = None) -> Iterator[str]:
    """Run a server until the block ends; yields its address."""
    (folder / "prometheus.yml").write_text(config)
    port = free_port()
    log = (folder / "prometheus.log").open("wb")
    process = subprocess.Popen(
        [
            *FORWARD,
            "prometheus",
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={database or folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--storage.tsdb.retention.time=365d",
        ],
        stdout=log,
        stderr=subprocess.STDOUT,
    )
    try:
        wait_until_ready(f"http://127.0.0.1:{port}", process, folder / "prometheus.log")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        log.close()


def wait_until_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline_s:
        if process.poll() is not None:
            raise AssertionError(f"prometheus ended: {log.read_text()[-2000:]}")
        try:
            with urllib.request.urlopen(f"{url}/-/ready", timeout=2):
                return
        except OSError:
            time.sleep(0.05)
    raise AssertionError(f"prometheus is not ready after {START_TIMEOUT_S} s: {log.read_text()[-2000:]}")
