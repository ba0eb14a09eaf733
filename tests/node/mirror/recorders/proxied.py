"""What services of the recorded cluster answer through the API server: Prometheus and Grafana, once they are applied."""

import json

import cluster
import yaml

PROMETHEUS = "/api/v1/namespaces/monitoring/services/prometheus:9090/proxy"
GRAFANA = "/api/v1/namespaces/monitoring/services/grafana:3000/proxy"


def answer(path: str) -> str | None:
    """The body of an answer; None where no such service is applied."""
    if path.startswith(PROMETHEUS) and _there("prometheus"):
        return json.dumps({"status": "success", "data": {"activeTargets": _targets()}})
    if path.startswith(GRAFANA) and _there("grafana"):
        return json.dumps({"database": "ok"})
    return None


def _there(name: str) -> bool:
    return cluster.read(cluster.kind_of("service"), "monitoring", name) is not None


def _targets() -> list[dict[str, object]]:
    """A target that is up for every job of the applied configuration."""
    found = []
    for item in cluster.listing(cluster.kind_of("configmap"), "monitoring"):
        for text in item.get("data", {}).values():
            if "scrape_configs:" in text:
                found += [job["job_name"] for job in yaml.safe_load(text).get("scrape_configs", ())]
    return [{"health": "up", "labels": {"job": job}, "scrapeUrl": "recorded", "lastError": ""} for job in found]
