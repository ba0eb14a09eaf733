"""Recorder of the kubelet: refuses to start where the kubelet would, then answers on its ports and runs nothing.

Where a static manifest of the API server lies, it also listens in the API server's place.
"""

import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import api
import cpu_manager
import service_dns
import yaml
from cluster import API_MANIFEST, OBJECTS, running_versions
from membership import Membership
from monitored import Services
from recorded import CRIO_SOCKET, KUBELET_HEALTH_PORT, STATE, answers, fail, option, record, version_of
from remote import Server
from serving import Serving
from static_pods import Processes

KUBELET_PORT = 10250
NETWORK_CONFIGURATION = Path("/etc/cni/net.d/10-calico.conflist")
# What Calico's pod puts on the node before that.
NETWORK_FILES = (
    "/etc/cni/net.d/calico-kubeconfig",
    *(f"/opt/cni/bin/{name}" for name in ("flannel", "calico", "calico-ipam")),
)


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
    cpu_manager.take_up(settings)
    STATE.mkdir(parents=True, exist_ok=True)
    (STATE / "kubelet-running").write_text(version_of("kubelet"))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    name = option(arguments, "--hostname-override", default=socket.gethostname())
    credentials, bootstrap = (Path(option(arguments, f"--{kind}")) for kind in ("kubeconfig", "bootstrap-kubeconfig"))
    threading.Thread(target=service_dns.serve, args=[settings], daemon=True).start()
    membership = Membership.take_up(name, credentials, bootstrap)
    server = membership.server if membership else None
    serve(membership, Serving(settings, server, name, own_address(server)))


def own_address(server: Server | None) -> str:
    """This machine's address: towards the API server of another, else the one that its default route leaves by."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((urlsplit(server.url).hostname if server else "192.0.2.1", 9))  # sends nothing
        return str(probe.getsockname()[0])


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


def serve(membership: Membership | None, serving: Serving) -> None:
    """Listen for health questions; once a second follow the manifests, or tell another machine's API server of us."""
    for address in (("127.0.0.1", KUBELET_HEALTH_PORT), ("0.0.0.0", KUBELET_PORT)):
        server = ThreadingHTTPServer(address, Healthy)
        threading.Thread(target=server.serve_forever, daemon=True).start()
    api_server: ThreadingHTTPServer | None = None

    def end_api(name: str) -> None:
        # Before its process: whoever sees that gone finds nobody listening.
        nonlocal api_server
        if name == API_MANIFEST.stem and api_server is not None:
            api_server.shutdown()
            api_server.server_close()
            api_server = None

    processes, services = Processes(before_removal=end_api), Services()
    while True:
        processes.follow()
        serving.follow()
        services.follow()
        if API_MANIFEST.exists() and api_server is None:
            # Without its certificate it does not start, and is begun anew.
            with suppress(OSError):
                api_server = api.serve()
                threading.Thread(target=api_server.serve_forever, daemon=True).start()
        elif api_server is not None:
            api.take_certificate(api_server)
        if membership:
            membership.beat(running_versions())
        network = membership.network if membership else any((OBJECTS / "Installation").glob("*/*.json"))
        if network and not NETWORK_CONFIGURATION.exists():
            for path in map(Path, NETWORK_FILES):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch(mode=0o600)
            NETWORK_CONFIGURATION.write_text('{"name": "k8s-pod-network", "cniVersion": "0.3.1", "plugins": []}\n')
        time.sleep(1)
