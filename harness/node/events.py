"""What happens during a run, as small records; made from the events of ansible-runner."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

MAX_ERROR_CHARACTERS = 2000
OUTSIDE_ROLES = "(play)"


class TaskOutcome(StrEnum):
    """How a task ended on one host."""

    OK = "ok"
    CHANGED = "changed"
    SKIPPED = "skipped"
    FAILED = "failed"
    IGNORED = "ignored"
    UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True)
class PlayStarted:
    """A play begins."""

    at_s: float
    name: str


@dataclass(frozen=True, slots=True)
class TaskStarted:
    """A task (or handler) begins on its hosts. ``role`` is ``(play)`` outside roles."""

    at_s: float
    name: str
    role: str


@dataclass(frozen=True, slots=True)
class TaskEnded:
    """A task ended on one host.

    Attributes:
        duration_s: seconds the host took; None where Ansible gives none.
        error: the host's own words, clipped; empty unless it failed.
        path: file and line of the task.
        message: what a debug task said: any plain data; None for all other tasks.
    """

    at_s: float
    host: str
    name: str
    role: str
    outcome: TaskOutcome
    duration_s: float | None = None
    error: str = ""
    path: str = ""
    message: Any = None


@dataclass(frozen=True, slots=True)
class OutputLine:
    """Something Ansible says outside of tasks: warnings, and why it could not begin."""

    at_s: float
    text: str


@dataclass(frozen=True, slots=True)
class RunEnded:
    """The play recap: per host, how many tasks ended how."""

    at_s: float
    counts: Mapping[str, Mapping[str, int]]


NodeEvent = PlayStarted | TaskStarted | TaskEnded | OutputLine | RunEnded
Listener = Callable[[NodeEvent], None]

_RESULTS = {
    "runner_on_ok": TaskOutcome.OK,
    "runner_on_skipped": TaskOutcome.SKIPPED,
    "runner_on_failed": TaskOutcome.FAILED,
    "runner_on_unreachable": TaskOutcome.UNREACHABLE,
}
_TALK = {"verbose", "error", "warning", "system_warning", "deprecated"}
_SAYING = {"debug", "ansible.builtin.debug"}
_COUNTS = ("ok", "changed", "skipped", "failures", "dark", "rescued", "ignored")


def translate(raw: Mapping[str, Any]) -> NodeEvent | None:
    """One event of ansible-runner as a record of ours; None for those nobody needs."""
    kind = raw.get("event", "")
    at_s = _seconds(raw.get("created"))
    data: Mapping[str, Any] = raw.get("event_data") or {}
    if kind == "playbook_on_play_start":
        return PlayStarted(at_s, str(data.get("name") or data.get("play") or ""))
    if kind == "playbook_on_task_start":
        return TaskStarted(at_s, str(data.get("task") or data.get("name") or ""), _role(data))
    if kind in _RESULTS:
        return _task_ended(at_s, _RESULTS[kind], data)
    if kind == "playbook_on_stats":
        return RunEnded(at_s, _counts(data))
    text = str(raw.get("stdout", "")).strip()
    return OutputLine(at_s, text) if kind in _TALK and text else None


def clip(text: str, limit: int = MAX_ERROR_CHARACTERS) -> str:
    """``text`` with its middle left out where it is longer than ``limit`` characters: causes stand at both ends."""
    text = text.strip()
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n... ({len(text) - 2 * half} characters left out) ...\n{text[-half:]}"


def host_error(result: Mapping[str, Any]) -> str:
    """Why a task failed, in the host's own words: message, then stderr, or stdout where both say nothing."""
    if "censored" in result:
        return "the task hides its output (no_log)"
    items = [item for item in result.get("results") or [] if isinstance(item, Mapping) and item.get("failed")]
    if items:
        return clip("\n".join(_item_error(item) for item in items))
    parts: list[str] = []
    for key in ("msg", "reason", "stderr", "module_stderr"):
        text = str(result.get(key) or "").strip()
        if text and text not in parts:
            parts.append(text)
    if not any(result.get(key) for key in ("stderr", "module_stderr")):
        parts.append(str(result.get("stdout") or result.get("module_stdout") or "").strip())
    return clip("\n".join(part for part in parts if part)) or "the host gave no reason"


def _item_error(item: Mapping[str, Any]) -> str:
    label = item.get("_ansible_item_label", item.get("item", ""))
    return f"{label}: {host_error(item)}" if label else host_error(item)


def _task_ended(at_s: float, outcome: TaskOutcome, data: Mapping[str, Any]) -> TaskEnded:
    result: Mapping[str, Any] = data.get("res") or {}
    failed = outcome in {TaskOutcome.FAILED, TaskOutcome.UNREACHABLE}
    if outcome is TaskOutcome.OK and result.get("changed"):
        outcome = TaskOutcome.CHANGED
    elif outcome is TaskOutcome.FAILED and data.get("ignore_errors"):
        outcome = TaskOutcome.IGNORED
    duration = data.get("duration")
    return TaskEnded(
        at_s=at_s,
        host=str(data.get("host", "")),
        name=str(data.get("task", "")),
        role=_role(data),
        outcome=outcome,
        duration_s=float(duration) if duration is not None else None,
        error=host_error(result) if failed else "",
        path=str(data.get("task_path", "")),
        message=result.get("msg") if data.get("task_action") in _SAYING else None,
    )


def _role(data: Mapping[str, Any]) -> str:
    return str(data.get("role") or OUTSIDE_ROLES)


def _counts(data: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    hosts = sorted({host for name in ("processed", "dark") for host in data.get(name) or {}})
    return {host: {name: int((data.get(name) or {}).get(host, 0)) for name in _COUNTS} for host in hosts}


def _seconds(created: object) -> float:
    return datetime.fromisoformat(created).timestamp() if isinstance(created, str) else 0.0
