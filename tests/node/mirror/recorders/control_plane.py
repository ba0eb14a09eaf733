"""What `kubeadm init` does to a machine: checks, certificates, kubeconfigs, kubelet, manifests, first objects."""

import base64
import os
import shutil
import socket
import subprocess
import time
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import cluster
import yaml
from recorded import API_PORT, CRIO_SOCKET, KUBELET_HEALTH_PORT, STATE, answers, fail, option

ETC = Path("/etc/kubernetes")
KUBELET = Path("/var/lib/kubelet")
KUBECONFIGS = ("admin.conf", "super-admin.conf", "kubelet.conf", "controller-manager.conf", "scheduler.conf")
MANIFESTS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "etcd")
REQUIRED_PROGRAMS = ("conntrack", "ip", "iptables", "mount", "nsenter", "crictl")
SWITCHES = {
    "FileContent--proc-sys-net-bridge-bridge-nf-call-iptables": "/proc/sys/net/bridge/bridge-nf-call-iptables",
    "FileContent--proc-sys-net-ipv4-ip_forward": "/proc/sys/net/ipv4/ip_forward",
}
VERSION = STATE / "cluster-version"
KUBELET_PORT = 10250
REQUIRED_CPUS = 2
HEALTH_WITHIN_S = 240.0


def create(wanted: dict[str, Any], version: str, arguments: list[str]) -> None:
    """Make this machine a control plane as asked, or fail naming the check that failed."""
    registration = wanted.get("InitConfiguration", {}).get("nodeRegistration", {})
    ignored = {
        *option(arguments, "--ignore-preflight-errors").split(","),
        *registration.get("ignorePreflightErrors", ()),
    }
    if errors := preflight(ignored):
        fail("error: [preflight] Some fatal errors occurred:\n" + "\n".join(f"\t[ERROR {error}" for error in errors))
    (ETC / "manifests").mkdir(parents=True, exist_ok=True)
    make_certificates()
    for name in KUBECONFIGS:
        _private(ETC / name, yaml.safe_dump(kubeconfig(name)))
    start_kubelet(wanted.get("KubeletConfiguration", {}))
    wait_for_kubelet(wanted)
    for name in MANIFESTS:
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "kube-system"}}
        _private(ETC / "manifests" / f"{name}.yaml", yaml.safe_dump(pod))
    wait_for_api()
    Path("/var/lib/etcd/member").mkdir(parents=True, exist_ok=True)
    set_version(version)
    first_objects(registration, wanted)


def preflight(ignored: set[str]) -> list[str]:
    """Every failed check that is not ignored, as kubeadm names them."""
    found = [*machine_errors(), *leftover_errors()]
    return [error for error in found if "all" not in ignored and error.partition("]")[0] not in ignored]


def machine_errors() -> list[str]:
    """What the machine lacks."""
    found = [
        f"{name}]: {path} contents are not set to 1"
        for name, path in SWITCHES.items()
        if not Path(path).exists() or Path(path).read_text().strip() != "1"
    ]
    missing = [name for name in REQUIRED_PROGRAMS if not shutil.which(name)]
    found += [f"FileExisting-{name}]: {name} not found in system path" for name in missing]
    if len(Path("/proc/swaps").read_text().splitlines()) > 1:
        found.append("Swap]: running with swap on is not supported. Please disable swap")
    if (os.cpu_count() or 1) < REQUIRED_CPUS:
        found.append(f"NumCPU]: the number of available CPUs {os.cpu_count()} is less than {REQUIRED_CPUS}")
    if not answers(str(CRIO_SOCKET)):
        found.append(f"CRI]: container runtime is not running: dial unix {CRIO_SOCKET}: connection refused")
    return found


def leftover_errors() -> list[str]:
    """What an earlier cluster left."""
    present = [name for name in MANIFESTS if (ETC / "manifests" / f"{name}.yaml").exists()]
    found = [f"FileAvailable--etc-kubernetes-manifests-{name}.yaml]: {name}.yaml already exists" for name in present]
    if any(Path("/var/lib/etcd").glob("*")):
        found.append("DirAvailable--var-lib-etcd]: /var/lib/etcd is not empty")
    used = [port for port in (KUBELET_PORT, API_PORT) if answers(("127.0.0.1", port))]
    return [*found, *(f"Port-{port}]: Port {port} is in use" for port in used)]


