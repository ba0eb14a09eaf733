"""A proxy as others put before their Prometheus or Mimir: TLS, a token, a tenant, and a path of its own."""

import http.client
import ssl
import threading
import urllib.parse
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.support.kubelet import certificate

BASE = "/team/prometheus"


@dataclass
class GuardedProxy:
    """Forwards ``url`` to ``upstream``; use it as a context.

    Attributes:
        folder: of its certificate, which is its own authority.
        authorization: that it asks for, whole; what it asks for may change.
        tenant: that it asks for.
        scrapes: whether it knows of targets; Mimir does not.
    """

    upstream: str
    folder: Path
    authorization: str = "Bearer s3cr3t"
    tenant: str = "team-a"
    scrapes: bool = True

    def __enter__(self):
        self.ca_file = certificate(self.folder)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.ca_file)
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.proxy = self
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = f"https://127.0.0.1:{self._server.server_address[1]}{BASE}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    proxy: GuardedProxy

    def handle_error(self, request, client_address):
        pass  # whoever does not trust the certificate hangs up


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def log_message(self, *_):
        pass

    def do_GET(self):
        proxy = self.server.proxy
        if self.headers.get("Authorization") != proxy.authorization:
            self._answer(401, b"who are you?")
        elif self.headers.get("X-Scope-OrgID") != proxy.tenant:
            self._answer(401, b"no org id")
        elif not self.path.startswith(f"{BASE}/api/") or ("/targets" in self.path and not proxy.scrapes):
            self._answer(404, b"404 page not found")
        else:
            upstream = http.client.HTTPConnection(urllib.parse.urlsplit(proxy.upstream).netloc, timeout=60)
            upstream.request("GET", self.path.removeprefix(BASE))
            answer = upstream.getresponse()
            self._answer(answer.status, answer.read())
            upstream.close()

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
