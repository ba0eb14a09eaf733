"""What several tests of pages need."""

import pytest

from harness.analysis import report
from harness.analysis.pages.plot import Panel, Picture


@pytest.fixture
def undrawn(monkeypatch):
    """Reports without their plots, which take most of their time: those are test_plots.py's."""
    monkeypatch.setattr(report, "timeline", lambda run: Picture(run.name, "none", [Panel(title="none")]))
    monkeypatch.setattr(report, "scaling", lambda _analysis, _workload: None)
