"""What became of each request: one record, written as the load goes on.

A record is five little-endian int64: the replica that was asked, the intended time (nanoseconds since the epoch), the
send-time error, the latency from the intended time to the last byte of the answer (both nanoseconds), and the status: HTTP's,
or one of those below. A record torn by a kill is the last one; readers drop it (``harness.results.requests``).
"""

from __future__ import annotations

import os
import sys
from array import array
from pathlib import Path

FAILED = 0
"""No connection, or it broke: latency says after how long."""
UNANSWERED = -1
"""No answer in time, or none yet when the load ended."""
_FULL = 4096 * 5


class RequestsLog:
    """Appends records to a new file; nothing reaches the disk between two calls of ``flush``."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("xb", buffering=0)
        self._pending = array("q")

    @property
    def full(self) -> bool:
        """There is enough to be worth a write."""
        return len(self._pending) >= _FULL

    def append(self, replica: int, intended_ns: int, sent_ns: int, end_ns: int, status: int) -> None:
        """Add one request; instants since the epoch."""
        self._pending.extend((replica, intended_ns, sent_ns - intended_ns, end_ns - intended_ns, status))

    def flush(self) -> None:
        """Write what is pending. Raises OSError."""
        if self._pending:
            records, self._pending = self._pending, array("q")
            if sys.byteorder == "big":
                records.byteswap()
            data = memoryview(records).cast("B")
            while data:
                data = data[self._file.write(data) or 0 :]

    def close(self) -> None:
        """Write what is pending, to the disk itself. Raises OSError."""
        try:
            self.flush()
            os.fsync(self._file.fileno())
        finally:
            self._file.close()
