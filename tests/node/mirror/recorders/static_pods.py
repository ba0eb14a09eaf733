"""The static pods of a control plane: manifests as kubeadm writes them, the pods that the API knows them as, their processes.

A process does nothing: it is there under its name and with its flags, as `ps` shows the real one.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from recorded import STATE, replace

if TYPE_CHECKING:
    import subprocess

MANIFESTS = Path("/etc/kubernetes/manifests")
PKI = "/etc/kubernetes/pki"
PROGRAMS = STATE / "programs"
IDLE = "#!/bin/sh\nsleep infinity & wait\n"
PARTS = {"kube-apiserver": "apiServer", "kube-controller-manager": "controllerManager", "kube-scheduler": "scheduler"}


def write(cluster: dict[str, Any], address: str) -> None:
    """Write the manifests of the API server, the controller manager and the scheduler."""
    for name, part in PARTS.items():
        settings = cluster.get(part) or {}
        extra = {one["name"]: one["value"] for one in settings.get("extraArgs", ())}
        write_pod(name, defaults(address)[name] | extra, settings.get("extraEnvs", []))


def write_etcd(address: str) -> None:
    """Write the manifest of etcd."""
    write_pod("etcd", defaults(address)["etcd"], [])


def write_pod(name: str, flags: dict[str, str], environment: list[dict[str, str]]) -> None:
    """Write one manifest, which only root may read."""
    command = [name, *(f"--{flag}={value}" for flag, value in sorted(flags.items()))]
    container = {"name": name, "command": command, **({"env": environment} if environment else {})}
    metadata = {"name": name, "namespace": "kube-system", "labels": {"component": name, "tier": "control-plane"}}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}
    replace(MANIFESTS / f"{name}.yaml", yaml.safe_dump(pod), 0o600)


def defaults(address: str) -> dict[str, dict[str, str]]:
    """The flags that kubeadm gives of its own accord, as far as anybody judges them."""
    return {
        "kube-apiserver": {
            "advertise-address": address,
            "allow-privileged": "true",
            "authorization-mode": "Node,RBAC",
            "client-ca-file": f"{PKI}/ca.crt",
            "enable-admission-plugins": "NodeRestriction",
            "enable-bootstrap-token-auth": "true",
            "etcd-cafile": f"{PKI}/etcd/ca.crt",
            "etcd-certfile": f"{PKI}/apiserver-etcd-client.crt",
            "etcd-keyfile": f"{PKI}/apiserver-etcd-client.key",
            "etcd-servers": "https://127.0.0.1:2379",
            "kubelet-client-certificate": f"{PKI}/apiserver-kubelet-client.crt",
            "kubelet-client-key": f"{PKI}/apiserver-kubelet-client.key",
            "kubelet-preferred-address-types": "InternalIP,ExternalIP,Hostname",
            "secure-port": "6443",
            "service-account-key-file": f"{PKI}/sa.pub",
            "service-account-signing-key-file": f"{PKI}/sa.key",
            "tls-cert-file": f"{PKI}/apiserver.crt",
            "tls-private-key-file": f"{PKI}/apiserver.key",
        },
        "kube-controller-manager": {
            "bind-address": "127.0.0.1",
            "root-ca-file": f"{PKI}/ca.crt",
            "service-account-private-key-file": f"{PKI}/sa.key",
            "use-service-account-credentials": "true",
        },
        "kube-scheduler": {"bind-address": "127.0.0.1", "kubeconfig": "/etc/kubernetes/scheduler.conf"},
        "etcd": {
            "advertise-client-urls": f"https://{address}:2379",
            "cert-file": f"{PKI}/etcd/server.crt",
            "client-cert-auth": "true",
            "data-dir": "/var/lib/etcd",
            "key-file": f"{PKI}/etcd/server.key",
            "peer-cert-file": f"{PKI}/etcd/peer.crt",
            "peer-client-cert-auth": "true",
            "peer-key-file": f"{PKI}/etcd/peer.key",
            "peer-trusted-ca-file": f"{PKI}/etcd/ca.crt",
            "trusted-ca-file": f"{PKI}/etcd/ca.crt",
        },
    }


def pods(node: str) -> Iterator[dict[str, Any]]:
    """What the kubelet tells the API server of them; nothing to who may not read the manifests."""
    for path in sorted(MANIFESTS.glob("*.yaml")):
        with suppress(PermissionError):
            pod = yaml.load(path.read_text(), yaml.CSafeLoader)
            pod["metadata"]["name"] += f"-{node}"
            pod["metadata"]["annotations"] = {"kubernetes.io/config.mirror": "0a"}
            pod["spec"]["nodeName"] = node
            yield {**pod, "status": {"phase": "Running"}}


class Processes:
    """One process for each manifest, started anew when the manifest has changed."""

    def __init__(self, before_removal: Callable[[str], None]) -> None:
        self._running: dict[str, tuple[float, subprocess.Popen[bytes]]] = {}
        self._before_removal = before_removal

    def follow(self) -> None:
        """Start and end what the manifests say."""
        wanted = {path.stem: path for path in MANIFESTS.glob("*.yaml")}
        for name in [name for name in self._running if name not in wanted]:
            self._before_removal(name)
            self._end(name)
        for name, path in wanted.items():
            changed = path.stat().st_mtime
            if name in self._running and self._running[name][0] != changed:
                self._end(name)
            if name not in self._running:
                command = yaml.load(path.read_text(), yaml.CSafeLoader)["spec"]["containers"][0]["command"]
                self._running[name] = changed, start(name, command[1:])

    def _end(self, name: str) -> None:
        _, process = self._running.pop(name)
        process.kill()
        process.wait()


def start(name: str, flags: list[str]) -> "subprocess.Popen[bytes]":
    """A process of that name; etcd's sees the programs of its image, as a container does, and reads a restored folder."""
    # Here: most who read this file only list the pods, kubectl with every call.
    import subprocess

    import etcd_tools

    command = [str(program(name)), *flags]
    if name == "etcd":
        etcd_tools.install()
        etcd_tools.load(Path("/var/lib/etcd"))
        inside = 'mount --bind "$0" /usr/local/bin && exec "$@"'
        command = ["unshare", "--mount", "sh", "-c", inside, str(etcd_tools.TOOLS), *command]
    return subprocess.Popen(command)


def program(name: str) -> Path:
    """An executable of that name, for `ps` to find."""
    PROGRAMS.mkdir(parents=True, exist_ok=True)
    path = PROGRAMS / name
    if not path.exists():
        path.touch(0o755)
        path.write_text(IDLE)
        path.chmod(0o755)
    return path
