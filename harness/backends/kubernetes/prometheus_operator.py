"""The Prometheus Operator scrapes what a PodMonitor names, and no annotation: the object that names the replicas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.backends.kubernetes.api import Api
from harness.errors import ClusterError
from harness.spec import KubernetesSpec

API = "/apis/monitoring.coreos.com/v1"
REPLICAS = {"app.kubernetes.io/part-of": "gpu-sharing-harness"}
"""A label of every replica."""


def wanted(api: Api, spec: KubernetesSpec) -> dict[str, Any] | None:
    """The PodMonitor that lacks; None: there is no operator, one is there, or they may not be read.

    Its labels are those by which the operator's Prometheus chooses.
    """
    try:
        # Without a selector a Prometheus takes no PodMonitor at all; with an empty one, every one.
        servers = [one for one in api.list(f"{API}/prometheuses") if "podMonitorSelector" in one["spec"]]
        there = {
            place: api.list(f"{API}/namespaces/{place}/podmonitors") for place in {_place(one, spec) for one in servers}
        }
    except ClusterError:
        return None
    chosen = [(_place(one, spec), _labels(one["spec"]["podMonitorSelector"])) for one in servers]
    if not chosen or any(_names_replicas(one, labels, spec) for place, labels in chosen for one in there[place]):
        return None
    place, labels = chosen[0]
    seconds = spec.scrape_interval_s
    interval = f"{seconds:g}s" if seconds.is_integer() else f"{seconds * 1000:.0f}ms"
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PodMonitor",
        "metadata": {"name": "gpu-sharing-harness", "namespace": place, "labels": labels},
        "spec": {
            **({} if place == spec.namespace else {"namespaceSelector": {"matchNames": [spec.namespace]}}),
            "selector": {"matchLabels": REPLICAS},
            "podMetricsEndpoints": [{"port": "metrics", "path": "/metrics", "interval": interval}],
        },
    }


def _place(server: Mapping[str, Any], spec: KubernetesSpec) -> str:
    """Where a Prometheus looks for PodMonitors: without a selector of namespaces, in its own alone."""
    return spec.namespace if "podMonitorNamespaceSelector" in server["spec"] else str(server["metadata"]["namespace"])


def _labels(selector: Mapping[str, Any]) -> dict[str, str]:
    """Labels that a selector chooses."""
    labels = dict(selector.get("matchLabels") or {})
    for one in selector.get("matchExpressions") or []:
        if one["operator"] in {"In", "Exists"}:
            labels.setdefault(one["key"], next(iter(one.get("values") or []), "true"))
    return labels


def _names_replicas(monitor: Mapping[str, Any], labels: Mapping[str, str], spec: KubernetesSpec) -> bool:
    where = monitor["spec"].get("namespaceSelector") or {"matchNames": [monitor["metadata"]["namespace"]]}
    if not where.get("any") and spec.namespace not in where.get("matchNames", ()):
        return False
    chosen = (monitor["spec"].get("selector") or {}).get("matchLabels") or {}
    own = monitor["metadata"].get("labels") or {}
    return chosen.items() <= REPLICAS.items() and labels.items() <= own.items()
