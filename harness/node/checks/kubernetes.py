"""The kubelet, its configuration, and the files that let people in."""

from __future__ import annotations

import json
import re
from functools import partial
from typing import Any

import yaml

from harness.node.checks.registry import HERE, WORKER, Node, Observation, check, listed, needs, no, reading, same
from harness.node.expected import ADMIN_KUBECONFIG, KUBELET_KUBECONFIG

_KUBELET = "kubelet.service"
_CONFIG = "/var/lib/kubelet/config.yaml"
_DROP_INS = "/etc/kubernetes/kubelet.conf.d"
_DEFAULTS = "/etc/default/kubelet"
_EVICTION_SIGNALS = {"memory.available", "nodefs.available", "nodefs.inodesFree", "imagefs.available"}
_DNS_HEADER = 12
_DAY_S = 86400
_CERTIFICATE_DAYS = 60
_SNAPSHOTS = "/var/lib/etcd-snapshots"
# A day, and another in which the machine was off.
_SNAPSHOT_HOURS = 48
# A kubelet asks for the next one when at most 30% and at least 10% of a year are left.
_SERVING_DAYS = 30
_SERVING = "/var/lib/kubelet/pki/kubelet-server-current.pem"
# Run on the node, by the Python that Ansible needs there: question and answer in hexadecimal; UDP may lose one of three.
ASK_DNS = (
    "import socket, sys; s = socket.socket(type=socket.SOCK_DGRAM); s.settimeout(5); s.connect((sys.argv[1], int(sys.argv[2]))); "
    "[s.send(bytes.fromhex(sys.argv[3])) for _ in range(3)]; print(s.recv(512).hex())"
)
_HOUSEKEEPING_AGAIN = "Run the housekeeping role again (--tags housekeeping)."
_CONTROL_PLANE_AGAIN = "Run the control_plane role again (--tags control_plane)"
_JOIN_FILES = ("/etc/kubernetes/kubeadm-join.yaml", "/etc/kubernetes/bootstrap-kubelet.conf")


def _seconds(text: str) -> int:
    """Seconds of a duration as the kubelet (1m30s) and systemd (90, 1min 30s) write it."""
    units = {"": 1, "s": 1, "m": 60, "h": 3600}
    return sum(int(number) * units[unit] for number, unit in re.findall(r"(\d+)\s*([smh]?)", text))


def kubelet_settings(node: Node) -> dict[str, Any]:
    """The kubelet's configuration as it reads it: its file, then its drop-ins where it is told of them."""
    paths = [_CONFIG]
    if _DROP_INS in (node.machine.read(_DEFAULTS) or ""):
        paths += [f"{_DROP_INS}/{name}" for name in node.machine.listing(_DROP_INS) if name.endswith(".conf")]
    settings: dict[str, Any] = {}
    for path in paths:
        with reading(f"{path} is not YAML"):
            settings.update(yaml.safe_load(node.text(path)) or {})
    return settings


kubelet_check = partial(check, unit=_KUBELET)


@kubelet_check("kubernetes/kubelet", "Read the kubelet's journal; before the cluster exists it cannot run.")
def kubelet_runs(node: Node) -> Observation:
    """The kubelet runs now, and at the next boot."""
    return node.service(_KUBELET)


@kubelet_check("kubernetes/cgroup-driver", "Make the cluster again with this project's kubeadm configuration.")
def kubelet_uses_systemd(node: Node) -> Observation:
    """The kubelet and CRI-O agree who makes cgroups."""
    return same("systemd", kubelet_settings(node).get("cgroupDriver", "absent"))


def dns_question(name: str) -> str:
    """A question for the IPv4 address of a name, in hexadecimal as it is sent."""
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    return (bytes.fromhex("123401000001000000000000") + labels + bytes.fromhex("0000010001")).hex()


def dns_ask(node: Node, address: str, name: str, port: int = 53) -> tuple[bool, str]:
    """Whether the server at an address knows an address of a name, and what it said in words."""
    output = node.machine.command("python3", "-c", ASK_DNS, address, str(port), dns_question(name))
    answer = bytes.fromhex(output.stdout.strip()) if output.exit_code == 0 else b""
    if len(answer) < _DNS_HEADER:
        said = output.stderr.strip().splitlines()[-1:] or ["nothing"]
        return False, f"{address} does not answer: {said[0]}"
    code, count = answer[3] & 15, int.from_bytes(answer[6:8])
    return code == 0 and count > 0, f"{address} answers with code {code} and {count} addresses"


