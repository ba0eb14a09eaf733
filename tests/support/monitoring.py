"""What the monitoring roles hand to their templates, rendered as they render it."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from tests.unit.ansible.tree import ROOT, render

ROLE = ROOT / "roles/prometheus"
DASHBOARD_FILES = sorted((ROOT / "templates/dashboards").glob("*.json"))


def prometheus_files(**changed: Any) -> dict[str, str]:
    """Prometheus' configuration and rules by name."""
    window_s = 4 * changed.get("prometheus_scrape_interval_s", 5)
    given = {"prometheus_rate_window_s": window_s, **changed}
    return {
        "prometheus.yml": render(ROLE / "templates/prometheus-config.yml.j2", **given),
        "promtool.yml": (ROLE / "files/promtool.yml").read_text(),
        "recording.yml": render(ROLE / "templates/recording.yml.j2", **given),
        "alerts.yml": (ROLE / "files/alerts.yml").read_text(),
    }


@functools.cache
def handed_over() -> dict[str, Any]:
    """Variables that the roles' tasks add to their defaults."""
    return {
        "prometheus_rate_window_s": 20,
        "prometheus_files": prometheus_files(),
        "prometheus_checksum": "0" * 64,
        "grafana_dashboards": {path.name: path.read_text() for path in DASHBOARD_FILES},
        "grafana_checksum": "0" * 64,
        "service_name": "prometheus",
        "service_port": 9090,
        "service_target": "metrics",
        "service_exposure": "cluster",
        "service_node_port": 30090,
    }


def manifest(path: Path, **changed: Any) -> str:
    """One of the templates as a role applies it."""
    return render(path, **{**handed_over(), **changed})
