"""A kubelet and the cluster that it belongs to: its certificate, its registration, word that it is alive."""

import base64
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import control_plane
import yaml
from recorded import fail
from remote import Refused, Server, kubeconfig

CERTIFICATE = control_plane.ROTATED
BEAT_EVERY_S = 3.0


class Membership:
    """Of a machine whose API server is another one's."""

    def __init__(self, name: str, server: Server) -> None:
        self._name = name
        self.server = server
        self._beat_at_s = 0.0
        self.network = False

    @classmethod
    def take_up(cls, name: str, credentials: Path, bootstrap: Path) -> "Membership | None":
        """Get credentials where there are none, or ended ones, then register; None where the API server is this machine's own."""
        if not (credentials.exists() and control_plane.seconds_left(shown(credentials)) > 0):
            if not bootstrap.exists():
                fail(f"failed to run Kubelet: unable to load bootstrap kubeconfig: stat {bootstrap}: no such file")
            get_credentials(name, Server.of(bootstrap), credentials)
        keep(shown(credentials))
        server = Server.of(credentials)
        if server.here:
            return None
        membership = cls(name, server)
        membership.register()
        return membership

    def register(self) -> None:
        """Make the node's object where it is missing; a server that does not answer is asked again with each beat."""
        labels = {"kubernetes.io/hostname": self._name, "kubernetes.io/os": "linux"}
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": self._name, "labels": labels}}
        with suppress(OSError, Refused):
            self.server.ask("/api/v1/nodes", node)

    def beat(self, running: dict[str, str]) -> None:
        """Say that this machine lives and what it runs; learn whether Calico's pod is meant for it."""
        if time.monotonic() - self._beat_at_s < BEAT_EVERY_S:
            return
        self._beat_at_s = time.monotonic()
        addresses = [{"type": "InternalIP", "address": self.server.asked_from()}]
        status = {"status": {"nodeInfo": running, "addresses": addresses}}
        # A node that was deleted stays deleted until its kubelet starts anew.
        with suppress(OSError, Refused):
            self.server.ask(f"/api/v1/nodes/{self._name}/status", status, method="PUT")
            pods = self.server.ask(f"/api/v1/pods?fieldSelector=spec.nodeName={self._name}")["items"]
            self.network = any(pod["metadata"]["name"] == "calico-node" for pod in pods)


def shown(credentials: Path) -> bytes:
    """The certificate that a kubeconfig has in it, or names."""
    user = yaml.safe_load(credentials.read_text())["users"][0]["user"]
    if "client-certificate-data" in user:
        return base64.b64decode(user["client-certificate-data"])
    return Path(user["client-certificate"]).read_bytes()


def keep(certificate: bytes) -> None:
    """Have it where it is renewed; one that is there and has not ended stays."""
    if CERTIFICATE.exists() and control_plane.seconds_left(CERTIFICATE.read_bytes()) > 0:
        return
    CERTIFICATE.parent.mkdir(parents=True, exist_ok=True)
    CERTIFICATE.touch(0o600)
    CERTIFICATE.write_bytes(certificate)


def get_credentials(name: str, server: Server, credentials: Path) -> None:
    """A key, a certificate for it, and the kubeconfig that names both."""
    CERTIFICATE.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        key, request = Path(scratch, "key"), Path(scratch, "csr")
        curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        subject = ["-subj", f"/O=system:nodes/CN=system:node:{name}"]
        command = ["openssl", "req", "-new", *curve, *subject, "-keyout", str(key), "-out", str(request)]
        subprocess.run(command, check=True, capture_output=True)
        asked: dict[str, Any] = {"spec": {"request": base64.b64encode(request.read_bytes()).decode()}}
        try:
            answer = server.ask("/apis/certificates.k8s.io/v1/certificatesigningrequests", asked)
        except (OSError, Refused) as error:
            fail(f"failed to run Kubelet: cannot create certificate signing request: {error}")
        CERTIFICATE.touch(0o600)
        CERTIFICATE.write_bytes(base64.b64decode(answer["status"]["certificate"]) + key.read_bytes())
    user = {"client-certificate": str(CERTIFICATE), "client-key": str(CERTIFICATE)}
    credentials.touch(0o600)
    credentials.write_text(kubeconfig(server, user))