@kubelet_check(
    "kubernetes/dns",
    "`kubectl get pods -n kube-system -l k8s-app=kube-dns`, and the logs of those and of kube-proxy, say why: pods resolve no name.",
)
def cluster_dns_answers(node: Node) -> Observation:
    """The pods' DNS server resolves the API server's name."""
    settings = kubelet_settings(node)
    name = f"kubernetes.default.svc.{settings.get('clusterDomain', 'cluster.local')}"
    answers = [dns_ask(node, str(address), name) for address in settings.get("clusterDNS") or ()]
    seen = "; ".join(said for _, said in answers) or "the kubelet gives pods no DNS server (clusterDNS)"
    return Observation(bool(answers) and all(ok for ok, _ in answers), f"an address of {name}", seen)


@check("kubernetes/crictl", "Run the kubernetes_packages role again: it writes /etc/crictl.yaml.")
def crictl_knows_crio(node: Node) -> Observation:
    """CRI-O is found by crictl without options."""
    settings = yaml.safe_load(node.text("/etc/crictl.yaml")) or {}
    endpoint = str(settings.get("runtime-endpoint", "absent"))
    return Observation(endpoint.endswith("/crio/crio.sock"), "runtime-endpoint: CRI-O's socket", endpoint)


@kubelet_check("housekeeping/eviction", _HOUSEKEEPING_AGAIN)
def eviction_is_whole(node: Node) -> Observation:
    """All eviction signals are on."""
    settings = kubelet_settings(node)
    signals = set(settings.get("evictionHard") or {})
    missing = _EVICTION_SIGNALS - signals if signals and not settings.get("mergeDefaultEvictionSettings") else []
    return no(missing, f"none missing of {listed(_EVICTION_SIGNALS)}")


@kubelet_check("housekeeping/images", _HOUSEKEEPING_AGAIN)
def image_collection_comes_before_eviction(node: Node) -> Observation:
    """Unused images are removed before pods are evicted."""
    settings = kubelet_settings(node)
    high = int(settings.get("imageGCHighThresholdPercent", 85))
    listed_signals = settings.get("evictionHard") or {}
    defaults_count = not listed_signals or settings.get("mergeDefaultEvictionSettings")
    threshold = str(listed_signals.get("imagefs.available", "15%" if defaults_count else "0%"))
    full = 100 - float(threshold.rstrip("%")) if threshold.endswith("%") else 100.0
    return Observation(high < full, f"image collection below {full:g}% of the disk", f"{high}%")


@check("housekeeping/logs", _HOUSEKEEPING_AGAIN)
def logs_are_bounded(node: Node) -> Observation:
    """Container logs and systemd's journal have a limit."""
    settings = kubelet_settings(node)
    size, files = settings.get("containerLogMaxSize"), settings.get("containerLogMaxFiles")
    journal = node.output("systemd-analyze", "cat-config", "systemd/journald.conf").splitlines()
    limits = [line.partition("=")[2] for line in journal if line.startswith("SystemMaxUse=")]
    seen = f"containers {size} x {files}, journal {limits[-1] if limits else 'no limit'}"
    good = bool(size and files and limits and limits[-1])
    return Observation(good, "a limit for containers and for systemd's journal", seen)


@check("housekeeping/shutdown", f"{_HOUSEKEEPING_AGAIN} Reboots then end pods cleanly.")
def shutdown_is_graceful(node: Node) -> Observation:
    """The kubelet delays a shutdown until pods have ended, and logind allows it."""
    period = str(kubelet_settings(node).get("shutdownGracePeriod", "0s"))
    files = node.output("systemd-analyze", "cat-config", "systemd/logind.conf").splitlines()
    delays = [line.partition("=")[2].strip() for line in files if line.startswith("InhibitDelayMaxSec=")]
    delay = delays[-1] if delays and delays[-1] else "5"
    seen = f"shutdownGracePeriod {period}, InhibitDelayMaxSec {delay}"
    wanted = "a shutdownGracePeriod, and an InhibitDelayMaxSec of logind that is as long"
    return Observation(0 < _seconds(period) <= _seconds(delay), wanted, seen)


@check(
    "housekeeping/inhibitor",
    "`systemctl restart kubelet`: it asks logind for the lock when it starts, and goes on without one where that fails.",
    unit="kubelet.service",
)
def shutdown_is_held(node: Node) -> Observation:
    """The running kubelet holds the lock by which a shutdown waits for it."""
    process = node.output("systemctl", "show", "--property=MainPID", "--value", "kubelet.service").strip()
    program = node.machine.command("readlink", f"/proc/{process}/exe").stdout.strip()
    needs(program == "/usr/bin/kubelet", "the kubelet is run by another program, which may hold the lock for it")
    locks = [line.split() for line in node.output("systemd-inhibit", "--list", "--no-legend").splitlines()]
    held = [words for words in locks if words[:1] == ["kubelet"] and "shutdown" in words]
    return Observation(bool(held), "a lock on shutdown, held by kubelet", listed(words[0] for words in locks if words))


