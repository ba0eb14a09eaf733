"""Scrapes every replica at once, over connections that stay open, within one deadline.

``begin`` sends all requests; ``collect`` takes the answers as they come. One thread, one selector:
a replica that hangs costs the others nothing, and the harness one connection.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from harness.errors import MetricsError
from harness.metrics.exposition import ReplicaParser, ReplicaSample

_RECEIVE_BYTES = 1 << 18
_MAX_ANSWER_BYTES = 1 << 24
_CONNECT_TIMEOUT_S = 0.05
"""Replicas listen on this machine: a connection that takes longer is a replica that is not there."""


@dataclass(frozen=True, slots=True)
class Missing:
    """Why a value could not be read; short and constant, because it becomes a row's reason."""

    reason: str


class _Connection:
    """One replica's keep-alive connection and the answer that is arriving on it."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise MetricsError(f"The metrics address {url!r} is not an http:// address.")
        self._address = (parts.hostname, parts.port or 80)
        path = parts.path or "/metrics"
        self._request = (
            f"GET {path} HTTP/1.1\r\nHost: {parts.netloc}\r\nAccept: text/plain;version=0.0.4\r\n"
            "Accept-Encoding: identity\r\nConnection: keep-alive\r\n\r\n"
        ).encode()
        self.socket: socket.socket | None = None
        self._answer = bytearray()
        self._fresh = False
        self.parser = ReplicaParser()

    def send(self) -> None:
        """Send one request, over the open connection or a new one. Raises OSError."""
        self._answer.clear()
        if self.socket is not None:
            try:
                self._fresh = False
                self.socket.sendall(self._request)
            except OSError:
                self.close()
        if self.socket is None:
            self._connect()

    def _connect(self) -> None:
        self.socket = socket.create_connection(self._address, timeout=_CONNECT_TIMEOUT_S)
        self._fresh = True
        try:
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.socket.sendall(self._request)
            self.socket.setblocking(False)
        except OSError:
            self.close()
            raise

    def receive(self) -> str | None:
        """Take what has arrived; the body once it is complete. Raises OSError or MetricsError."""
        if self.socket is None:
            raise MetricsError("the connection is closed")
        try:
            data = self.socket.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        if not data and not self._answer and not self._fresh:
            # The server had closed the idle connection: that is no failure, ask again on a new one.
            self.close()
            self._connect()
            raise _ReconnectedError
        self._answer += data
        if len(self._answer) > _MAX_ANSWER_BYTES:
            raise MetricsError("the answer is larger than 16 MiB")
        body, keep = _complete_body(bytes(self._answer), ended=not data)
        if body is not None and not keep:
            self.close()
        if body is None and not data:
            raise MetricsError("the connection closed in mid-answer")
        return body

    def close(self) -> None:
        """Close; the next request opens a new connection."""
        if self.socket is not None:
            with contextlib.suppress(OSError):
                self.socket.close()
        self.socket = None


class _ReconnectedError(Exception):
    """The request was sent again on another socket."""


class Scraper:
    """Reads the ``/metrics`` of every replica."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._connections = [_Connection(url) for url in urls]
        self._results: list[ReplicaSample | Missing | None] = [None] * len(urls)
        self._selector = selectors.DefaultSelector()

    def begin(self) -> None:
        """Send every request."""
        for index, connection in enumerate(self._connections):
            self._results[index] = None
            try:
                connection.send()
            except OSError as error:
                self._fail(index, f"no connection: {_name(error)}")
            else:
                self._watch(index)

    def collect(self, timeout_s: float) -> list[ReplicaSample | Missing]:
        """Take the answers; whoever has not answered within ``timeout_s`` seconds is missing."""
        deadline_s = time.monotonic() + timeout_s
        while self._selector.get_map():
            ready = self._selector.select(max(deadline_s - time.monotonic(), 0.0))
            if not ready:
                break
            for key, _ in ready:
                self._take(key.data)
        for index, result in enumerate(self._results):
            if result is None:
                self._fail(index, "no answer in time")
        return [result or Missing("not read") for result in self._results]

    def close(self) -> None:
        """Close every connection."""
        for connection in self._connections:
            connection.close()
        self._selector.close()

    def _take(self, index: int) -> None:
        connection = self._connections[index]
        if connection.socket is not None:
            self._selector.unregister(connection.socket)
        try:
            body = connection.receive()
            if body is not None:
                self._results[index] = connection.parser.parse(body)
        except _ReconnectedError:
            pass
        except MetricsError as error:
            self._fail(index, error.message)
            return
        except OSError as error:
            self._fail(index, f"no connection: {_name(error)}")
            return
        if self._results[index] is None:
            self._watch(index)

    def _watch(self, index: int) -> None:
        connection = self._connections[index]
        if connection.socket is not None:
            self._selector.register(connection.socket, selectors.EVENT_READ, index)

    def _fail(self, index: int, reason: str) -> None:
        """A half-read connection is of no more use: a late answer must not be taken for the next one."""
        connection = self._connections[index]
        if connection.socket is not None and connection.socket in {
            key.fileobj for key in self._selector.get_map().values()
        }:
            self._selector.unregister(connection.socket)
        connection.close()
        self._results[index] = Missing(f"the replica's /metrics: {reason}")


def _name(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "timed out"
    return (error.strerror or type(error).__name__).lower()


def _complete_body(answer: bytes, *, ended: bool) -> tuple[str | None, bool]:
    """Body of a complete answer (None while it is not) and whether the connection can be kept."""
    head, separator, body = answer.partition(b"\r\n\r\n")
    if not separator:
        return None, True
    status, *lines = head.decode("latin-1").split("\r\n")
    version, _, code = status.partition(" ")
    if not version.startswith("HTTP/") or not code.startswith("200"):
        raise MetricsError(f"the server answered {code[:40] or 'no HTTP'!r}")
    headers = {
        name.strip().lower(): value.strip().lower() for name, _, value in (line.partition(":") for line in lines)
    }
    connection = headers.get("connection", "")
    keep = "close" not in connection and (version != "HTTP/1.0" or "keep-alive" in connection)
    if "chunked" in headers.get("transfer-encoding", ""):
        plain = _dechunk(body)
    elif "content-length" in headers:
        length = int(headers["content-length"]) if headers["content-length"].isdigit() else 0
        plain = body[:length] if len(body) >= length else None
    else:
        plain, keep = (body if ended else None), False
    return (None if plain is None else plain.decode("utf-8", "replace")), keep


def _dechunk(body: bytes) -> bytes | None:
    """Undo chunked transfer coding; None while the last chunk has not come."""
    plain = bytearray()
    while True:
        size_line, separator, rest = body.partition(b"\r\n")
        if not separator:
            return None
        try:
            size = int(size_line.split(b";")[0], 16)
        except ValueError as error:
            raise MetricsError("the answer's chunks are broken") from error
        if size == 0:
            return bytes(plain)
        if len(rest) < size + 2:
            return None
        plain += rest[:size]
        body = rest[size + 2 :]
