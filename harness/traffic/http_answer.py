"""The bytes of an answer over HTTP/1.1: its head, and its body in the pieces in which it arrives. Reads no socket.

The parser is httptools (llhttp). What is added here is what a client has to know besides: answers before the answer (103) are
skipped, a compressed body is decoded, and what is no HTTP/1.1 is called by its name.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass

import httptools

MOST_HEAD_BYTES = 256 << 10
"""Of a status line with all headers."""
HTML = "text/html"
_SHOWN_BYTES = 60
_SUCCESS = range(200, 300)
_NEITHER = frozenset({204, 304})
"""Have no body, whatever their headers say."""
_TLS_RECORDS = (b"\x15\x03", b"\x16\x03")
_FRAME_HEAD_BYTES = 9
_SETTINGS, _GOAWAY = 4, 7
_GZIP_OR_ZLIB = zlib.MAX_WBITS | 32
_COMPRESSED = frozenset({"gzip", "x-gzip", "deflate"})
_PLAIN = frozenset({"", "identity"})


class BrokenAnswerError(Exception):
    """The answer is no HTTP, or ended too early."""


class DroppedError(BrokenAnswerError):
    """The connection ended before one byte of the answer."""


class ForeignAnswerError(BrokenAnswerError):
    """The server speaks something else, or what is not read here: it will not answer better when it is asked again."""


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """Status and headers; names are in lower case, and the values of a repeated one are joined with commas."""

    status: int
    headers: Mapping[str, str]

    @property
    def content_type(self) -> str:
        """In lower case, without parameters, e.g. ``text/event-stream``; empty where there is none."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()


class AnswerParser:
    """Parses the answers of one connection, one after another.

    Attributes:
        head: of the answer, once it is there; None before.
        complete: the answer is whole.
        keeps_open: the server keeps the connection open after it, and sent nothing beyond it.
    """

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        # As browsers and other clients take it.
        self._parser.set_dangerous_leniencies(
            lenient_headers=True,
            lenient_chunked_length=True,
            lenient_optional_cr_before_lf=True,
            lenient_spaces_after_chunk_size=True,
        )
        self.begin()

    def begin(self) -> None:
        """Before a request is sent: what arrives now belongs to its answer."""
        self.head: AnswerHead | None = None
        self.complete = self.keeps_open = False
        self._until_closed = self._excess = False
        self._status, self._headers = 0, {}  # type: int, dict[str, str]
        self._first, self._head_bytes = b"", 0
        self._pieces: list[bytes] = []
        self._inflate: zlib._Decompress | None = None
        self._unread = ""

    def feed(self, data: bytes) -> list[bytes]:
        """The pieces of the body in what arrived. Raises BrokenAnswerError."""
        if self.head is None:
            self._first = self._first or data[:_SHOWN_BYTES]
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as error:
            protocol = self._headers.get("upgrade", "no protocol that it names")
            raise ForeignAnswerError(f"the server switched to {protocol} unasked") from error
        except httptools.HttpParserError as error:
            raise self._no_http(error) from error
        if self.head is None:
            self._head_bytes += len(data)
            if self._head_bytes > MOST_HEAD_BYTES:
                raise ForeignAnswerError(f"the answer's headers are longer than {MOST_HEAD_BYTES >> 10} KiB")
            return []
        pieces, self._pieces = self._pieces, []
        if self._unread:
            if self.head.status in _SUCCESS:
                raise ForeignAnswerError(f"the answer is compressed with {self._unread}, which was not requested")
            return []
        return pieces if self._inflate is None else self._inflated(self._inflate, pieces)

    def end(self) -> None:
        """The connection ended. Raises BrokenAnswerError unless the answer ends with it, or had ended before."""
        if self.head is not None and self._until_closed:
            self.complete = True
        if self.complete:
            return
        if not self._first:
            raise DroppedError("the server closed the connection before it answered")
        raise BrokenAnswerError("the connection closed before the answer was whole")

    def on_message_begin(self) -> None:
        """Of the parser; so are all that follow."""
        self._excess |= self.complete
        self._headers = {}
        self._head_bytes = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header, or one that follows the last chunk."""
        key, text = name.decode("latin-1").lower(), value.decode("latin-1").strip()
        before = self._headers.get(key)
        self._headers[key] = text if before is None else f"{before}, {text}"

    def on_headers_complete(self) -> None:
        """All headers are there."""
        if self.head is not None:
            return
        self._status = self._parser.get_status_code()
        if self._status < _SUCCESS.start:
            return
        if not self._parser.get_http_version().startswith("1."):
            raise httptools.HttpParserError("another version of HTTP")
        self.head = AnswerHead(self._status, self._headers)
        self.keeps_open = self._parser.should_keep_alive()
        sized = "content-length" in self._headers or "chunked" in self._headers.get("transfer-encoding", "").lower()
        self._until_closed = not sized and self._status not in _NEITHER
        coding = self._headers.get("content-encoding", "").lower()
        if coding in _COMPRESSED:
            self._inflate = zlib.decompressobj(_GZIP_OR_ZLIB)
        elif coding not in _PLAIN:
            self._unread = coding

    def on_body(self, piece: bytes) -> None:
        """Some of the body."""
        if not self.complete:
            self._pieces.append(piece)

    def on_message_complete(self) -> None:
        """The answer, or one before it, has ended."""
        self.complete = self.head is not None
        self.keeps_open &= not self._excess

    def _inflated(self, inflate: zlib._Decompress, pieces: list[bytes]) -> list[bytes]:
        try:
            plain = [inflate.decompress(piece) for piece in pieces]
            if self.complete:
                plain.append(inflate.flush())
        except zlib.error as error:
            raise BrokenAnswerError(f"the answer is not compressed as it says: {error}") from error
        return [piece for piece in plain if piece]

    def _no_http(self, error: httptools.HttpParserError) -> BrokenAnswerError:
        first = self._first
        of_frame = first[3:4] in {bytes([_SETTINGS]), bytes([_GOAWAY])} and first[5:_FRAME_HEAD_BYTES] == bytes(4)
        if of_frame or first.startswith((b"HTTP/2", b"PRI ")):
            return ForeignAnswerError("the server accepts HTTP/2 only, as gRPC does: use its port for HTTP/1.1")
        if first.startswith(_TLS_RECORDS):
            return ForeignAnswerError("the server uses TLS: call it at https://")
        if self.head is not None:
            return BrokenAnswerError(f"the answer is broken: {error}")
        return BrokenAnswerError(f"the answer is not HTTP: {first!r} ({error})")