@check("kubeconfig/users", f"{_CONTROL_PLANE_AGAIN}: it gives each user their own copy.", kinds=HERE)
def users_own_their_kubeconfig(node: Node) -> Observation:
    """Each user's kubeconfig has mode 0600 and belongs to the user."""
    users = node.expected.kubeconfig_users
    seen = [node.private(f"{node.home(user)}/.kube/config", user) for user in users]
    good = all(private for private, _ in seen)
    return Observation(good, f"mode 0600 and owner, for {listed(users)}", ", ".join(words for _, words in seen))


@check("kubeconfig/administrator", "`chmod 0600` it: who reads it owns the cluster.", kinds=HERE)
def administrators_kubeconfig_is_closed(node: Node) -> Observation:
    """Only root reads the administrator's credentials."""
    private, seen = node.private(ADMIN_KUBECONFIG)
    return Observation(private, f"{ADMIN_KUBECONFIG} 0600 root", seen)


@check(
    "kubernetes/endpoint",
    "Where the control plane was made under another one: set control_plane_endpoint back, or reset and make the cluster anew.",
)
def machines_reach_the_control_plane_by_its_endpoint(node: Node) -> Observation:
    """The node's credentials name the stable endpoint, where there is one."""
    endpoint = node.expected.endpoint
    needs(endpoint, "control_plane_endpoint is empty")
    path = node.expected.kubeconfig
    servers = re.findall(r"^\s*server:\s*(\S+)\s*$", node.text(path), re.MULTILINE)
    return same(f"https://{endpoint}", listed(servers))


@check("kubernetes/certificates", f"{_CONTROL_PLANE_AGAIN}: it renews what ends within 90 days.", kinds=HERE)
def certificates_are_valid_for_a_while(node: Node) -> Observation:
    """No certificate of the control plane ends within two months."""
    said = node.output("kubeadm", "certs", "check-expiration", "--output=json")
    with reading("kubeadm gave no list of certificates"):
        certificates = json.loads(said[said.index("{") :])["certificates"]
        days = {entry["name"]: entry["residualTime"] // _DAY_S for entry in certificates if not entry["missing"]}
    first = min(days.values(), default=0)
    seen = f"{len(days)} certificates, the first ends in {first} days"
    return Observation(first >= _CERTIFICATE_DAYS, f"none that ends within {_CERTIFICATE_DAYS} days", seen)


@check(
    "etcd/snapshot",
    "`journalctl --unit node-etcd-snapshot` says why there is none; playbooks/backup.yml takes one now.",
    unit="node-etcd-snapshot.service",
    kinds=HERE,
)
def snapshots_are_taken(node: Node) -> Observation:
    """A snapshot of etcd is young, and the next one will be taken."""
    young = ("find", _SNAPSHOTS, "-name", "*.tar", "-newermt", f"-{_SNAPSHOT_HOURS} hours")
    names = [path.rpartition("/")[2] for path in node.machine.command(*young).stdout.splitlines()]
    timer = node.machine.unit("node-etcd-snapshot.timer")
    running = timer.active == "active" and timer.enabled == "enabled"
    seen = f"{max(names, default='none')}; timer {timer.active}, {timer.enabled or timer.load}"
    wanted = f"one of the last {_SNAPSHOT_HOURS} hours, timer active and enabled"
    return Observation(bool(names) and running, wanted, seen)


@kubelet_check(
    "kubernetes/serving-certificate", "Run playbooks/cluster.yml again: it approves what the kubelet has asked for."
)
def serving_certificate_is_signed(node: Node) -> Observation:
    """The kubelet's serving certificate is of the cluster's authority and valid for a month."""
    until = ("openssl", "x509", "-noout", "-enddate", "-checkend", str(_SERVING_DAYS * _DAY_S), "-in", _SERVING)
    said = node.machine.command(*until)
    trusted = node.machine.command("openssl", "verify", "-CAfile", "/etc/kubernetes/pki/ca.crt", _SERVING)
    seen = (said.stdout or said.stderr).strip().splitlines()[:1] or ["nothing"]
    signed = "" if trusted.exit_code == 0 else ", not signed by the cluster's authority"
    wanted = f"{_SERVING} signed, for {_SERVING_DAYS} days at least"
    return Observation(said.exit_code == 0 and not signed, wanted, f"{seen[0]}{signed}")


@kubelet_check(
    "worker/credentials",
    "Remove what the join left; without kubelet.conf, run the worker role again (--tags worker).",
    kinds=frozenset({WORKER}),
)
def worker_has_credentials_of_its_own(node: Node) -> Observation:
    """The kubelet has credentials of its own that only root reads, and nothing of the token is left."""
    private, seen = node.private(KUBELET_KUBECONFIG)
    left = [path for path in _JOIN_FILES if node.machine.stat(path) is not None]
    wanted = f"{KUBELET_KUBECONFIG} 0600 root, no token"
    return Observation(private and not left, wanted, f"{seen}, left of the join: {listed(left)}")
