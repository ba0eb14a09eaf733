"""What a run of a playbook is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What to run.

    Attributes:
        playbook: path, absolute or below the project.
        inventory: path of the inventory; None: the one that ``ansible.cfg`` names.
        limit: host pattern; empty: all hosts of the plays.
        tags: run only tasks with one of these tags.
        check: change nothing, say what would change.
        variables: non-secret extra variables; they can be seen in the process list.
        timeout_s: stop the run after this many seconds; None: never.
    """

    playbook: Path
    inventory: Path | None = None
    limit: str = ""
    tags: Sequence[str] = ()
    check: bool = False
    variables: Mapping[str, Any] = field(default_factory=dict)
    timeout_s: float | None = None
