"""The web server of the local mirrors, on loopback: repositories, files and images from a folder, Debian passed through.

Debian's own packages are fetched the way this host fetches them and kept, so that a second machine waits for nobody.
"""

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

STALL_S = 3600.0
# Below it what a registry answers, each as a file.
REGISTRY = "/v2/"


@dataclass
class Site:
    """What the server serves, and how it is to misbehave.

    folder: served as it lies there, and registry, where there is one, below /v2/. upstreams: first path component -> URL that its paths are fetched from.
    store: where fetched packages are kept. forbidden, stalled: path prefixes that answer 403, or never.
    ahead_s: how far its clock is ahead. requests: every path asked for, in order.
    """

    folder: Path
    upstreams: dict[str, str]
    store: Path
    forbidden: set[str] = field(default_factory=set)
    stalled: set[str] = field(default_factory=set)
    ahead_s: float = 0.0
    requests: list[str] = field(default_factory=list)
    registry: Path | None = None


class Server:
    """Serves a Site until closed."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self._ending = threading.Event()
        self._indexes: dict[str, bytes | None] = {}
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self._answer, site))
        self._server.daemon_threads = True
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving and release whoever was kept waiting."""
        self._ending.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _answer(self, path: str) -> tuple[HTTPStatus, bytes]:
        self.site.requests.append(path)
        if any(path.startswith(prefix) for prefix in self.site.stalled):
            self._ending.wait(STALL_S)
        if any(path.startswith(prefix) for prefix in self.site.forbidden):
            return HTTPStatus.FORBIDDEN, b"this mirror was told to refuse\n"
        content = self._content(path)
        if content is None:
            return HTTPStatus.NOT_FOUND, b"not on this mirror\n"
        return HTTPStatus.OK, content

    def _content(self, path: str) -> bytes | None:
        first, _, rest = path.lstrip("/").partition("/")
        if upstream := self.site.upstreams.get(first):
            return self._debian(upstream, first, rest)
        folder = self.site.folder
        if path.startswith(REGISTRY) and self.site.registry is not None:
            folder = self.site.registry
            if path == REGISTRY:
                return b"{}"
        wanted = (folder / path.lstrip("/")).resolve()
        if wanted.is_relative_to(folder.resolve()) and wanted.is_file():
            return wanted.read_bytes()
        return None

    def _debian(self, upstream: str, first: str, rest: str) -> bytes | None:
        with self._lock:
            if rest.startswith("pool/"):
                # A package never changes under its name: kept for good.
                kept = self.site.store / first / rest
                if not kept.exists() and (content := _fetch(f"{upstream}/{rest}")) is not None:
                    kept.parent.mkdir(parents=True, exist_ok=True)
                    kept.write_bytes(content)
                return kept.read_bytes() if kept.exists() else None
            # Indexes are frozen for the length of a test session, so that all its machines see the same archive.
            key = f"{upstream}/{rest}"
            if key not in self._indexes:
                self._indexes[key] = _fetch(key)
            return self._indexes[key]


def _fetch(url: str) -> bytes | None:
    for attempt in range(3):
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:
                content: bytes = answer.read()
                return content
        except urllib.error.HTTPError:
            return None
        except OSError:
            if attempt == 2:
                raise
            time.sleep(1 + attempt)
    return None


def _handler(answer: Callable[[str], tuple[HTTPStatus, bytes]], site: Site) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            status, content = answer(path)
            # Whoever is killed or out of patience is gone by the time of the answer.
            with suppress(ConnectionError):
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                if path.startswith(REGISTRY) and "/manifests/" in path and status == HTTPStatus.OK:
                    self.send_header("Content-Type", json.loads(content)["mediaType"])
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(content)

        def date_time_string(self, timestamp: float | None = None) -> str:
            return super().date_time_string((timestamp or time.time()) + site.ahead_s)

        do_HEAD = do_GET  # noqa: N815 - the name the base class looks for

        def log_message(self, *_: object) -> None:
            """Say nothing: the site keeps its own list of requests."""

    return Handler
