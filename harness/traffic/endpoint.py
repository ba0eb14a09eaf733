"""The HTTP endpoint of a replica and of a pod that sends: what is GET of each of a few paths.

Small on purpose. The standard library's HTTP server parses headers as e-mail and answers in several writes,
which costs the request loop its interpreter lock and a kept-alive client 40 ms (Nagle's algorithm against
delayed acknowledgements); here a request is one line that matters and an answer is one write.
"""

from __future__ import annotations

import re
import socket
import socketserver
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

_MAX_LINE_BYTES = 8192
_MAX_HEADERS = 100
_MAX_CONNECTIONS = 128
"""Each has a thread; more than a Prometheus or two and a harness ever open."""
_OPEN_RANGE = re.compile(rb"bytes=(\d{1,18})-")


@dataclass(frozen=True, slots=True)
class Response:
    """One answer; ``file`` is sent in place of the body, from the byte that the request's range begins with."""

    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    file: Path | None = None


Routes = dict[str, Callable[[], Response]]


class Endpoint(socketserver.ThreadingTCPServer):
    """Serves ``routes`` on ``host:port`` (port 0: any free one) from a thread of its own. Raises OSError."""

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, host: str, port: int, routes: Routes) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.routes = routes
        self._free = threading.Semaphore(_MAX_CONNECTIONS)
        super().__init__((host, port), _Handler)
        self._thread = threading.Thread(target=self.serve_forever, args=(0.2,), name="endpoint", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self.server_address[1])

    def close(self) -> None:
        """Stop listening."""
        self.shutdown()
        self.server_close()

    def process_request(self, request: socket.socket | tuple[bytes, socket.socket], client_address: object) -> None:
        """Hang up at once when there are too many."""
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(
        self, request: socket.socket | tuple[bytes, socket.socket], client_address: object
    ) -> None:
        """Serve one connection, then make room for the next."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing when a client hung up."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _Handler(socketserver.StreamRequestHandler):
    """One connection, kept alive until the client ends it or is silent for a minute."""

    timeout = 60
    disable_nagle_algorithm = True
    server: Endpoint

    def handle(self) -> None:
        while (line := self.rfile.readline(_MAX_LINE_BYTES)).strip():
            words = line.decode("latin-1").split()
            headers = self._headers()
            if len(words) != 3 or headers is None:
                self._send(Response(400, b"bad request\n"), keep=False)
                return
            method, target, version = words
            keep = version == "HTTP/1.1" and b"close" not in headers.get(b"connection", b"").lower()
            # A body is never read, so the connection cannot be used again after one.
            keep = keep and headers.get(b"content-length", b"0") == b"0" and b"transfer-encoding" not in headers
            response = self._answer(method, target)
            if response.file is None:
                self._send(response, keep=keep, head=method == "HEAD")
            else:
                self._send_file(response, response.file, headers.get(b"range", b""), keep=keep, head=method == "HEAD")
            if not keep:
                return

    def _headers(self) -> dict[bytes, bytes] | None:
        headers: dict[bytes, bytes] = {}
        for _ in range(_MAX_HEADERS):
            line = self.rfile.readline(_MAX_LINE_BYTES)
            if line in {b"\r\n", b"\n", b""}:
                return headers
            name, _, value = line.partition(b":")
            headers[name.strip().lower()] = value.strip()
        return None

    def _answer(self, method: str, target: str) -> Response:
        if method not in {"GET", "HEAD"}:
            return Response(405, b"only GET is served here\n")
        routes = self.server.routes
        route = routes.get(f"/{target.partition('?')[0].strip('/')}")  # who hands it on may add to it
        return route() if route else Response(404, f"try {', '.join(routes)}\n".encode())

    def _send(self, response: Response, *, keep: bool, head: bool = False) -> None:
        header = _header(response.status, response.content_type, len(response.body), keep=keep)
        self.request.sendall(header + (b"" if head else response.body))

    def _send_file(self, response: Response, path: Path, wanted: bytes, *, keep: bool, head: bool) -> None:
        """Send a file as it is now, or its end: ``bytes=N-`` is the one range that is understood."""
        match = _OPEN_RANGE.fullmatch(wanted)
        first = int(match[1]) if match else 0
        with path.open("rb") as stream:
            size = stream.seek(0, 2)
            if first > size:
                self._send(Response(416, b"the file is not that long\n"), keep=keep, head=head)
                return
            status = 206 if match else response.status
            span = f"Content-Range: bytes {first}-{size - 1}/{size}\r\n" if match else ""
            self.request.sendall(_header(status, response.content_type, size - first, keep=keep, more=span))
            if not head and size > first:
                self.request.sendfile(stream, first, size - first)


def _header(status: int, content_type: str, length: int, *, keep: bool, more: str = "") -> bytes:
    return (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n"
        f"Content-Type: {content_type}\r\nContent-Length: {length}\r\n{more}"
        f"Connection: {'keep-alive' if keep else 'close'}\r\n\r\n"
    ).encode()
