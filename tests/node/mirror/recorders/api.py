"""The API server's port of a recorded control plane: what a machine that joins, and then its kubelet, ask of it.

Who asks is known by a bootstrap token or by a client certificate that the cluster's authority signed. A request for a
certificate is signed at once; the real one is approved by a controller a moment later.
"""

import base64
import json
import ssl
import subprocess
import tempfile
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_network
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import cluster
import control_plane
import serving
import yaml
from recorded import API_PORT

HEALTH = ("/readyz", "/livez", "/healthz")
CONFIG_MAPS = "/api/v1/namespaces/kube-system/configmaps/"
CLUSTER_INFO = "/api/v1/namespaces/kube-public/configmaps/cluster-info"
REQUESTS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
NODES = "/api/v1/nodes"
NODE_USER = "system:node:"


class Answer(Exception):  # noqa: N818 - ends a request wherever it is
    """What is said to the one who asked."""

    def __init__(self, status: int, content: object) -> None:
        super().__init__(status)
        self.status = status
        self.content = content


class Api(BaseHTTPRequestHandler):
    """Answers one connection."""

    protocol_version = "HTTP/1.1"
    connection: ssl.SSLSocket

    def do_GET(self) -> None:
        self._reply(get)

    def do_POST(self) -> None:
        self._reply(post)

    def do_PUT(self) -> None:
        self._reply(put)

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def _reply(self, function: Any) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else {}
        try:
            function(self.path, self._user(), body)
            answer = Answer(404, message("the server could not find the requested resource"))
        except Answer as given:
            answer = given
        content = json.dumps(answer.content).encode()
        self.send_response(answer.status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _user(self) -> str:
        """Who asks; empty for nobody in particular."""
        certificate = self.connection.getpeercert() or {}
        names = dict(pair for part in certificate.get("subject", ()) for pair in part)
        if name := str(names.get("commonName", "")):
            return name
        given = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if given and given not in control_plane.tokens():
            raise Answer(401, message("Unauthorized"))
        return f"system:bootstrap:{given.partition('.')[0]}" if given else ""


def message(text: str) -> dict[str, str]:
    """The body of a refusal."""
    return {"kind": "Status", "message": text}


def get(path: str, user: str, _: object) -> None:
    """Reading."""
    if path.startswith(HEALTH):
        raise Answer(200, "ok")
    if path == CLUSTER_INFO:
        data = {f"jws-kubeconfig-{token.partition('.')[0]}": "signed" for token in control_plane.tokens()}
        raise Answer(200, {"data": data | {"kubeconfig": yaml.safe_dump(control_plane.kubeconfig(""))}})
    if path.startswith(CONFIG_MAPS):
        allow(bool(user), user, "configmaps")
        answer_with(cluster.read(cluster.kind_of("configmap"), "kube-system", path.removeprefix(CONFIG_MAPS)))
    if path.startswith(f"{REQUESTS}/"):
        allow(user.startswith(NODE_USER), user, "certificatesigningrequests")
        answer_with(cluster.read(serving.kind(), "", path.removeprefix(f"{REQUESTS}/")))
    if path.startswith(f"{NODES}?"):
        name = selected(path)
        allow(user == NODE_USER + name, user, "nodes")
        found = cluster.read(cluster.kind_of("node"), "", name)
        raise Answer(200, {"items": [found] if found else []})
    if path.startswith(f"{NODES}/"):
        allow(user.startswith("system:bootstrap:"), user, "nodes")
        answer_with(cluster.read(cluster.kind_of("node"), "", path.removeprefix(f"{NODES}/")))
    if path.startswith("/api/v1/pods?"):
        allow(user == NODE_USER + selected(path), user, "pods")
        every_node = cluster.listing(cluster.kind_of("daemonset"), None)
        raise Answer(200, {"items": [{"metadata": item["metadata"]} for item in every_node]})


def selected(path: str) -> str:
    """What a field selector wants its one field to be."""
    return parse_qs(urlsplit(path).query)["fieldSelector"][0].partition("=")[2]


def post(path: str, user: str, body: Any) -> None:
    """Creating: a certificate, the node itself."""
    if path == REQUESTS and body["spec"].get("signerName") == serving.SIGNER:
        allow(user.startswith(NODE_USER), user, "certificatesigningrequests")
        raise Answer(201, serving.store(body, user))
    if path == REQUESTS:
        allow(user.startswith("system:bootstrap:"), user, "certificatesigningrequests")
        certificate = sign(base64.b64decode(body["spec"]["request"]))
        raise Answer(201, body | {"status": {"certificate": base64.b64encode(certificate).decode()}})
    if path == NODES:
        name = body["metadata"]["name"]
        allow(user == NODE_USER + name, user, f'nodes "{name}"')
        if cluster.read(cluster.kind_of("node"), "", name):
            raise Answer(409, message(f'nodes "{name}" already exists'))
        body["spec"] = {"podCIDR": free_subnet()}
        cluster.write(body)
        raise Answer(201, body)


def put(path: str, user: str, body: Any) -> None:
    """Word from a node's kubelet that it is alive, and what it runs."""
    name = path.removeprefix(f"{NODES}/").removesuffix("/status")
    allow(user == NODE_USER + name, user, f'nodes "{name}"')
    node = cluster.read(cluster.kind_of("node"), "", name)
    if node is not None:
        heartbeats = cluster.HEARTBEATS
        heartbeats.mkdir(parents=True, exist_ok=True)
        partial = heartbeats / f".{name}"
        partial.write_text(json.dumps({"at": time.time()} | body["status"]))
        partial.rename(heartbeats / f"{name}.json")
    answer_with(node)


def allow(allowed: bool, user: str, what: str) -> None:
    """Refuse as the real one does."""
    if not allowed:
        raise Answer(403, message(f'{what} is forbidden: User "{user or "system:anonymous"}" cannot do that'))


def answer_with(item: cluster.Object | None) -> None:
    """Give the object, or say that there is none."""
    raise Answer(200, item) if item else Answer(404, message("not found"))


def free_subnet() -> str:
    """The first part of the pod network that no node hands out yet."""
    settings = cluster.read(cluster.kind_of("configmap"), "kube-system", "kubeadm-config") or {}
    network = yaml.safe_load(settings["data"]["ClusterConfiguration"])["networking"]["podSubnet"]
    used = {item["spec"].get("podCIDR") for item in cluster.listing(cluster.kind_of("node"), None)}
    return next(str(part) for part in ip_network(network).subnets(new_prefix=24) if str(part) not in used)


def sign(request: bytes) -> bytes:
    """A certificate for a kubelet; a request in another's name is refused."""
    with tempfile.TemporaryDirectory() as scratch:
        asked = Path(scratch, "request.csr")
        asked.write_bytes(request)
        show = ["openssl", "req", "-in", str(asked), "-noout", "-subject", "-nameopt", "RFC2253"]
        subject = subprocess.run(show, check=True, capture_output=True, text=True).stdout.strip()
        if "CN=system:node:" not in subject or "O=system:nodes" not in subject:
            raise Answer(400, message(f"no request of a kubelet: {subject}"))
        return control_plane.sign(asked, "extendedKeyUsage=clientAuth")


def take_certificate(server: ThreadingHTTPServer) -> None:
    """Serve with the certificate that is there now, if a whole one is: the real one reads it again once a minute and at its start."""
    pki = control_plane.ETC / "pki"
    with suppress(OSError):
        server.socket.context.load_cert_chain(pki / "apiserver.crt", pki / "apiserver.key")  # type: ignore[attr-defined]


def serve() -> ThreadingHTTPServer:
    """Listen with the certificate that kubeadm made; certificates of its authority say who asks."""
    pki = control_plane.ETC / "pki"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pki / "apiserver.crt", pki / "apiserver.key")
    context.load_verify_locations(pki / "ca.crt")
    context.verify_mode = ssl.CERT_OPTIONAL
    server = ThreadingHTTPServer(("0.0.0.0", API_PORT), Api)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    return server
