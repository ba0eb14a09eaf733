"""Recorder of the kubelet: refuses to start where the kubelet would, then answers on its ports and runs nothing.

Where a static manifest of the API server lies, it also listens in the API server's place.
"""

import signal
import ssl
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import yaml
from cluster import API_MANIFEST, OBJECTS
from recorded import API_PORT, CRIO_SOCKET, KUBELET_HEALTH_PORT, STATE, answers, fail, option, record, version_of

KUBELET_PORT = 10250
PKI = Path("/etc/kubernetes/pki")
NETWORK_CONFIGURATION = Path("/etc/cni/net.d/10-calico.conflist")


class Healthy(BaseHTTPRequestHandler):
    """Answers ok to every health question."""

    def do_GET(self) -> None:
        content = b"ok"
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def main() -> None:
    arguments = sys.argv[1:]
    record("kubelet", arguments)
    if "--version" in arguments:
        print(f"Kubernetes v{version_of('kubelet')}")
        return
    settings = load(arguments)
    if settings.get("failSwapOn", True) and len(Path("/proc/swaps").read_text().splitlines()) > 1:
        fail("running with swap on is not supported, please disable swap or set --fail-swap-on flag to false")
    if not answers(str(CRIO_SOCKET)):
        fail(f"failed to run Kubelet: validate service connection: dial unix {CRIO_SOCKET}: connection refused")
    STATE.mkdir(parents=True, exist_ok=True)
    (STATE / "kubelet-running").write_text(version_of("kubelet"))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    serve()


def load(arguments: list[str]) -> dict[str, object]:
    """Read the configuration that kubeadm writes; without it the kubelet ends, and systemd starts it over."""
    path = Path(option(arguments, "--config", default="/var/lib/kubelet/config.yaml"))
    if not path.exists():
        fail(f"failed to load kubelet config file, path: {path}, error: open {path}: no such file or directory")
    settings = yaml.safe_load(path.read_text())
    if not isinstance(settings, dict) or settings.get("kind") != "KubeletConfiguration":
        fail(f"failed to load kubelet config file, path: {path}: no KubeletConfiguration in it")
    if folder := option(arguments, "--config-dir"):
        for drop_in in sorted(Path(folder).glob("*.conf")):
            more = yaml.safe_load(drop_in.read_text())
            if not isinstance(more, dict) or more.get("kind") != "KubeletConfiguration":
                fail(f"failed to load kubelet config, drop-in {drop_in}: no KubeletConfiguration in it")
            settings |= more
    return settings


def serve() -> None:
    """Listen for health questions; follow the manifests once a second."""
    for address in (("127.0.0.1", KUBELET_HEALTH_PORT), ("0.0.0.0", KUBELET_PORT)):
        server = ThreadingHTTPServer(address, Healthy)
        threading.Thread(target=server.serve_forever, daemon=True).start()
    api: ThreadingHTTPServer | None = None
    while True:
        if API_MANIFEST.exists() and api is None:
            api = serve_api()
        elif not API_MANIFEST.exists() and api is not None:
            api.shutdown()
            api.server_close()
            api = None
        if any((OBJECTS / "Installation").glob("*/*.json")) and not NETWORK_CONFIGURATION.exists():
            NETWORK_CONFIGURATION.parent.mkdir(parents=True, exist_ok=True)
            NETWORK_CONFIGURATION.write_text('{"name": "k8s-pod-network", "cniVersion": "0.3.1", "plugins": []}\n')
        time.sleep(1)


def serve_api() -> ThreadingHTTPServer:
    """Listen with the certificate that kubeadm made."""
    server = ThreadingHTTPServer(("0.0.0.0", API_PORT), Healthy)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(PKI / "apiserver.crt", PKI / "apiserver.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


if __name__ == "__main__":
    main()
