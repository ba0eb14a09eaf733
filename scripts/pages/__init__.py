"""The pages under ``docs`` that are made from the code, so that they say what it does.

``python -m scripts.pages`` writes them anew; a test fails when one differs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from scripts.pages import capabilities, checks, commands, dictionary, fields, metrics

DOCS = Path(__file__).parents[2] / "docs"
PAGES: Mapping[str, Callable[[str], str]] = {
    "checks.md": lambda _: checks.page(),
    "cluster.md": capabilities.page,
    "commands.md": lambda _: commands.page(),
    "dictionary.md": lambda _: dictionary.page(),
    "fields.md": lambda _: fields.page(),
    "metrics.md": lambda _: metrics.page(),
}
"""By name: what makes a page of the page as it is."""
