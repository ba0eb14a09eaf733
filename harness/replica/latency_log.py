"""The exact latency of every measured request, on disk within a second.

``latencies.bin``: records of two little-endian int64, the start of the request (nanoseconds since the epoch)
and its latency (nanoseconds). A record torn by a kill is the last one; readers drop it, and so does the next
writer, which appends.
"""

from __future__ import annotations

import os
import sys
import threading
from array import array
from pathlib import Path

VALUE_BYTES = 8
RECORD_BYTES = 2 * VALUE_BYTES
FLUSH_INTERVAL_S = 0.5


class LatencyLog:
    """Appends records of ``fields`` values; a thread of its own writes them, so that the request loop never waits for a disk."""

    def __init__(self, path: Path, *, fields: int = 2) -> None:
        self.path = path
        self.error: OSError | None = None
        self._pending = array("q")
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._closed = threading.Event()
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        record_bytes = fields * VALUE_BYTES
        whole_bytes = os.fstat(self._file).st_size // record_bytes * record_bytes
        os.ftruncate(self._file, whole_bytes)
        os.lseek(self._file, 0, os.SEEK_END)
        self._thread = threading.Thread(target=self._flush_until_closed, name="latency-log", daemon=True)
        self._thread.start()

    def append(self, *record: int) -> None:
        """Add one record. Raises the OSError of an earlier flush: a log with a hole in it is worth nothing."""
        if self.error is not None:
            raise self.error
        with self._lock:
            self._pending.extend(record)

    def flush(self) -> None:
        """Write what is pending. Raises OSError; nothing is written after the first failure."""
        with self._writing:
            with self._lock:
                records, self._pending = self._pending, array("q")
            if not records or self.error is not None:
                return
            if sys.byteorder == "big":
                records.byteswap()
            data = memoryview(records).cast("B")
            try:
                while data:
                    data = data[os.write(self._file, data) :]
            except OSError as error:
                self.error = error
                raise

    def close(self) -> None:
        """Write what is pending, to the disk itself, and close the file. Raises OSError."""
        if self._closed.is_set():
            return
        self._closed.set()
        try:
            self.flush()
            os.fsync(self._file)
        finally:
            os.close(self._file)

    def _flush_until_closed(self) -> None:
        while not self._closed.wait(FLUSH_INTERVAL_S):
            try:
                self.flush()
            except OSError:
                return  # kept in self.error, which the next append raises
