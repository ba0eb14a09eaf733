"""An HTTP proxy in front of an API server that fails on purpose: resets, 429, 500, stalls, expired and torn watches."""

import contextlib
import json
import random
import socket
import struct
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.http_double import Answering, Double, connection_to, write_kubeconfig

FAULTS = ("reset before", "reset after", "429", "500", "503", "stall")
WATCH_FAULTS = (*FAULTS, "expired", "torn")


@dataclass
class FaultyProxy:
    """Forwards to ``upstream``; use it as a context.

    Attributes:
        share: of the requests that fail, while there are faults left.
        faults: that are left to inject.
        stall_s: how long a stalled request is silent before its connection ends.
        only: these faults; empty: all that a request of its kind can meet.
        away: while it is set, every connection is closed at once, as if nobody listened.
    """

    upstream: str
    token: str
    share: float = 0.5
    faults: int = 0
    stall_s: float = 1.0
    seed: int = 1
    only: tuple[str, ...] = ()
    away: threading.Event = field(default_factory=threading.Event)
    injected: Counter = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __enter__(self):
        self._random = random.Random(self.seed)
        self._server = Double(_Handler)
        self._server.proxy = self
        self.url = self._server.url
        self._server.__enter__()
        return self

    def __exit__(self, *_):
        self._server.__exit__()

    def write_kubeconfig(self, path: Path) -> Path:
        return write_kubeconfig(path, self.url, self.token)

    def choose(self, *, watch: bool) -> str:
        """The fault of the next request; empty: none."""
        with self._lock:
            if self.faults <= 0 or self._random.random() > self.share:
                return ""
            self.faults -= 1
            fault = self._random.choice(self.only or (WATCH_FAULTS if watch else FAULTS))
            self.injected[fault] += 1
            return fault


class _Handler(Answering):
    def reply(self):
        proxy = self.server.proxy
        body = self.body()
        if proxy.away.is_set():
            self._reset()
            return
        watch = "watch=true" in self.path
        fault = proxy.choose(watch=watch)
        if fault == "reset before":
            self._reset()
        elif fault == "stall":
            time.sleep(proxy.stall_s)
            self._reset()
        elif fault in {"429", "500", "503"}:
            self._refuse(int(fault))
        elif fault == "expired" and watch:
            self._expire()
        else:
            self._forward(body, fault)

    def _forward(self, body: bytes, fault: str) -> None:
        with contextlib.closing(connection_to(self.server.proxy.upstream)) as upstream:
            headers = {
                name: value for name, value in self.headers.items() if name.lower() not in {"host", "connection"}
            }
            upstream.request(self.command, self.path, body=body or None, headers=headers)
            answer = upstream.getresponse()
            if fault == "reset after":  # it was heard, and nobody will ever know
                answer.read1(1 << 20)
                self._reset()
                return
            self._relay(answer, torn=fault == "torn")

    def _relay(self, answer, *, torn: bool) -> None:
        self.close_connection = True
        self.send_response(answer.status)
        for name in ("Content-Type", "Content-Length", "Content-Range", "Retry-After", "Date"):
            if answer.headers.get(name) and name != "Date":
                self.send_header(name, answer.headers[name])
        self.send_header("Connection", "close")
        self.end_headers()
        while data := answer.read1(1 << 16):
            if self.server.proxy.away.is_set():
                self._reset()
                return
            self.wfile.write(data[: len(data) // 2] if torn else data)
            if torn:
                self._reset()
                return

    def _refuse(self, code: int) -> None:
        again = {"Retry_After": "0"} if code == 429 else {}
        self.answer(code, {"kind": "Status", "code": code, "message": f"injected {code}"}, **again)

    def _expire(self) -> None:
        gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
        self.answer(200, json.dumps({"type": "ERROR", "object": gone}).encode() + b"\n")

    def _reset(self) -> None:
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
