"""Writes ``templates/dashboards``."""

from harness.metrics.dashboards import DASHBOARDS, DEFAULT_FOLDER, rendered

for dashboard in DASHBOARDS:
    (DEFAULT_FOLDER / f"{dashboard.uid}.json").write_text(rendered(dashboard), encoding="utf-8")
