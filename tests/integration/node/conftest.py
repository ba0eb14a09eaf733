"""Projects of playbooks for this machine alone."""

import os
import subprocess
from pathlib import Path

from tests.support import forked
from tests.support.module_python import module_python

ROOT = Path(__file__).parents[3]


def make_project(folder: Path, *host_variables: str) -> Path:
    """An empty one, whose only host is this machine."""
    folder.mkdir(exist_ok=True)
    (folder / "ansible.cfg").write_text("[defaults]\ninventory = hosts.ini\nroles_path = roles\n")
    host = f"here ansible_connection=local ansible_python_interpreter={module_python()}"
    (folder / "hosts.ini").write_text(" ".join([host, *host_variables]) + "\n")
    return folder


def environment(project: Path) -> dict[str, str]:
    """Of a command of the harness about a project."""
    return {**os.environ, "COLUMNS": "120", "HARNESS_PROJECT": str(project), "PYTHONPATH": str(ROOT)}


def harness(*words: object, project: Path = ROOT, cwd: Path = ROOT) -> "subprocess.CompletedProcess[str]":
    return forked.harness(*words, cwd=cwd, environment=environment(project))
