"""The Prometheus Operator scrapes what a PodMonitor names, and no annotation: the object that names the replicas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.backends.kubernetes.rbac import Api
from harness.config import KubernetesSpec
from harness.errors import ClusterError

API = "/apis/monitoring.coreos.com/v1"
REPLICAS = {"app.kubernetes.io/part-of": "gpu-sharing-harness"}
"""A label of every replica."""


def wanted(api: Api, spec: KubernetesSpec) -> dict[str, Any] | None:
    """The PodMonitor that lacks; None: there is no operator, one is there, or they may not be read.

    Its labels are those by which the operator's Prometheus chooses.
    """
    try:
        servers = api.list(f"{API}/prometheuses")
        there = api.list(f"{API}/namespaces/{spec.namespace}/podmonitors")
    except ClusterError:
        return None
    # Without a selector a Prometheus takes no PodMonitor at all; with an empty one, every one.
    selectors = [one["spec"]["podMonitorSelector"] for one in servers if "podMonitorSelector" in one["spec"]]
    if not selectors or any(_names_replicas(one, _labels(each)) for one in there for each in selectors):
        return None
    seconds = spec.scrape_interval_s
    interval = f"{seconds:g}s" if seconds.is_integer() else f"{seconds * 1000:.0f}ms"
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PodMonitor",
        "metadata": {"name": "gpu-sharing-harness", "namespace": spec.namespace, "labels": _labels(selectors[0])},
        "spec": {
            "selector": {"matchLabels": REPLICAS},
            "podMetricsEndpoints": [{"port": "metrics", "path": "/metrics", "interval": interval}],
        },
    }


def _labels(selector: Mapping[str, Any]) -> dict[str, str]:
    """Labels that a selector chooses."""
    labels = dict(selector.get("matchLabels") or {})
    for one in selector.get("matchExpressions") or []:
        if one["operator"] in {"In", "Exists"}:
            labels.setdefault(one["key"], next(iter(one.get("values") or []), "true"))
    return labels


def _names_replicas(monitor: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    chosen = (monitor["spec"].get("selector") or {}).get("matchLabels") or {}
    own = monitor["metadata"].get("labels") or {}
    return chosen.items() <= REPLICAS.items() and labels.items() <= own.items()
