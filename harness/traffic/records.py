"""What became of each request, and the logs of little-endian int64 that say so on disk within a second.

A record torn by a kill is the last one; readers drop it, and so does the next writer, which appends.
"""

from __future__ import annotations

import math
import os
import sys
import threading
from array import array
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path

OK, BROKEN, UNANSWERED, BAD_ANSWER, ABANDONED = 200, 0, -1, -2, -3
"""Status of a request: HTTP's; no connection, or it broke; no answer in time; not a proper answer; none yet when the load ended."""
CANCELLED, NOT_SENT = -4, -5
"""Neither success nor failure: the client hung up, as it was asked to; a turn of a session whose turn before had no good answer."""
NONE = -1
"""In place of what was not measured."""
LATENCY_FIELDS = ("start_ns", "latency_ns")
"""``latencies.bin`` of a replica: the requests that were answered well; instants are nanoseconds since the epoch."""
CLIENT_FIELDS = (
    "intended_ns",
    "send_error_ns",
    "latency_ns",
    "ttft_ns",
    "itl_p99_ns",
    "input_tokens",
    "output_tokens",
    "status",
)
"""``requests.bin`` of the client of a server; all but the first from the intended time, ``itl_p99_ns`` of the answer's own gaps."""
TURN_FIELDS = ("session", "turn")
"""``turns.bin``: of the request with the same place in ``requests.bin``; sessions count from 0, turns from 1, NONE: it has none."""
ANSWER_FIELDS = ("ttfo_ns", "pieces", "token_source", "tokenizer_tokens")
"""``answers.bin``: of the request with the same place in ``requests.bin``; ``ttfo_ns`` from the intended time to the first piece that is
no reasoning, ``token_source`` a TokenSource, ``tokenizer_tokens`` those of the prompt by the client's own tokenizer."""
GENERATED_FIELDS = ("replica", "intended_ns", "send_error_ns", "latency_ns", "status")
"""``load/requests.bin`` of the load generator."""
FLUSH_INTERVAL_S = 0.5
_VALUE_BYTES = 8


class TokenSource(IntEnum):
    """Where the number of an answer's tokens is from."""

    PIECES = 1
    """The events of its stream that carried output: no fewer tokens than that."""
    USAGE = 2
    """What the server said."""
    LISTED = 3
    """The tokens that each piece names, with their log probabilities or numbers."""
    USAGE_WITH_HIDDEN = 4
    """What the server said, with tokens of reasoning that were never sent: no time per token can be had from it."""


def nearest_rank(count: int, quantile: float) -> int:
    """Which of ``count`` ascending values, from 1, is the smallest that ``quantile`` of all do not exceed."""
    return math.ceil(quantile * count)


@dataclass(slots=True, eq=False)
class Exchange:
    """A request to the server of index ``target``, and what became of it; times are of ``time.perf_counter_ns``.

    ``token_ns`` has the arrival of each piece of a stream that carries output, ``answer_ns`` that of the first one which is no
    reasoning, 0 without one; ``source`` is where ``output_tokens`` is from, a TokenSource; ``said`` is why it failed, for people.
    ``repeated``: how often it was sent again over a fresh connection, because the server had closed the one that was kept.
    ``asked_tokens``: of the prompt, by the client's own tokenizer.
    """

    intended_ns: int
    sent_ns: int = 0
    end_ns: int = 0
    status: int = BROKEN
    token_ns: list[int] = field(default_factory=list)
    input_tokens: int = NONE
    output_tokens: int = NONE
    said: str = ""
    target: int = 0
    repeated: int = 0
    answer_ns: int = 0
    source: int = NONE
    asked_tokens: int = NONE
    session: int = NONE
    turn: int = NONE

    @property
    def send_error_ns(self) -> int:
        """By how much it was sent late; what found no room was late until its end, NONE for what was not to be sent any more."""
        if self.status == NOT_SENT:
            return NONE
        return max((self.sent_ns or self.end_ns) - self.intended_ns, 0)

    @property
    def latency_ns(self) -> int:
        """From the intended time to the end."""
        return self.end_ns - self.intended_ns

    @property
    def ttft_ns(self) -> int:
        """From the intended time to the first token; NONE without one."""
        return self.token_ns[0] - self.intended_ns if self.token_ns else NONE

    @property
    def ttfo_ns(self) -> int:
        """From the intended time to the first token of the answer itself; NONE without one."""
        return self.answer_ns - self.intended_ns if self.answer_ns else NONE

    @property
    def gaps_ns(self) -> list[int]:
        """Between one token and the next."""
        return [later - earlier for earlier, later in zip(self.token_ns, self.token_ns[1:], strict=False)]


class RecordLog:
    """Appends records of so many ``fields``; a thread of its own writes them, so that no request ever waits for a disk."""

    def __init__(self, path: Path, *, fields: int = len(LATENCY_FIELDS)) -> None:
        self.path = path
        self.error: OSError | None = None
        self._pending = array("q")
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._closed = threading.Event()
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        record_bytes = fields * _VALUE_BYTES
        os.ftruncate(self._file, os.fstat(self._file).st_size // record_bytes * record_bytes)
        os.lseek(self._file, 0, os.SEEK_END)
        threading.Thread(target=self._flush_until_closed, name="record-log", daemon=True).start()

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
