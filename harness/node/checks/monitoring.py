"""The monitoring on the cluster: volumes, every job of Prometheus up, Grafana in health, and nobody let in without a login."""

from __future__ import annotations

import json
from typing import Any

from harness.node.checks.nvidia import require_gpu
from harness.node.checks.registry import (
    HERE,
    CannotLookError,
    Node,
    NotApplicableError,
    Observation,
    check,
    listed,
    needs,
    reading,
    same,
)

_NAMESPACE = "monitoring"
_JOBS = ("prometheus", "node-exporter", "kube-state-metrics", "kubelet", "kubelet-cadvisor")
_GPU_JOB = "dcgm-exporter"
_CLAIMS = ("grafana", "prometheus")
_FOLDER = "/etc/kubernetes/monitoring"
_LASTS_DAYS = 30
_DAY_S = 86_400
_REFUSED = 401
_AGAIN = f"Run playbooks/{_NAMESPACE}.yml again: it makes the certificates and the logins, and renews them."
TARGETS = "/api/v1/targets?state=active"
DATASOURCE = "/api/datasources/uid/prometheus/health"
HEALTH = "/api/health"
_CLOSED = {"prometheus": TARGETS, "grafana": DATASOURCE}
"""The services, and what each of them tells to nobody without a login."""

ASK = """
import base64, json, socket, ssl, sys, time, urllib.error, urllib.parse, urllib.request
folder, service, path, login = sys.argv[1:]
read = lambda name: open(f"{folder}/{name}").read()
url, trusted = read(f"{service}.url"), ssl.create_default_context(cafile=f"{folder}/ca.crt")
named = base64.b64encode(f"{read(f'{service}.user')}:{read(f'{service}.password')}".encode()).decode()
headers = {"Authorization": f"Basic {named}"} if login == "login" else {}
place = urllib.parse.urlsplit(url)
with socket.create_connection((place.hostname, place.port), 15) as plain:
    with trusted.wrap_socket(plain, server_hostname=place.hostname) as secure:
        left_s = ssl.cert_time_to_seconds(secure.getpeercert()["notAfter"]) - time.time()
handlers = urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trusted)
try:
    with urllib.request.build_opener(*handlers).open(urllib.request.Request(url + path, headers=headers), timeout=15) as said:
        status, body = said.status, said.read().decode()
except urllib.error.HTTPError as error:
    status, body = error.code, error.read().decode()
print(json.dumps({"status": status, "body": body, "left_s": left_s}))
"""
"""Asks a service on the node, under its certificate; the login is read there, and is in no argument and no answer."""


def _ask(node: Node, service: str, path: str, *, login: bool = True) -> dict[str, Any]:
    """Status, body and what is left of the certificate (``left_s``) with which a service answers."""
    said = node.machine.command("python3", "-c", ASK, _FOLDER, service, path, "login" if login else "anonymous")
    if said.exit_code != 0:
        raise CannotLookError(f"{service} was not reached: {(said.stderr.strip().splitlines() or ['nothing'])[-1]}")
    seen: dict[str, Any] = json.loads(said.stdout)
    return seen


def _answer(node: Node, service: str, path: str, *, login: bool = True) -> dict[str, Any]:
    """The JSON that a service answers with."""
    said = _ask(node, service, path, login=login)
    with reading(f"{service}{path} gave no JSON, but status {said['status']}"):
        seen: dict[str, Any] = json.loads(said["body"])
    return seen


def _running(node: Node) -> tuple[str, ...]:
    """The services that are there to be asked: a campaign pauses Grafana."""
    replicas = {
        item["metadata"]["name"]: item["spec"].get("replicas", 1)
        for item in node.objects("deployments", "--namespace", _NAMESPACE)
    }
    return tuple(service for service in _CLOSED if replicas.get(service) != 0)


def _has_gpu(node: Node) -> bool:
    try:
        require_gpu(node)
    except NotApplicableError:
        return False
    return True


