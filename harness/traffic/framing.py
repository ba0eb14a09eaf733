"""What the body of an answer is made of, as its bytes arrive: server-sent events, lines of JSON, or the whole of it.

This side knows framing alone. What the data of an event means is said in ``protocols``.
"""

from __future__ import annotations

import typing
from abc import ABC, abstractmethod

from harness.traffic.http_answer import AnswerHead

_BOM = b"\xef\xbb\xbf"
_EVENTS = "text/event-stream"
_LINES = frozenset(
    {
        "application/x-ndjson",
        "application/ndjson",
        "application/jsonl",
        "application/x-jsonlines",
        "application/stream+json",
    }
)
_BEGINS_EVENTS = (b"data:", b"event:", b"id:", b"retry:", b":")
_JSON = "json"


class Event(typing.NamedTuple):
    """One event, line or body; ``arrived_ns``: when its end arrived, by ``time.perf_counter_ns``.

    ``name`` is that of a server-sent event (``event: error``), empty where it has none.
    """

    data: bytes
    arrived_ns: int
    name: str = ""


class Received(typing.NamedTuple):
    """What came of an answer, apart from what it says: head, how its body is framed, how that begins, and what it was cut off in.

    ``kind`` is that of the framing; ``cut`` is empty where the body ended well.
    """

    head: AnswerHead
    kind: str
    begin: bytes = b""
    cut: bytes = b""


class Framing(ABC):
    """Finds events in pieces of a body, however they are cut."""

    kind: typing.ClassVar[str]
    """``events``, ``lines`` or ``whole``."""

    @abstractmethod
    def feed(self, piece: bytes, arrived_ns: int) -> list[Event]:
        """The events that end in this piece."""

    @abstractmethod
    def end(self) -> list[Event]:
        """The body has ended: the events that end with it."""

    @property
    def cut(self) -> bytes:
        """What the body ended with that is no complete event; empty where it ended well. Known after ``end``."""
        return b""


class ServerSentEvents(Framing):
    """As WHATWG says: lines end in CR, LF or both; ``data`` may have several lines; an empty line ends the event."""

    kind = "events"

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        self._data: list[bytes] = []
        self._name = ""
        self._after_cr = False
        self._begins = True

    def feed(self, piece: bytes, arrived_ns: int) -> list[Event]:
        """See Framing."""
        if self._after_cr or b"\r" in piece:
            piece = self._with_lf(piece)
        end = piece.find(b"\n")
        if end < 0:
            self._rest.append(piece)
            return []
        if end == len(piece) - 2 and piece[-1:] == b"\n" and piece[:6] == b"data: " and not self._pending:
            self._begins = False
            return [Event(piece[6:-2], arrived_ns)]  # nearly all pieces: one event of one line
        first, *lines = piece.split(b"\n")
        lines.insert(0, b"".join((*self._rest, first)))
        last = lines.pop()
        self._rest = [last] if last else []
        if self._begins:
            self._begins = False
            lines[0] = lines[0].removeprefix(_BOM)
        events = []
        for line in lines:
            if line:
                self._take(line)
                continue
            if self._data:
                events.append(Event(b"\n".join(self._data), arrived_ns, self._name))
                self._data = []
            self._name = ""
        return events

    def end(self) -> list[Event]:
        """None: an event that no empty line has ended is not taken."""
        return []

    @property
    def cut(self) -> bytes:
        """The last event, where it is not complete; comments, ids and names alone are none."""
        rest = b"".join(self._rest)
        return b"\n".join([*self._data, *([rest] if rest and not rest.startswith(b":") else [])])

    @property
    def _pending(self) -> bool:
        """An event has begun."""
        return bool(self._rest or self._data or self._name)

    def _with_lf(self, piece: bytes) -> bytes:
        """The same with LF at the end of each line. A CR ends one at once; the LF of a pair may come in the next piece."""
        if self._after_cr:
            piece = piece.removeprefix(b"\n")
        if piece:
            self._after_cr = piece.endswith(b"\r")
        return piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _take(self, line: bytes) -> None:
        field, _, value = line.partition(b":")
        if field == b"data":
            self._data.append(value.removeprefix(b" "))
        elif field == b"event":
            self._name = value.removeprefix(b" ").decode(errors="replace")


class JsonLines(Framing):
    """A JSON text in each line; the last one may lack its line's end."""

    kind = "lines"

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        self._arrived_ns = 0

    def feed(self, piece: bytes, arrived_ns: int) -> list[Event]:
        """See Framing."""
        self._arrived_ns = arrived_ns
        first, *lines = piece.split(b"\n")
        if not lines:
            self._rest.append(first)
            return []
        lines.insert(0, b"".join((*self._rest, first)))
        self._rest = [lines.pop()]
        return [Event(text, arrived_ns) for line in lines if (text := line.removeprefix(_BOM).strip())]

    def end(self) -> list[Event]:
        """The line that has no end, if there is one."""
        last = b"".join(self._rest).strip()
        self._rest = []
        return [Event(last, self._arrived_ns)] if last else []


class WholeBody(Framing):
    """One event, which is the whole body."""

    kind = "whole"

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._arrived_ns = 0

    def feed(self, piece: bytes, arrived_ns: int) -> list[Event]:
        """See Framing."""
        self._pieces.append(piece)
        self._arrived_ns = arrived_ns
        return []

    def end(self) -> list[Event]:
        """The body; empty where there is none."""
        return [Event(b"".join(self._pieces), self._arrived_ns)]


def framing_of(head: AnswerHead, begin: bytes) -> Framing:
    """How an answer that was asked to stream is framed, by its content type; where that says neither, by how its body begins."""
    kind = head.content_type
    if kind == _EVENTS:
        return ServerSentEvents()
    if kind in _LINES:
        return JsonLines()
    if _JSON in kind:
        return WholeBody()
    start = begin.removeprefix(_BOM).lstrip()
    if start.startswith(_BEGINS_EVENTS) or (start and any(field.startswith(start) for field in _BEGINS_EVENTS)):
        return ServerSentEvents()
    return JsonLines() if start.startswith(b"{") else WholeBody()
