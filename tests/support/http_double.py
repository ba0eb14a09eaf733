"""What every HTTP server of a test has: it says nothing, answers whole, and ends with its block."""

from __future__ import annotations

import http.client
import json
import ssl
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self


class Answering(BaseHTTPRequestHandler):
    """One connection, that stays open."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Any

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        self.reply()

    do_POST = do_PATCH = do_DELETE = do_GET  # noqa: N815 - the base class calls them so

    def reply(self) -> None:
        """To a request, whatever its method."""
        raise NotImplementedError

    def body(self) -> bytes:
        """Of the request."""
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def answer(self, status: int, content: object = b"", kind: str = "", **headers: str) -> None:
        """With bytes, with text, or with an object as JSON."""
        if isinstance(content, str):
            content, kind = content.encode(), kind or "text/plain; version=0.0.4; charset=utf-8"
        elif not isinstance(content, bytes):
            content = json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Type": kind or "application/json", **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


class Double(ThreadingHTTPServer):
    """Listens until its block ends, in a thread.

    Args:
        handler: answers its connections.
        address: at any free port, unless one is given.
        certificate: key and certificate in one file; None: without TLS.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(
        self,
        handler: type[BaseHTTPRequestHandler],
        address: str = "127.0.0.1",
        port: int = 0,
        certificate: Path | None = None,
    ) -> None:
        super().__init__((address, port), handler)
        self.port = int(self.server_address[1])
        self.url = f"http{'s' if certificate else ''}://{address}:{self.port}"
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self.socket = context.wrap_socket(self.socket, server_side=True)

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients may hang up whenever they like."""

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


def connection_to(url: str, timeout_s: float = 60.0) -> http.client.HTTPConnection:
    """To a server of the test's own, which is believed whoever it says that it is."""
    split = urllib.parse.urlsplit(url)
    if split.scheme == "https":
        unchecked = ssl._create_unverified_context()  # noqa: S323
        return http.client.HTTPSConnection(split.netloc, timeout=timeout_s, context=unchecked)
    return http.client.HTTPConnection(split.netloc, timeout=timeout_s)


def write_kubeconfig(path: Path, server: str, token: str) -> Path:
    """Credentials for an API server; returns the path."""
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "fake", "cluster": {"server": server}}],
        "users": [{"name": "fake", "user": {"token": token}}],
        "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "fake"}}],
        "current-context": "fake",
    }
    if server.startswith("https"):
        content["clusters"][0]["cluster"]["insecure-skip-tls-verify"] = True  # type: ignore[index]
    path.write_text(json.dumps(content), encoding="utf-8")
    path.chmod(0o600)
    return path
