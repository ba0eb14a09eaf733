"""What a server publishes of itself, read at a step while it is asked, and kept where it changes."""

from __future__ import annotations

import contextlib
import csv
import sys
import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from harness.replica.errors import WorkloadError
from harness.traffic.exposition import read
from harness.traffic.http_answer import BrokenAnswerError
from harness.traffic.http_page import fetch, metrics_text

FILE_NAME = "engine_metrics.csv"
COLUMNS = ("timestamp", "series", "value")
UP = "up"
UNREAD = "unread_lines"
PAGE_TIMEOUT_S = 5.0
_NO_PAGE = (OSError, BrokenAnswerError, ValueError)


class OwnMetrics:
    """Reads what a server publishes of itself (``vllm:*``, ``nv_inference_*``, ...) from a thread of its own, while it is entered.

    ``engine_metrics.csv`` in ``folder`` has a line for each series when it is first seen and whenever its value has changed, and the
    series ``up`` at every reading: 1, or 0 where the page could not be read, so that nothing missing is taken for unchanged. Lines
    that cannot be read are left out and counted by the series ``unread_lines``; the first of them is in the replica's log.
    Raises WorkloadError where the page cannot be read now, and OSError where the file cannot be written.
    """

    def __init__(self, url: str, headers: Mapping[str, str], *, step_s: float, folder: Path) -> None:
        self._url, self._headers = url, headers
        self._step_s = step_s
        self._before: dict[str, str] = {}
        self._quoted = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._go_on, name="engine-metrics", daemon=True)
        try:
            first = self._read()
        except _NO_PAGE as error:
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
        self._thread.join(2 * PAGE_TIMEOUT_S)
        with contextlib.suppress(ValueError):  # a reading that hangs may still hold it
            self._file.close()

    def _go_on(self) -> None:
        due_s = time.monotonic() + self._step_s
        while not self._over.wait(max(due_s - time.monotonic(), 0.0)):
            due_s += self._step_s
            try:
                self._write(self._read())
            except _NO_PAGE:
                self._write(None)
        with contextlib.suppress(*_NO_PAGE):
            self._write(self._read())  # counters at the end of the load

    def _read(self) -> dict[str, str]:
        values, unread = read(metrics_text(*fetch(self._url, self._headers, timeout_s=PAGE_TIMEOUT_S)))
        if unread:
            values[UNREAD] = str(len(unread))
            if not self._quoted:
                left_out = f"{len(unread)} lines cannot be read and are left out, such as {unread[0][:200]!r}"
                sys.stderr.write(f"replica: `server.metrics`: {left_out}\n")
            self._quoted = True
        return values

    def _write(self, values: dict[str, str] | None) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        self._writer.writerow((now, UP, 0 if values is None else 1))
        if values is not None:
            changed = (item for item in values.items() if self._before.get(item[0]) != item[1])
            self._writer.writerows((now, series, value) for series, value in changed)
            self._before = values
        self._file.flush()
