"""The campaign's state: one JSON object a line, written and synced before the next step begins.

A line is one write; a kill can tear only the last one, which is cut off when the journal is opened. A line ends with
the checksum of what stands before it; lines of earlier versions have none.
"""

from __future__ import annotations

import json
import os
import time
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from harness.errors import ResultsPathError
from harness.results.files import read_document, storage_errors, write_all
from harness.results.layout import iso

Event = Mapping[str, Any]
_SUM = b', "crc32": '


def read_events(path: Path) -> Iterator[Event]:
    """Every whole event, oldest first; a torn last line is left out. Raises ResultsPathError for a damaged line."""
    with storage_errors(path, "read"):
        if not path.exists():
            return
    lines = read_document(path).split(b"\n")[:-1]
    for number, line in enumerate(lines, start=1):
        yield _event(path, number, line)


def _event(path: Path, number: int, line: bytes) -> Event:
    body, summed, checksum = line.rpartition(_SUM)
    try:
        event = json.loads(line)
        intact = isinstance(event, dict) and "event" in event
        # Without a sum a line is of an earlier version, whose lines end in a word or a list, or the sum's name is damaged.
        summed_well = checksum == b"%d}" % zlib.crc32(body) if summed else not line[-2:-1].isdigit()
    except (ValueError, RecursionError):
        intact = False
    if not (intact and summed_well):
        raise ResultsPathError(f"{path} line {number} is damaged.", advice="Restore it from a backup.")
    return {name: value for name, value in event.items() if name != "crc32"}


class Journal:
    """Appends events. Hold the campaign's lock while one is open."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with storage_errors(path):
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            _cut_torn_line(self._descriptor)

    def append(self, event: str, **fields: object) -> None:
        """Write one event and make it survive a power cut. Raises StorageError."""
        body = json.dumps({"at": iso(time.time()), "event": event, **fields}, default=str).encode().removesuffix(b"}")
        with storage_errors(self._path):
            write_all(self._descriptor, b"%s%s%d}\n" % (body, _SUM, zlib.crc32(body)))
            os.fsync(self._descriptor)

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._descriptor)


def _cut_torn_line(descriptor: int) -> None:
    size = os.fstat(descriptor).st_size
    whole = os.pread(descriptor, size, 0).rfind(b"\n") + 1  # all of it: a line may be of any length
    if whole < size:
        os.ftruncate(descriptor, whole)
