"""Questions to the API server of another machine, over TLS: by whoever joins, by its kubelet, by its kubectl."""

import base64
import json
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

import yaml
from recorded import fail, option

if TYPE_CHECKING:
    import ssl

WITHIN_S = 5.0


class Refused(Exception):  # noqa: N818 - it is what the server did
    """The server's own answer: status and message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message


class Server(NamedTuple):
    """An API server and who asks it.

    authority: PEM of the certificate that vouches for it; empty: whoever answers is believed.
    token, certificate: the one or the other (a PEM file with its key) says who asks; both empty: nobody in particular.
    """

    url: str
    authority: str = ""
    token: str = ""
    certificate: str = ""

    @classmethod
    def of(cls, kubeconfig: Path) -> "Server":
        """The one that a kubeconfig names."""
        content = yaml.load(kubeconfig.read_text(), yaml.CSafeLoader)
        cluster, user = content["clusters"][0]["cluster"], content["users"][0]["user"]
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        return cls(cluster["server"], authority, user.get("token", ""), user.get("client-certificate", ""))

    @property
    def here(self) -> bool:
        """Whether it is this machine's own: one can bind to this machine's addresses only."""
        with socket.socket() as probe:
            try:
                probe.bind((urlsplit(self.url).hostname or "", 0))
            except OSError:
                return False
        return True

    def asked_from(self) -> str:
        """The address of this machine that it is asked from."""
        address = urlsplit(self.url)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as towards:
            towards.connect((address.hostname or "", address.port or 443))
            return str(towards.getsockname()[0])

    def require_name(self, name: str) -> None:
        """End unless the certificate that it serves with is valid for a name."""
        import ssl

        address = urlsplit(self.url)
        try:
            with (
                socket.create_connection((address.hostname or "", address.port or 443), WITHIN_S) as connection,
                ssl.create_default_context(cadata=self.authority).wrap_socket(connection, server_hostname=name),
            ):
                pass
        except OSError as error:
            fail(f"Unable to connect to the server: tls: failed to verify certificate: x509: {error}")

    def ask(self, path: str, body: object = None, *, method: str = "") -> Any:
        """The answer as it was in JSON. Raises Refused for any status but success, OSError where nobody answers."""
        # Here, for they take a quarter of kubectl's time, which seldom asks another machine.
        import urllib.error
        import urllib.request

        content = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"} | (
            {"Authorization": f"Bearer {self.token}"} if self.token else {}
        )
        request = urllib.request.Request(f"{self.url}{path}", content, headers, method=method or None)
        try:
            with urllib.request.urlopen(request, timeout=WITHIN_S, context=self._context()) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            said = json.loads(error.read() or b"{}").get("message", error.reason)
            raise Refused(error.code, said) from error

    def _context(self) -> "ssl.SSLContext":
        import ssl

        context = ssl.create_default_context(cadata=self.authority or None)
        if not self.authority:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.certificate:
            context.load_cert_chain(self.certificate)
        return context


def kubeconfig(server: Server, user: dict[str, str]) -> str:
    """A kubeconfig for this server and a user, as text."""
    authority = base64.b64encode(server.authority.encode()).decode()
    cluster = {"server": server.url, "certificate-authority-data": authority}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "default",
        "clusters": [{"name": "kubernetes", "cluster": cluster}],
        "contexts": [{"name": "default", "context": {"cluster": "kubernetes", "user": "default"}}],
        "users": [{"name": "default", "user": user}],
    }
    return yaml.safe_dump(content)


def authority_hash(certificate: str) -> str:
    """The pin of an authority: sha256 of its public key, as `kubeadm token create` prints it."""
    import hashlib
    import subprocess
    import tempfile

    with tempfile.NamedTemporaryFile("w", suffix=".crt") as file:
        file.write(certificate)
        file.flush()
        command = ["openssl", "x509", "-in", file.name, "-noout", "-pubkey"]
        public = subprocess.run(command, check=True, capture_output=True).stdout
    binary = subprocess.run(
        ["openssl", "pkey", "-pubin", "-outform", "der"], input=public, check=True, capture_output=True
    ).stdout
    return f"sha256:{hashlib.sha256(binary).hexdigest()}"


def kubectl(words: list[str], arguments: list[str], server: Server) -> None:
    """The few things that a node may ask about itself; everything else is forbidden to it, as in a real cluster."""
    raw, selector = option(arguments, "--raw"), option(arguments, "--field-selector")
    if not raw and (words != ["get", "nodes"] or not selector.startswith("metadata.name=")):
        fail(f"Error from server (Forbidden): a node may not: kubectl {' '.join(words)}")
    try:
        answer = server.ask(raw or f"/api/v1/nodes?fieldSelector={selector}")
    except Refused as error:
        reason = {403: "Forbidden", 404: "NotFound"}.get(error.status, str(error.status))
        fail(f"Error from server ({reason}): {error.message}")
    except OSError as error:
        fail(f"Unable to connect to the server: {error}")
    print(answer if isinstance(answer, str) else json.dumps(answer))
