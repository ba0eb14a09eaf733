"""Writes ``templates/dashboards``."""

from scripts.dashboards import DASHBOARDS, DEFAULT_FOLDER, rendered

for dashboard in DASHBOARDS:
    (DEFAULT_FOLDER / f"{dashboard.uid}.json").write_text(rendered(dashboard), encoding="utf-8")
