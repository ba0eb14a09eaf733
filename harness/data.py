"""Where the files are that belong to the harness and are no Python: templates, playbooks, roles."""

from __future__ import annotations

from pathlib import Path

import harness
from harness.errors import HarnessError


def data_path(name: str) -> Path:
    """A file or folder by its path in the checkout, e.g. ``templates/report``; a wheel carries it inside. Raises HarnessError."""
    package = Path(harness.__file__).resolve().parent
    places = [package / "_data" / name, package.parent / name]
    for place in places:
        if place.exists():
            return place
    raise HarnessError(
        f"{name} is neither at {places[0]} nor at {places[1]}.",
        advice="Install the harness again, or run it from its checkout.",
    )
