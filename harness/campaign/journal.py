"""The campaign's state: one JSON object a line, written and synced before the next step begins.

A line is one write; a kill can tear only the last one, which is cut off when the journal is opened.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from harness.results.files import storage_errors, write_all
from harness.results.layout import iso

Event = Mapping[str, Any]


def read_events(path: Path) -> Iterator[Event]:
    """Every whole event, oldest first; a torn last line is left out. Raises StorageError."""
    with storage_errors(path, "read"):
        if not path.exists():
            return
        lines = path.read_bytes().split(b"\n")[:-1]
    for line in lines:
        yield json.loads(line)


class Journal:
    """Appends events. Hold the campaign's lock while one is open."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with storage_errors(path):
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            _cut_torn_line(self._descriptor)

    def append(self, event: str, **fields: object) -> None:
        """Write one event and make it survive a power cut. Raises StorageError."""
        line = json.dumps({"at": iso(time.time()), "event": event, **fields}, default=str)
        with storage_errors(self._path):
            write_all(self._descriptor, line.encode() + b"\n")
            os.fsync(self._descriptor)

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._descriptor)


def _cut_torn_line(descriptor: int) -> None:
    size = os.fstat(descriptor).st_size
    whole = os.pread(descriptor, size, 0).rfind(b"\n") + 1  # all of it: a line may be of any length
    if whole < size:
        os.ftruncate(descriptor, whole)
