"""Where the playbooks are: the checkout we stand in, or what belongs to this package."""

from __future__ import annotations

import os
from pathlib import Path

from harness.data import data_path
from harness.errors import UsageError

_MARK = "site.yml"


def find_project(start: Path | None = None) -> Path:
    """Folder with ``site.yml``: named by HARNESS_PROJECT, else here or above, else the harness's own.

    Raises UsageError where there is none.
    """
    named = os.environ.get("HARNESS_PROJECT")
    if named:
        candidates = [Path(named)]
    else:
        here = (start or Path.cwd()).resolve()
        candidates = [here, *here.parents, data_path(_MARK).parent]
    for folder in candidates:
        if (folder / _MARK).is_file() and (folder / "roles").is_dir():
            return folder
    raise UsageError(
        f"There are no playbooks in {candidates[0]}.",
        advice="Run this in the project's checkout, or name it in the variable HARNESS_PROJECT.",
    )
