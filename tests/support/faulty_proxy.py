"""An HTTP proxy in front of an API server that fails on purpose: resets, 429, 500, stalls, expired and torn watches."""

import http.client
import json
import random
import socket
import ssl
import struct
import threading
import time
import urllib.parse
from collections import Counter
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

FAULTS = ("reset before", "reset after", "429", "500", "503", "stall")
WATCH_FAULTS = (*FAULTS, "expired", "torn")
NO_CHECK = ssl._create_unverified_context()  # noqa: S323 - the test's own server on loopback


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
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.proxy = self
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()

    def write_kubeconfig(self, path: Path) -> Path:
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "faulty", "cluster": {"server": self.url}}],
            "users": [{"name": "faulty", "user": {"token": self.token}}],
            "contexts": [{"name": "faulty", "context": {"cluster": "faulty", "user": "faulty"}}],
            "current-context": "faulty",
        }
        path.write_text(json.dumps(content))
        return path

    def choose(self, *, watch: bool) -> str:
        """The fault of the next request; empty: none."""
        with self._lock:
            if self.faults <= 0 or self._random.random() > self.share:
                return ""
            self.faults -= 1
            fault = self._random.choice(self.only or (WATCH_FAULTS if watch else FAULTS))
            self.injected[fault] += 1
            return fault


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request, client_address):
        pass  # clients that hang up are part of the plan


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_):
        pass

    def do_GET(self):
        proxy = self.server.proxy
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
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

    do_POST = do_PATCH = do_DELETE = do_GET  # noqa: N815 - the base class calls them so

    def _forward(self, body: bytes, fault: str) -> None:
        split = urllib.parse.urlsplit(self.server.proxy.upstream)
        secure = split.scheme == "https"
        upstream = (
            http.client.HTTPSConnection(split.netloc, timeout=60, context=NO_CHECK)
            if secure
            else http.client.HTTPConnection(split.netloc, timeout=60)
        )
        try:
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
        finally:
            upstream.close()

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
        data = json.dumps({"kind": "Status", "code": code, "message": f"injected {code}"}).encode()
        self.send_response(code)
        if code == 429:
            self.send_header("Retry-After", "0")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _expire(self) -> None:
        gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
        data = json.dumps({"type": "ERROR", "object": gone}).encode() + b"\n"
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _reset(self) -> None:
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
