"""The monitoring on the cluster: volumes, every job of Prometheus up, Grafana in health."""

from __future__ import annotations

import json
from typing import Any

from harness.node.checks.nvidia import require_gpu
from harness.node.checks.registry import (
    CONTROL_PLANE,
    CannotLookError,
    Node,
    NotApplicableError,
    Observation,
    check,
    listed,
)

_NAMESPACE = "monitoring"
_HERE = (CONTROL_PLANE,)
_PROXY = f"/api/v1/namespaces/{_NAMESPACE}/services"
_TARGETS = f"{_PROXY}/prometheus:9090/proxy/api/v1/targets?state=active"
_GRAFANA_HEALTH = f"{_PROXY}/grafana:3000/proxy/api/health"
_JOBS = ("prometheus", "node-exporter", "kube-state-metrics", "kubelet", "kubelet-cadvisor")
_GPU_JOB = "dcgm-exporter"
_CLAIMS = ("grafana", "prometheus")


def _answer(node: Node, path: str) -> dict[str, Any]:
    """What a service says through the API server's proxy."""
    try:
        found: dict[str, Any] = json.loads(node.kubectl("get", "--raw", path))
    except ValueError as error:
        raise CannotLookError(f"{path} gave no JSON: {error}") from error
    return found


def _has_gpu(node: Node) -> bool:
    try:
        require_gpu(node)
    except NotApplicableError:
        return False
    return True


@check(
    "monitoring/volumes",
    advice=f"`kubectl describe -n {_NAMESPACE} persistentvolumeclaims` says why; mostly there is no default StorageClass.",
    kinds=_HERE,
)
def volumes_are_bound(node: Node) -> Observation:
    """Prometheus and Grafana have their volumes."""
    claims = {
        item["metadata"]["name"]: str(item.get("status", {}).get("phase", "unknown"))
        for item in node.objects("persistentvolumeclaims", "--namespace", _NAMESPACE)
    }
    found = [f"{name} {claims.get(name, 'absent')}" for name in _CLAIMS]
    return Observation(all(claims.get(name) == "Bound" for name in _CLAIMS), "both Bound", listed(found))


@check(
    "monitoring/targets",
    advice=f"`kubectl get pods -A -o wide` shows whose pod is missing; then run playbooks/{_NAMESPACE}.yml again.",
    kinds=_HERE,
)
def every_job_is_up(node: Node) -> Observation:
    """Prometheus scrapes every job of the cluster, and the GPUs' where there are any."""
    wanted = [*_JOBS, _GPU_JOB] if _has_gpu(node) else [*_JOBS]
    try:
        active = _answer(node, _TARGETS)["data"]["activeTargets"]
        health = [(str(target["labels"]["job"]), str(target["health"])) for target in active]
    except (KeyError, TypeError) as error:
        raise CannotLookError(f"Prometheus gave no list of targets: no {error}") from error
    down = {job for job, state in health if state != "up"}
    missing = set(wanted) - {job for job, _ in health}
    found = f"not up: {listed(down)}; without a target: {listed(missing)}"
    return Observation(not missing and not down & set(wanted), f"{', '.join(wanted)} up", found)


@check(
    "monitoring/grafana",
    advice=f"`kubectl logs -n {_NAMESPACE} deployment/grafana` says what it waits for.",
    kinds=_HERE,
)
def grafana_is_in_health(node: Node) -> Observation:
    """Grafana answers and reaches its database, unless a campaign has paused it."""
    replicas = {
        item["metadata"]["name"]: item["spec"].get("replicas", 1)
        for item in node.objects("deployments", "--namespace", _NAMESPACE)
    }
    if replicas.get("grafana") == 0:
        raise NotApplicableError("Grafana is scaled to nothing, as campaigns do while they measure")
    state = str(_answer(node, _GRAFANA_HEALTH).get("database", "absent"))
    return Observation(state == "ok", "database ok", state)
