"""Ansible callback: one JSON line per task started and per result, written at once, for whoever watches."""

import json
import os
import time
from pathlib import Path
from typing import Any

from ansible.plugins.callback import CallbackBase

DOCUMENTATION = r"""
name: task_journal
type: notification
short_description: A journal of tasks and results as JSON lines
description: Appends to the file that the environment variable TASK_JOURNAL names.
"""


class CallbackModule(CallbackBase):  # type: ignore[misc]
    """Writes the journal."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "notification"
    CALLBACK_NAME = "task_journal"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self) -> None:
        super().__init__()
        self._journal = Path(os.environ["TASK_JOURNAL"])
        self._play = ""

    def _write(self, **entry: Any) -> None:
        with self._journal.open("a") as journal:
            journal.write(json.dumps({"at": time.time(), **entry}, default=str) + "\n")

    def _result(self, status: str, result: Any) -> None:
        found = result._result
        said = " ".join(str(found.get(key, "")) for key in ("msg", "stderr", "reason") if found.get(key))
        changed = bool(found.get("changed"))
        host, task = result._host.get_name(), str(result._task._uuid)
        self._write(event="result", status=status, changed=changed, task=task, host=host, message=said)

    def v2_playbook_on_play_start(self, play: Any) -> None:
        self._play = play.get_name()

    def v2_playbook_on_task_start(self, task: Any, is_conditional: bool) -> None:  # noqa: ARG002 - ansible's
        role = task._role.get_name() if task._role else ""
        entry = {"role": role, "task": str(task._uuid), "action": task.action, "play": self._play}
        self._write(event="start", name=task.get_name(), **entry)

    v2_playbook_on_handler_task_start = v2_playbook_on_cleanup_task_start = v2_playbook_on_task_start

    def v2_runner_on_ok(self, result: Any) -> None:
        self._result("ok", result)

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        self._result("ignored" if ignore_errors else "failed", result)

    def v2_runner_on_unreachable(self, result: Any) -> None:
        self._result("unreachable", result)

    def v2_runner_on_skipped(self, result: Any) -> None:
        self._result("skipped", result)

    def v2_playbook_on_stats(self, stats: Any) -> None:
        hosts = {host: stats.summarize(host) for host in sorted(stats.processed)}
        self._write(event="stats", hosts=hosts)
