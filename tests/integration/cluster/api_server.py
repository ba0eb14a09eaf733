"""A real API server (kube-apiserver and etcd) on loopback: no node, nothing that would run a pod.

Controllers and scheduler stand beside it where they are asked for. The binaries are taken from the folder ``KUBEBUILDER_ASSETS`` or from PATH; tests skip where they are missing.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.support.http_double import write_kubeconfig
from tests.support.ports import free_port

ROOT = Path(__file__).parents[3]
MODULE = ROOT / "plugins/modules/kube_objects.py"
START_TIMEOUT_S = 120
TOKEN = "only-on-loopback"
# The kubelet of a worker of that name.
WORKER, WORKER_TOKEN = "second", "only-on-loopback-too"


def found(program: str) -> str | None:
    """Path of a Kubernetes binary, or None."""
    beside = os.environ.get("KUBEBUILDER_ASSETS", "")
    return shutil.which(program, path=os.pathsep.join([beside, os.environ.get("PATH", "")]))


MISSING = [name for name in ("etcd", "kube-apiserver", "kubectl") if found(name) is None]
CONTROLLED = all(found(name) for name in ("kube-controller-manager", "kube-scheduler"))
"""Whether the real controllers and the real scheduler can take part."""
WHY_NOT = f"no {', '.join(MISSING)} in KUBEBUILDER_ASSETS or PATH"


@dataclass(frozen=True)
class Cluster:
    """Where the API server is and how to speak to it as an administrator."""

    kubeconfig: Path
    server: str = ""
    etcd: str = ""

    def kubectl(self, *words: str, check: bool = True, given: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run kubectl; fails the test with its own words unless ``check`` is false."""
        command = [str(found("kubectl")), "--kubeconfig", str(self.kubeconfig), *words]
        done = self._run(command, given)
        assert done.returncode == 0 or not check, f"{' '.join(words)}: {done.stdout}{done.stderr}"
        return done

    def kubelets_kubeconfig(self) -> Path:
        """What a worker's kubelet reaches the cluster by."""
        path = self.kubeconfig.with_name("kubelet.conf")
        path.write_text(self.kubeconfig.read_text().replace(TOKEN, WORKER_TOKEN))
        return path

    def get(self, *words: str) -> Any:
        return json.loads(self.kubectl("get", *words, "-o", "json").stdout)

    def may(self, account: str, *words: str) -> bool:
        """Whether a service account (namespace:name) may do what the words say."""
        who = ["--as", f"system:serviceaccount:{account}", "--as-group", "system:authenticated"]
        return self.kubectl("auth", "can-i", *who, *words, check=False).stdout.strip() == "yes"

    def apply(self, manifest: str, *, check_mode: bool = False, **wanted: Any) -> dict[str, Any]:
        """What our own Ansible module answers for a manifest, and for what is to be waited for."""
        options = {**wanted, "manifest": manifest, "kubeconfig": str(self.kubeconfig), "kubectl": found("kubectl")}
        arguments = self.kubeconfig.with_name("arguments.json")
        arguments.write_text(json.dumps({"ANSIBLE_MODULE_ARGS": {**options, "_ansible_check_mode": check_mode}}))
        command = [sys.executable, str(MODULE), str(arguments)]
        return dict(json.loads(self._run(command).stdout))

    def _run(self, command: list[str], given: str | None = None) -> subprocess.CompletedProcess[str]:
        clean = os.environ | {"KUBECACHEDIR": str(self.kubeconfig.with_name("cache"))}
        return subprocess.run(command, input=given, capture_output=True, text=True, timeout=120, check=False, env=clean)


@contextlib.contextmanager
def running(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server until the block ends."""
    with log.open("wb") as stream:
        process = subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT, cwd=log.parent)
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextlib.contextmanager
def api_server(folder: Path, *flags: str) -> Iterator[Cluster]:
    """Run etcd and the API server in a folder until the block ends; flags: further ones of the API server."""
    clients, peers = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
    port = free_port()
    etcd = [str(found("etcd")), "--data-dir", str(folder / "etcd"), "--unsafe-no-fsync"]
    etcd += ["--listen-client-urls", clients, "--advertise-client-urls", clients, "--listen-peer-urls", peers]
    cluster = Cluster(_kubeconfig(folder, port), f"https://127.0.0.1:{port}", clients)
    with (
        running(etcd, folder / "etcd.log"),
        running([*_server(folder, clients, port), *flags], folder / "apiserver.log") as process,
    ):
        _wait_until_ready(cluster, process, folder / "apiserver.log")
        yield cluster


@contextlib.contextmanager
def controllers(folder: Path, cluster: Cluster) -> Iterator[None]:
    """Run the controllers that make and delete pods, and the scheduler, until the block ends."""
    common = [f"--kubeconfig={cluster.kubeconfig}", "--leader-elect=false", "--bind-address=127.0.0.1"]
    common += [f"--cert-dir={folder / 'certificates'}", f"--secure-port={free_port()}"]
    names = ("deployment", "replicaset", "job", "garbage-collector", "resourceclaim")
    kinds = f"--controllers={','.join(f'{name}-controller' for name in names)}"
    scheduling = [*common[:-1], f"--secure-port={free_port()}"]
    with (
        running([str(found("kube-controller-manager")), *common, kinds], folder / "controllers.log"),
        running([str(found("kube-scheduler")), *scheduling], folder / "scheduler.log"),
    ):
        yield


def _server(folder: Path, etcd: str, port: int) -> list[str]:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    (folder / "accounts.key").write_bytes(key.private_bytes(*pem))
    (folder / "tokens.csv").write_text(
        f"{TOKEN},administrator,1,system:masters\n{WORKER_TOKEN},system:node:{WORKER},2,system:nodes\n"
    )
    return [
        str(found("kube-apiserver")),
        *("--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", "--endpoint-reconciler-type=none"),
        *(f"--secure-port={port}", f"--cert-dir={folder / 'certificates'}", f"--etcd-servers={etcd}"),
        *("--service-cluster-ip-range=10.96.0.0/12", "--allow-privileged=true", "--authorization-mode=Node,RBAC"),
        # No controller makes the service accounts that this plugin would wait for.
        "--disable-admission-plugins=ServiceAccount",
        *(f"--token-auth-file={folder / 'tokens.csv'}", "--service-account-issuer=https://127.0.0.1"),
        f"--service-account-signing-key-file={folder / 'accounts.key'}",
        f"--service-account-key-file={folder / 'accounts.key'}",
    ]


def _kubeconfig(folder: Path, port: int) -> Path:
    """The server makes a certificate of its own as it starts; nobody else is on loopback to be mistaken for it."""
    return write_kubeconfig(folder / "admin.conf", f"https://127.0.0.1:{port}", TOKEN)


def _wait_until_ready(cluster: Cluster, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while cluster.kubectl("get", "--raw", "/readyz", check=False).returncode != 0:
        assert process.poll() is None, f"kube-apiserver ended: {log.read_text()[-2000:]}"
        assert time.monotonic() < deadline_s, f"not ready after {START_TIMEOUT_S} s: {log.read_text()[-2000:]}"
        time.sleep(0.2)
