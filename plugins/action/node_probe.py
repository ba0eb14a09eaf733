# ruff: noqa: INP001 - Ansible loads this folder by its own rules, without a package
"""Runs the module of this name, and tells how far the machine's clock is from the one here.

What is here may be read only around the machine's own answer: by the task after it, every other machine has answered too.
"""

from __future__ import annotations

import time
from typing import Any

from ansible.plugins.action import ActionBase


def apart_s(asked_s: float, told_s: float, answered_s: float) -> float:
    """Seconds that the two clocks differ at least: the machine read its own between the question and the answer."""
    return max(asked_s - told_s, told_s - answered_s, 0.0)


class ActionModule(ActionBase):  # type: ignore[misc]  # Ansible has no types
    """The module; where it reads the machine, `clock_apart_s` of the machine as well."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """What the module answers."""
        super().run(tmp, task_vars)
        asked_s = time.time()
        result: dict[str, Any] = self._execute_module(task_vars=task_vars)
        node = result.get("ansible_facts", {}).get("node")
        if node is not None:
            node["clock_apart_s"] = apart_s(asked_s, node["time_s"], time.time())
        return result
