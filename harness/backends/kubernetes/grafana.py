"""Grafana is kept quiet while something is measured: its queries load the very server that records.

How many replicas it had is written onto its Deployment in the same request that takes them away, so that whoever comes
next can give them back, however this harness ended.
"""

from __future__ import annotations

from typing import Any

from harness.backends.kubernetes.api import Api
from harness.errors import ClusterError
from harness.spec import GrafanaCost, KubernetesSpec

BEFORE = "gpu-sharing-harness/replicas-before"
BY = "gpu-sharing-harness/scaled-down-by"


def running(api: Api, spec: KubernetesSpec) -> int:
    """Replicas that Grafana is meant to have; 0 when there is no Grafana. Raises ClusterError."""
    found = api.find(path(spec))
    return _replicas(found) if found else 0


def quiet(api: Api, spec: KubernetesSpec, campaign_id: str) -> list[str]:
    """Scale Grafana down when the campaign says so; a sentence for what was done, or could not be."""
    if spec.grafana is not GrafanaCost.SCALE_DOWN:
        return []
    try:
        replicas = running(api, spec)
        if not replicas:
            return []
        notes = {BEFORE: str(replicas), BY: campaign_id}
        api.patch(path(spec), {"metadata": {"annotations": notes}, "spec": {"replicas": 0}})
    except ClusterError as error:
        return [f"{spec.grafana_deployment} was not scaled down, and is measured, too: {error.message}"]
    return [f"{spec.grafana_deployment} is scaled down to 0 replicas until the campaign ends."]


def restore(api: Api, spec: KubernetesSpec) -> list[str]:
    """Give Grafana back the replicas that ``quiet`` took, also those that a killed harness took. Idempotent."""
    try:
        found = api.find(path(spec))
        before = ((found or {}).get("metadata", {}).get("annotations") or {}).get(BEFORE)
        if found is None or before is None:
            return []
        patch: dict[str, Any] = {"metadata": {"annotations": {BEFORE: None, BY: None}}}
        if before.isdigit() and not _replicas(found):
            patch["spec"] = {"replicas": int(before)}  # somebody who scaled it up meanwhile keeps what he made
        api.patch(path(spec), patch)
    except ClusterError as error:
        namespace, _, name = spec.grafana_deployment.partition("/")
        by_hand = f"kubectl -n {namespace} scale deployment {name} --replicas=1"
        return [f"{spec.grafana_deployment} could not be scaled up again: {error.message} By hand: {by_hand}"]
    return [f"{spec.grafana_deployment} has its replicas again."] if "spec" in patch else []


def path(spec: KubernetesSpec) -> str:
    """Path of Grafana's Deployment."""
    namespace, _, name = spec.grafana_deployment.partition("/")
    return f"/apis/apps/v1/namespaces/{namespace}/deployments/{name}"


def _replicas(deployment: dict[str, Any]) -> int:
    """The API's default is 1."""
    replicas = deployment["spec"].get("replicas")
    return 1 if replicas is None else int(replicas)