def make_certificates() -> None:
    """One self-signed certificate in the place of each that kubeadm makes; existing ones are kept."""
    pki = ETC / "pki"
    pki.mkdir(parents=True, exist_ok=True)
    for name in ("ca", "apiserver"):
        if not (pki / f"{name}.crt").exists():
            subject = ["-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
            files = ["-keyout", str(pki / f"{name}.key"), "-out", str(pki / f"{name}.crt")]
            curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "365"]
            subprocess.run(["openssl", "req", "-x509", *curve, *subject, *files], check=True, capture_output=True)


def kubeconfig(name: str) -> dict[str, Any]:
    """A kubeconfig with this cluster's authority and a made-up user."""
    user = name.removesuffix(".conf")
    authority = base64.b64encode((ETC / "pki/ca.crt").read_bytes()).decode()
    secret = base64.b64encode(f"{user}'s credentials".encode()).decode()
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": f"{user}@kubernetes",
        "clusters": [
            {
                "name": "kubernetes",
                "cluster": {"server": f"https://127.0.0.1:{API_PORT}", "certificate-authority-data": authority},
            }
        ],
        "contexts": [{"name": f"{user}@kubernetes", "context": {"cluster": "kubernetes", "user": user}}],
        "users": [{"name": user, "user": {"client-certificate-data": secret, "client-key-data": secret}}],
    }


def start_kubelet(settings: dict[str, Any]) -> None:
    """Write what the kubelet reads and start it, as kubeadm does."""
    KUBELET.mkdir(parents=True, exist_ok=True)
    defaults = {"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration"}
    (KUBELET / "config.yaml").write_text(yaml.safe_dump(defaults | settings))
    (KUBELET / "kubeadm-flags.env").write_text('KUBELET_KUBEADM_ARGS=""\n')
    for command in (["daemon-reload"], ["stop", "kubelet"], ["start", "kubelet"]):
        subprocess.run(["systemctl", *command], check=False)


def wait_for_kubelet(wanted: dict[str, Any]) -> None:
    """Give the kubelet the time that the configuration allows."""
    limit = wanted.get("InitConfiguration", {}).get("timeouts", {}).get("kubeletHealthCheck", "")
    within_s = _seconds(limit) if limit else HEALTH_WITHIN_S
    if not _answers_within(KUBELET_HEALTH_PORT, within_s):
        fail(f"error execution phase wait-control-plane: The kubelet is not healthy after {within_s:.0f}s")


def wait_for_api() -> None:
    """Wait until the port of the API server answers."""
    if not _answers_within(API_PORT, 60):
        fail("error execution phase wait-control-plane: the API server is not healthy after 60s")


def first_objects(registration: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Namespaces, the node, and kubeadm's own add-ons."""
    shutil.rmtree(cluster.OBJECTS, ignore_errors=True)
    for name in ("default", "kube-system", "kube-public", "kube-node-lease"):
        cluster.write({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    name = registration.get("name") or socket.gethostname()
    labels = {"kubernetes.io/hostname": name, "node-role.kubernetes.io/control-plane": ""}
    taint = {"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": {"taints": registration.get("taints", [taint]), "podCIDR": first_subnet(wanted)},
    }
    cluster.write(node)
    settings = yaml.safe_dump(wanted.get("ClusterConfiguration", {}))
    place = {"name": "kubeadm-config", "namespace": "kube-system"}
    cluster.write(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": place, "data": {"ClusterConfiguration": settings}}
    )
    for kind, addon in (("DaemonSet", "kube-proxy"), ("Deployment", "coredns")):
        place = {"name": addon, "namespace": "kube-system"}
        cluster.write({"apiVersion": "apps/v1", "kind": kind, "metadata": place, "spec": {}})


def first_subnet(wanted: dict[str, Any]) -> str:
    """The part of the pod network that the first node hands out."""
    network = wanted.get("ClusterConfiguration", {}).get("networking", {}).get("podSubnet", "10.0.0.0/8")
    return str(next(ip_network(network).subnets(new_prefix=24)))


def set_version(version: str) -> None:
    """Remember which version the control plane runs at."""
    STATE.mkdir(parents=True, exist_ok=True)
    VERSION.write_text(version)


def _answers_within(port: int, within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if answers(("127.0.0.1", port)):
            return True
        time.sleep(0.2)
    return False


def _seconds(duration: str) -> float:
    """Read a Go duration (`4m0s`)."""
    units = {"h": 3600.0, "m": 60.0, "s": 1.0}
    total, number = 0.0, ""
    for character in duration:
        if character in units:
            total, number = total + float(number) * units[character], ""
        else:
            number += character
    return total


def _private(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o600)
