"""The part of a kubelet that an API server asks for logs."""

import base64
import ipaddress
import ssl
import threading
import urllib.parse
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


def mounted(api: Any, spec: dict[str, Any], folder: Path) -> dict[str, str]:
    """Writes what a pod's ConfigMaps hold into a folder of this machine, and says where it is in place of the pod's own."""
    sources = [one for volume in spec["volumes"] for one in volume.get("projected", {}).get("sources", [])]
    if not sources:
        return {}
    given = folder / "config-maps"
    given.mkdir(parents=True)
    for one in sources:
        found = api.get(f"/api/v1/namespaces/{api.namespace}/configmaps/{one['configMap']['name']}")
        for name, data in found["binaryData"].items():
            (given / name).write_bytes(base64.b64decode(data))
    return {"GIVEN_DIR": str(given)}


class Kubelet(ThreadingHTTPServer):
    """Answers for the logs of pods, over TLS with a certificate of its own.

    Args:
        address: that it listens on, at any free port.
        folder: of its certificate.
        pods: by name, as they are at the time of asking; each with a folder of logs and the number of its restarts.
    """

    daemon_threads = True

    def __init__(self, address: str, folder: Path, pods: Mapping[str, Any]) -> None:
        super().__init__((address, 0), _Handler)
        self.pods = pods
        self.port = self.server_address[1]
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate(folder))
        self.socket = context.wrap_socket(self.socket, server_side=True)
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def handle_error(self, request, client_address):
        pass

    def close(self) -> None:
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        split = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(split.query))
        pod = self.server.pods.get(split.path.split("/")[3])
        if pod is None:
            self.send_error(404)
            return
        if split.path.split("/")[4] == "server":
            pod = pod.server
        number = pod.restarts - (query.get("previous") == "true")
        log = pod.folder / f"log-{number}"
        lines = log.read_text(errors="replace").splitlines() if log.is_file() else []
        if "tailLines" in query:
            lines = lines[-int(query["tailLines"]) :]
        data = "".join(f"{line}\n" for line in lines).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def certificate(folder: Path, address: str = "127.0.0.1") -> Path:
    """Write a key and a certificate of its own for an address into one file."""
    folder.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "kubelet")])
    begin = datetime.now(UTC) - timedelta(hours=1)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + timedelta(days=2))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path = folder / "kubelet.pem"
    path.write_bytes(
        made.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return path
