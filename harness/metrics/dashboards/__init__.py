"""The five Grafana dashboards as code; ``templates/dashboards`` holds what they come to.

``python -m harness.metrics.dashboards`` writes the files anew; a test fails when the two differ.
"""

from harness.metrics.dashboards.boards import DASHBOARDS, DEFAULT_FOLDER
from harness.metrics.dashboards.model import Dashboard, Panel, Query, Variable, rendered

__all__ = ["DASHBOARDS", "DEFAULT_FOLDER", "Dashboard", "Panel", "Query", "Variable", "rendered"]
