"""What the inventory's and the roles' variables come to on each node, resolved by Ansible itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.node.errors import PlaybookError
from harness.node.events import NodeEvent, TaskEnded
from harness.node.runner import NodeRunner, RunRequest

PLAYBOOK = Path("playbooks/expected.yml")


def resolve(
    project: Path, names: Sequence[str], *, inventory: Path | None = None, limit: str = ""
) -> dict[str, dict[str, Any]]:
    """Host -> name -> value; a variable without a value is an empty string. Talks to no machine.

    Raises NodeError where the inventory, a value or the limit is wrong.
    """
    values: dict[str, dict[str, Any]] = {}

    def take(event: NodeEvent) -> None:
        if isinstance(event, TaskEnded) and isinstance(event.message, dict):
            values[event.host] = event.message

    request = RunRequest(PLAYBOOK, inventory=inventory, limit=limit, variables={"expected_variables": list(names)})
    NodeRunner(project, listener=take).run(request).require_ok()
    if not values:
        raise PlaybookError(
            f"The inventory has no node{f' that matches {limit}' if limit else ''}.",
            advice="Name the machine under `control_plane` or `workers` in the inventory.",
        )
    return values
