"""The HTTP session through which the client asks: its answers come whole, in time, within a bound, and are parsed fast."""

from __future__ import annotations

import contextlib
import http.client
import io
import math
import re
import socket
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import orjson
import requests
from requests.adapters import BaseAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

from harness.errors import PrometheusError

MOST_ANSWER_BYTES = 512 << 20
"""No answer of ours comes near; a server that never ends would fill the memory."""
_PIECE_BYTES = 1 << 20
_NOTES = ("warnings", "infos")
_NOTES_BYTES = 65_536
_NOTED = re.compile(rb'"(?:warnings|infos)"\s*:\s*\[')
_SAMPLES = b'"values":[['
"""Begins the samples of a series; inside a label's value its quotes would be escaped."""
_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


class AnswerSession(requests.Session):
    """One thread's connection to one server.

    ``notes``: the server's ``warnings`` and ``infos`` on its last answer, which follow the data and which the client drops.
    """

    def __init__(self, url: str, name: str, *, verify: bool | str, cert: tuple[str, str] | None) -> None:
        super().__init__()
        self.notes: tuple[str, ...] = ()
        self._name = name
        self.verify, self.cert = verify, cert
        if urlsplit(url).hostname in _LOOPBACK:
            self.headers["Accept-Encoding"] = "identity"  # packing costs the server more than the loopback
            self.trust_env = False  # no proxy leads there, and looking for one before every query takes time

    def mount(self, prefix: str | bytes, adapter: BaseAdapter) -> None:
        """Have the whole answer come within one timeout; the usual one is that of each read."""
        adapter.poolmanager.pool_classes_by_scheme = {"http": _Pool, "https": _SecurePool}  # type: ignore[attr-defined]
        super().mount(prefix, adapter)

    def send(self, request: requests.PreparedRequest, **options: Any) -> requests.Response:
        """As requests does, but for how the answer is read."""
        response = super().send(request, **options | {"stream": True})
        with contextlib.ExitStack() as left:
            left.callback(response.close)  # What is left of an answer that is too long is not read.
            content = b"".join(self._pieces(response))
            left.pop_all()
        response._content, response._content_consumed = content, True  # type: ignore[attr-defined]  # noqa: SLF001
        response.json = lambda **_: _parse(content)  # type: ignore[method-assign]
        self.notes = _notes(content)
        return response

    def _pieces(self, response: requests.Response) -> Iterator[bytes]:
        size = 0
        while piece := response.raw.read1(_PIECE_BYTES, decode_content=True):
            size += len(piece)
            if size > MOST_ANSWER_BYTES:
                raise PrometheusError(
                    f"{self._name} answers with more than {MOST_ANSWER_BYTES >> 20} MiB.",
                    advice="Ask for less at once, and check that the address is that of a Prometheus.",
                )
            yield piece


def _notes(content: bytes) -> tuple[str, ...]:
    if not _NOTED.search(content[-_NOTES_BYTES:]):
        return ()
    try:
        answer = orjson.loads(content)
    except ValueError:
        return ()  # the client is about to stumble over the same garbage
    return tuple(str(note) for kind in _NOTES for note in answer.get(kind) or ())


def _parse(content: bytes) -> Any:
    """The JSON, where the samples of a matrix are arrays of shape (n, 2) already.

    A sample is a number and a text, ``[1700000000.5,"0.25"]``: taken out of the document and freed of quotes and brackets,
    all of them are one flat list of numbers.
    """
    head, *parts = content.split(_SAMPLES)
    if not parts:
        return orjson.loads(content)
    document, numbers, counts = [head], [], []
    for number, part in enumerate(parts):
        samples, _, rest = part.partition(b"]]")
        document.append(b'"values":%d%b' % (number, rest))
        numbers.append(samples.replace(b'"NaN"', b"null").translate(None, b'[]"'))
        counts.append(1 + samples.count(b"["))
    try:
        answer = orjson.loads(b"".join(document))
        flat = np.array(orjson.loads(b"[%b]" % b",".join(numbers)), dtype=np.float64).reshape(-1, 2)
        matrices = np.split(flat, np.cumsum(counts)[:-1])
        for series in answer["data"]["result"]:
            series["values"] = matrices[series["values"]]
    except (ValueError, KeyError, TypeError, IndexError):
        return orjson.loads(content)  # infinities are no JSON, and garbage is somebody else's to complain of
    return answer


class _DeadlineReader(socket.SocketIO):
    """Reads until the timeout that the socket had at first is over."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock, "r")
        timeout_s = sock.gettimeout()
        self._until_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
        sock._io_refs += 1  # type: ignore[attr-defined]  # noqa: SLF001 - as its own makefile() does

    def readinto(self, buffer: Any) -> int | None:
        if self._until_s < math.inf:
            left_s = self._until_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError
            self._sock.settimeout(left_s)  # type: ignore[attr-defined]
        return super().readinto(buffer)


class _DeadlineResponse(http.client.HTTPResponse):
    def __init__(self, sock: socket.socket, *args: Any, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        self.fp.close()
        self.fp = io.BufferedReader(_DeadlineReader(sock))


class _DeadlineConnection(HTTPConnection):
    response_class = _DeadlineResponse


class _SecureConnection(HTTPSConnection):
    response_class = _DeadlineResponse


class _Pool(HTTPConnectionPool):
    ConnectionCls = _DeadlineConnection


class _SecurePool(HTTPSConnectionPool):
    ConnectionCls = _SecureConnection
