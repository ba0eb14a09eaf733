"""What an engine publishes of itself (``vllm:*``, ``nv_inference_*``, ...), read beside the load and kept as it was said.

``engine_metrics.csv`` has a line for each series when it is first seen and whenever its value has changed, and the series
``up`` at every reading: 1, or 0 where the page could not be read, so that nothing missing is taken for unchanged.
"""

from __future__ import annotations

import contextlib
import csv
import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from datetime import UTC, datetime
from http.client import HTTPException
from pathlib import Path

from harness.replica.errors import WorkloadError

FILE_NAME = "engine_metrics.csv"
COLUMNS = ("timestamp", "series", "value")
UP = "up"
TIMEOUT_S = 5.0
MOST_BYTES = 16 << 20
_SAMPLE = re.compile(r"([A-Za-z_:][\w:]*(?:\{.*\})?)[ \t]+(\S+)(?:[ \t]+-?\d+)?\s*")


def parse(page: str) -> dict[str, str]:
    """The values of a page in Prometheus's text format, by series; raises ValueError where a line is none of it."""
    values = {}
    for line in page.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        match = _SAMPLE.fullmatch(line)
        if match is None:
            raise ValueError(f"{line[:80]!r} is no line of Prometheus's text format")
        float(match[2])
        values[match[1]] = match[2]
    return values


class OwnMetrics:
    """Reads one server's page from a thread of its own, while it is entered, and writes it into ``folder``.

    Raises:
        WorkloadError: the page cannot be read now.
        OSError: the file cannot be written.
    """

    def __init__(self, url: str, headers: Mapping[str, str], *, step_s: float, folder: Path) -> None:
        self._request = urllib.request.Request(url, headers=dict(headers))  # noqa: S310 - http(s), as the harness made it
        self._step_s = step_s
        self._before: dict[str, str] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._go_on, name="engine-metrics", daemon=True)
        try:
            first = self._read()
        except (OSError, HTTPException, ValueError) as error:
            raise WorkloadError(
                f"`server.metrics`: {url} gives no metrics ({error}); check its path and port."
            ) from error
        self._file = (folder / FILE_NAME).open("w", encoding="utf-8", newline="")
        self._writer = csv.writer(self._file, lineterminator="\n")
        self._writer.writerow(COLUMNS)
        self._write(first)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(2 * TIMEOUT_S)
        with contextlib.suppress(ValueError):  # a reading that hangs may still hold it
            self._file.close()

    def _go_on(self) -> None:
        due_s = time.monotonic() + self._step_s
        while not self._over.wait(max(due_s - time.monotonic(), 0.0)):
            due_s += self._step_s
            try:
                self._write(self._read())
            except (OSError, HTTPException, ValueError):
                self._write(None)
        with contextlib.suppress(OSError, HTTPException, ValueError):
            self._write(self._read())  # counters at the end of the load

    def _read(self) -> dict[str, str]:
        with urllib.request.urlopen(self._request, timeout=TIMEOUT_S) as answer:  # noqa: S310
            page = answer.read(MOST_BYTES + 1)
        if len(page) > MOST_BYTES:
            raise ValueError(f"it is longer than {MOST_BYTES >> 20} MiB")
        return parse(page.decode("utf-8", errors="replace"))

    def _write(self, values: dict[str, str] | None) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        self._writer.writerow((now, UP, 0 if values is None else 1))
        if values is not None:
            changed = (item for item in values.items() if self._before.get(item[0]) != item[1])
            self._writer.writerows((now, series, value) for series, value in changed)
            self._before = values
        self._file.flush()
