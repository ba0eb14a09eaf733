"""The five Grafana dashboards as code; ``templates/dashboards`` holds what they come to.

``python -m scripts.dashboards`` writes the files anew; a test fails when the two differ.
"""

from scripts.dashboards.boards import DASHBOARDS, DEFAULT_FOLDER
from scripts.dashboards.model import Dashboard, Panel, Query, Variable, rendered

__all__ = ["DASHBOARDS", "DEFAULT_FOLDER", "Dashboard", "Panel", "Query", "Variable", "rendered"]
