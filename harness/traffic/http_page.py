"""One page of a server, read at once: whether it is ready, and what it publishes of itself. Over no proxy, whatever the environment says."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Mapping
from urllib.parse import urlsplit

from harness.traffic.http_answer import HTML, AnswerHead, AnswerParser, ForeignAnswerError
from harness.traffic.http_client import authority, head_of, tls_error

MOST_BYTES = 16 << 20
_RECEIVE_BYTES = 1 << 16
_PORTS = {"http": 80, "https": 443}
_OK = 200


def fetch(url: str, headers: Mapping[str, str], *, timeout_s: float) -> tuple[AnswerHead, bytes]:
    """GET of an http(s) address: head and body. A redirect is not followed. Raises OSError or BrokenAnswerError."""
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or _PORTS[parts.scheme]
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    request = head_of("GET", target, (host, port), {"Connection": "close", **headers}) + b"\r\n"
    deadline_s = time.monotonic() + timeout_s
    parser, pieces, size = AnswerParser(), [], 0
    with _connected(host, port, timeout_s, tls=parts.scheme == "https") as connection:
        connection.sendall(request)
        while not parser.complete:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError("timed out")
            connection.settimeout(left_s)
            if data := connection.recv(_RECEIVE_BYTES):
                pieces += (came := parser.feed(data))
                size += sum(map(len, came))
            else:
                parser.end()
            if size > MOST_BYTES:
                raise ForeignAnswerError(f"the page is longer than {MOST_BYTES >> 20} MiB")
    return parser.head or AnswerHead(0, {}), b"".join(pieces)


def _connected(host: str, port: int, timeout_s: float, *, tls: bool) -> socket.socket:
    try:
        plain = socket.create_connection((host, port), timeout_s)
    except ConnectionRefusedError as error:
        raise ConnectionRefusedError(f"nothing listens on {authority(host, port)}") from error
    if not tls:
        return plain
    try:
        return ssl.create_default_context().wrap_socket(plain, server_hostname=host)
    except ssl.SSLError as error:
        plain.close()
        raise tls_error(error, host, port) from error


def metrics_text(head: AnswerHead, body: bytes) -> str:
    """The text of a page of metrics. Raises ValueError where it is none."""
    if head.status != _OK:
        where = head.headers.get("location")
        raise ValueError(f"HTTP {head.status}" + (f", to {where}, which is not followed" if where else ""))
    if head.content_type == HTML:
        raise ValueError("it is a page in HTML, such as one to log in")
    return body.decode("utf-8", "replace")