@check(
    "monitoring/volumes",
    f"`kubectl describe -n {_NAMESPACE} persistentvolumeclaims` says why; mostly there is no default StorageClass.",
    kinds=HERE,
)
def volumes_are_bound(node: Node) -> Observation:
    """Prometheus and Grafana have their volumes."""
    claims = {
        item["metadata"]["name"]: str(item.get("status", {}).get("phase", "unknown"))
        for item in node.objects("persistentvolumeclaims", "--namespace", _NAMESPACE)
    }
    seen = [f"{name} {claims.get(name, 'absent')}" for name in _CLAIMS]
    return Observation(all(claims.get(name) == "Bound" for name in _CLAIMS), "both Bound", listed(seen))


@check(
    "monitoring/targets",
    f"`kubectl get pods -A -o wide` shows whose pod is missing; then run playbooks/{_NAMESPACE}.yml again.",
    kinds=HERE,
)
def every_job_is_up(node: Node) -> Observation:
    """Prometheus scrapes every job of the cluster, and the GPUs' where there are any."""
    wanted = [*_JOBS, _GPU_JOB] if _has_gpu(node) else [*_JOBS]
    with reading("Prometheus gave no list of targets"):
        active = _answer(node, "prometheus", TARGETS)["data"]["activeTargets"]
        health = [(str(target["labels"]["job"]), str(target["health"])) for target in active]
    down = {job for job, state in health if state != "up"}
    missing = set(wanted) - {job for job, _ in health}
    seen = f"not up: {listed(down)}; without a target: {listed(missing)}"
    return Observation(not missing and not down & set(wanted), f"{', '.join(wanted)} up", seen)


@check(
    "monitoring/grafana",
    f"`kubectl logs -n {_NAMESPACE} deployment/grafana` says what it waits for.",
    kinds=HERE,
)
def grafana_is_in_health(node: Node) -> Observation:
    """Grafana answers and reaches its database and Prometheus, unless a campaign has paused it."""
    needs("grafana" in _running(node), "Grafana is scaled to nothing, as campaigns do while they measure")
    database = str(_answer(node, "grafana", HEALTH, login=False).get("database", "absent"))
    source = str(_answer(node, "grafana", DATASOURCE).get("status", "absent"))
    return same("database ok, Prometheus OK", f"database {database}, Prometheus {source}")


@check("monitoring/certificates", _AGAIN, kinds=HERE)
def certificates_last(node: Node) -> Observation:
    """Prometheus and Grafana have certificates of the node's authority, valid for 30 days or more."""
    left = {
        service: _ask(node, service, _CLOSED[service], login=False)["left_s"] / _DAY_S for service in _running(node)
    }
    until = ("openssl", "x509", "-noout", "-checkend", str(_LASTS_DAYS * _DAY_S), "-in", f"{_FOLDER}/ca.crt")
    authority = node.machine.command(*until).exit_code == 0
    days_left = [f"{name} {days:.0f} days" for name, days in left.items()]
    seen = f"{listed(days_left)}; the authority {'more' if authority else 'less'} than {_LASTS_DAYS} days"
    good = authority and min(left.values(), default=0.0) > _LASTS_DAYS
    return Observation(good, f"each valid for more than {_LASTS_DAYS} days", seen)


@check(
    "monitoring/login",
    f"{_AGAIN} Where Grafana alone refuses, its volume has another password: `kubectl exec -n {_NAMESPACE} "
    f"deployment/grafana -- grafana cli admin reset-admin-password --password-from-stdin` with {_FOLDER}/grafana.password.",
    kinds=HERE,
)
def nobody_is_answered_without_a_login(node: Node) -> Observation:
    """Prometheus and Grafana require a login, and only root can read the passwords."""
    seen, good = [], True
    for service in _running(node):
        path = _CLOSED[service]
        without, given = _ask(node, service, path, login=False)["status"], _ask(node, service, path)["status"]
        closed, file = node.private(f"{_FOLDER}/{service}.password")
        seen.append(f"{service} {without} without and {given} with a login, {file}")
        good = good and closed and without == _REFUSED and given != _REFUSED
    return Observation(good, f"{_REFUSED} without a login, an answer with one, the file root's alone", listed(seen))
