"""Prometheus and Grafana of the recorded cluster, at their Services' addresses: by their own certificates, for who has their login."""

import base64
import ctypes
import json
import ssl
import subprocess
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml
from cluster import OBJECTS

UNAUTHORISED = 401


class Services:
    """A server for each Service whose pods would run, started anew when what it mounts has changed."""

    def __init__(self) -> None:
        self._running: dict[str, tuple[str, ThreadingHTTPServer]] = {}

    def follow(self) -> None:
        """Start and end what the objects say."""
        for name in ("prometheus", "grafana"):
            wanted = _mounted(name)
            known, server = self._running.get(name, ("", None))
            if server is not None and known != wanted:
                server.shutdown()
                server.server_close()
                del self._running[name]
            if wanted and known != wanted:
                self._running[name] = wanted, start(name)


def start(name: str) -> ThreadingHTTPServer:
    """A server at the Service's address; there is no kube-proxy, so that the address is the machine's own."""
    spec = _object("Service", name)["spec"]
    subprocess.run(["ip", "address", "replace", f"{spec['clusterIP']}/32", "dev", "lo"], check=False)
    return listening(spec["clusterIP"], spec["ports"][0]["port"], name, _secret(f"{name}-web"))


def listening(address: str, port: int, name: str, web: dict[str, str]) -> ThreadingHTTPServer:
    """A server with the certificate that is mounted; web: the Secret's values."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.TemporaryDirectory() as folder:
        pair = [Path(folder, one) for one in ("tls.crt", "tls.key")]
        for path in pair:
            path.write_text(web[path.name])
        context.load_cert_chain(*pair)
    answers = {"prometheus": Prometheus, "grafana": Grafana}[name]
    handler = type(name, (answers,), {"web": web})
    server = ThreadingHTTPServer((address, port), handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


class _Answers(BaseHTTPRequestHandler):
    web: dict[str, str] = {}  # noqa: RUF012 - of a class made for each server
    open_to_all: tuple[str, ...] = ()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        known = path in self.open_to_all or self.login(*self._given())
        body = self.body(path) if known else "Unauthorized\n"
        content = (body or "").encode()
        self.send_response((200 if body else 404) if known else UNAUTHORISED)
        self.send_header("Content-Type", "application/json" if known else "text/plain")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _given(self) -> tuple[str, str]:
        scheme, _, given = self.headers.get("Authorization", "").partition(" ")
        user, _, password = base64.b64decode(given if scheme == "Basic" else "").decode().partition(":")
        return user, password

    def login(self, user: str, password: str) -> bool:
        """Whether somebody of this name and password is let in."""
        raise NotImplementedError

    def body(self, path: str) -> str | None:
        """The answer to who is let in; None where there is none."""
        raise NotImplementedError

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class Prometheus(_Answers):
    """Asks everybody for the login of its web configuration."""

    def login(self, user: str, password: str) -> bool:
        hashed = yaml.safe_load(self.web["web.yml"])["basic_auth_users"].get(user, "")
        return bool(hashed) and bcrypt(password, hashed) == hashed

    def body(self, path: str) -> str | None:
        if path != "/api/v1/targets":
            return None
        return json.dumps({"status": "success", "data": {"activeTargets": _targets()}})


class Grafana(_Answers):
    """Tells everybody of its health, and to its administrator whether the login that it mounts is Prometheus'."""

    open_to_all = ("/api/health",)

    def login(self, user: str, password: str) -> bool:
        return password != "" and password == _secret("grafana-admin").get("password") and user == "admin"

    def body(self, path: str) -> str | None:
        if path == "/api/health":
            return json.dumps({"database": "ok"})
        if path != "/api/datasources/uid/prometheus/health":
            return None
        given, web = _secret("prometheus-access"), yaml.safe_load(_secret("prometheus-web")["web.yml"])
        hashed = web["basic_auth_users"].get(given["username"], "")
        return json.dumps({"status": "OK" if hashed and bcrypt(given["password"], hashed) == hashed else "ERROR"})


def bcrypt(password: str, hashed: str) -> str:
    """The hash of a password with another hash's salt, by the C library."""
    library = ctypes.CDLL("libcrypt.so.1")
    library.crypt.restype = ctypes.c_char_p
    return (library.crypt(password.encode(), hashed.encode()) or b"").decode()


def _mounted(name: str) -> str:
    """What the pods would be started with; empty where there would be none."""
    deployment, secret = _object("Deployment", name), _object("Secret", f"{name}-web")
    there = deployment and secret and _object("Service", name) and deployment["spec"].get("replicas", 1)
    return json.dumps(secret["data"], sort_keys=True) if there else ""


def _object(kind: str, name: str) -> dict[str, Any]:
    path = OBJECTS / kind / "monitoring" / f"{name}.json"
    try:
        return dict(json.loads(path.read_text()))
    except FileNotFoundError:
        return {}


def _secret(name: str) -> dict[str, str]:
    data = _object("Secret", name).get("data", {})
    return {key: base64.b64decode(value).decode() for key, value in data.items()}


def _targets() -> list[dict[str, object]]:
    """A target that is up for every job of the applied configuration."""
    text = _object("ConfigMap", "prometheus")["data"]["prometheus.yml"]
    jobs = [job["job_name"] for job in yaml.load(text, yaml.CSafeLoader)["scrape_configs"]]
    return [{"health": "up", "labels": {"job": job}, "scrapeUrl": "recorded", "lastError": ""} for job in jobs]
