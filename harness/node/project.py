"""Where the playbooks are: the checkout this package runs from, or the one we stand in."""

from __future__ import annotations

import os
from pathlib import Path

from harness.errors import UsageError

_MARK = "site.yml"


def find_project(start: Path | None = None) -> Path:
    """Folder with ``site.yml``: named by HARNESS_PROJECT, else here or above, else around this package.

    Raises UsageError where there is none.
    """
    named = os.environ.get("HARNESS_PROJECT")
    if named:
        candidates = [Path(named)]
    else:
        here = (start or Path.cwd()).resolve()
        candidates = [here, *here.parents, Path(__file__).resolve().parents[2]]
    for folder in candidates:
        if (folder / _MARK).is_file() and (folder / "roles").is_dir():
            return folder
    raise UsageError(
        f"There are no playbooks in {candidates[0]}.",
        advice="Run this in the project's checkout, or name it in the variable HARNESS_PROJECT.",
    )
