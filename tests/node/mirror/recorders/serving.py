"""The certificate that a kubelet serves with, where its configuration says that it asks for one: asked, approved, signed, taken."""

import base64
import json
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import cluster
import control_plane
from recorded import fail
from remote import Refused, Server

CERTIFICATE = Path("/var/lib/kubelet/pki/kubelet-server-current.pem")
KEY = Path("/var/lib/kubelet/pki/kubelet-server-asked.key")
SIGNER = "kubernetes.io/kubelet-serving"
AGAIN_DAYS = 90
REQUESTS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"


def kind() -> cluster.Kind:
    """Requests for certificates, as the API names them."""
    return cluster.kind_of("certificatesigningrequest")


class Serving:
    """What one kubelet asks for; server: another machine's API, None where it is this machine's own."""

    def __init__(self, settings: dict[str, Any], server: Server | None, name: str, address: str) -> None:
        self._wanted = bool(settings.get("serverTLSBootstrap"))
        self._server, self._name, self._address = server, name, address
        self._read_s = self._ends_s = 0.0

    def follow(self) -> None:
        """Ask where nothing was asked or what was signed ends soon, take what was signed."""
        if not self._wanted or not self._due():
            return
        with suppress(OSError, Refused):
            found = self._read()
            if found is None and self._node():
                self._write(request(self._node(), self._address))
            elif found and "certificate" in found.get("status", {}):
                CERTIFICATE.touch(0o600)
                CERTIFICATE.write_bytes(base64.b64decode(found["status"]["certificate"]) + KEY.read_bytes())
                KEY.unlink()

    def _due(self) -> bool:
        """Whether there is no certificate, or one that ends soon: the kubelet asks anew at 70 to 90 % of its time."""
        if not CERTIFICATE.exists():
            return True
        changed_s = CERTIFICATE.stat().st_mtime
        if changed_s != self._read_s:
            self._ends_s = time.time() + control_plane.seconds_left(CERTIFICATE.read_bytes())
            self._read_s = changed_s
        return time.time() > self._ends_s - AGAIN_DAYS * 86400

    def _node(self) -> str:
        """The node's name; empty while the control plane has none."""
        return self._name if self._server else cluster.control_plane_node()

    def _read(self) -> dict[str, Any] | None:
        name = request_name(self._node())
        if self._server is None:
            return cluster.read(kind(), "", name) if KEY.exists() else None
        try:
            return dict(self._server.ask(f"{REQUESTS}/{name}")) if KEY.exists() else None
        except Refused:
            return None

    def _write(self, item: dict[str, Any]) -> None:
        if self._server is None:
            cluster.write(item)
        else:
            self._server.ask(REQUESTS, item)


def request_name(node: str) -> str:
    """A node's one request; the real ones end at random."""
    return f"csr-{node}"


def request(node: str, address: str) -> dict[str, Any]:
    """A new key, and the request for it under the node's name and address."""
    KEY.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch, "csr")
        subject = ["-subj", f"/O=system:nodes/CN=system:node:{node}"]
        names = ["-addext", f"subjectAltName=DNS:{node},IP:{address}"]
        command = ["openssl", "req", "-new", *control_plane.NEW_KEY, *subject, *names]
        subprocess.run([*command, "-keyout", str(KEY), "-out", str(path)], check=True, capture_output=True)
        text = base64.b64encode(path.read_bytes()).decode()
    spec = {"request": text, "signerName": SIGNER, "usages": ["digital signature", "server auth"]}
    identity = {"username": f"system:node:{node}", "groups": ["system:nodes", "system:authenticated"]}
    name = {"name": request_name(node)}
    return {
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": name,
        "spec": spec | identity,
    }


def approve(words: list[str]) -> None:
    """`certificate approve NAME`: the controller that signs is quick here."""
    if words[:1] != ["approve"] or len(words) != 2:
        fail(f"this recorder does not know: kubectl certificate {' '.join(words)}")
    item = cluster.read(kind(), "", words[1])
    if item is None:
        fail(f'Error from server (NotFound): certificatesigningrequests.certificates.k8s.io "{words[1]}" not found')
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch, "csr")
        path.write_bytes(base64.b64decode(item["spec"]["request"]))
        shown = subprocess.run(["openssl", "req", "-in", str(path), "-noout", "-text"], check=True, capture_output=True)
        names = shown.stdout.decode().partition("Subject Alternative Name:")[2].splitlines()[1].strip()
        names = names.replace("IP Address:", "IP:").replace(" ", "")
        certificate = control_plane.sign(path, f"subjectAltName={names}\nextendedKeyUsage=serverAuth")
    signed = {"certificate": base64.b64encode(certificate).decode()}
    cluster.write(item | {"status": {"conditions": [{"type": "Approved", "status": "True"}], **signed}})
    print(f"certificatesigningrequest.certificates.k8s.io/{words[1]} approved")


def answer(path: str) -> str | None:
    """What the API server says of a kubelet's health: only of one whose certificate it knows; None for another question."""
    if not path.endswith("/proxy/healthz"):
        return None
    node = path.removeprefix("/api/v1/nodes/").partition("/")[0]
    item = cluster.read(kind(), "", request_name(node))
    if item is None or "status" not in item:
        fail(
            "Error from server (InternalError): tls: failed to verify certificate: x509: certificate signed by unknown authority"
        )
    return "ok"


def store(body: dict[str, Any], user: str) -> dict[str, Any]:
    """A worker's request, under the name of who asks."""
    item = json.loads(json.dumps(body))
    item["spec"]["username"] = user
    cluster.write(item)
    return dict(item)
