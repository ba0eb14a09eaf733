"""Connections whose answer, headers and all, has to come within one timeout: the usual one is that of each read."""

from __future__ import annotations

import http.client
import io
import math
import socket
import time
from typing import Any

from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool


class _Reader(socket.SocketIO):
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


class _Response(http.client.HTTPResponse):
    def __init__(self, sock: socket.socket, *args: Any, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        self.fp.close()
        self.fp = io.BufferedReader(_Reader(sock))


class _Connection(HTTPConnection):
    response_class = _Response


class _SecureConnection(HTTPSConnection):
    response_class = _Response


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Connection


class _SecurePool(HTTPSConnectionPool):
    ConnectionCls = _SecureConnection


POOLS = {"http": _Pool, "https": _SecurePool}
"""For ``pool_classes_by_scheme`` of a pool manager."""
