"""What happens during a run of Ansible, as small records, and what the run came to: outcome, failures, changes, seconds per role.

Where sudo or ssh of a host lets nobody work on it, the words that Ansible hands on say so: an ``AccessObstacle``, and what to do then.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from harness.errors import NodeAccessError, NodeTimeoutError, NodeUnreachableError, TaskFailedError

MAX_ERROR_CHARACTERS = 2000
OUTSIDE_ROLES = "(play)"
_KEPT_LINES = 40


class TaskOutcome(StrEnum):
    """How a task ended on one host; the gravest first."""

    FAILED = "failed"
    UNREACHABLE = "unreachable"
    CHANGED = "changed"
    OK = "ok"
    IGNORED = "ignored"
    SKIPPED = "skipped"


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
    """A task ended on one host: its own words where it failed, file and line, and what a debug task said."""

    at_s: float
    host: str
    name: str
    role: str
    outcome: TaskOutcome
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
    created = raw.get("created")
    at_s = datetime.fromisoformat(created).timestamp() if isinstance(created, str) else 0.0
    data: Mapping[str, Any] = raw.get("event_data") or {}
    if kind == "playbook_on_play_start":
        return PlayStarted(at_s, str(data.get("name") or data.get("play") or ""))
    if kind == "playbook_on_task_start":
        return TaskStarted(at_s, str(data.get("task") or data.get("name") or ""), _role(data))
    if kind in _RESULTS:
        return _task_ended(at_s, _RESULTS[kind], data)
    if kind == "playbook_on_stats":
        hosts = sorted({host for name in ("processed", "dark") for host in data.get(name) or {}})
        counts = {host: {name: int((data.get(name) or {}).get(host, 0)) for name in _COUNTS} for host in hosts}
        return RunEnded(at_s, counts)
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
    return TaskEnded(
        at_s=at_s,
        host=str(data.get("host", "")),
        name=str(data.get("task", "")),
        role=_role(data),
        outcome=outcome,
        error=host_error(result) if failed else "",
        path=str(data.get("task_path", "")),
        message=result.get("msg") if data.get("task_action") in _SAYING else None,
    )


def _role(data: Mapping[str, Any]) -> str:
    return str(data.get("role") or OUTSIDE_ROLES)


@dataclass(frozen=True, slots=True)
class AccessObstacle:
    """What stands in the way of working on a host: what Ansible says then, and a sentence with {host}."""

    code: str
    words: str
    what: str
    advice: str


# The first that fits: what is said of a login also says that the connection has ended.
OBSTACLES = (
    AccessObstacle(
        "sudo-wants-a-password",
        r"Missing \w+ password|sudo: a (terminal|password) is required",
        "sudo on {host} wants a password, and none was given",
        "Run it again with --ask-become-pass, or let the user that logs in become root without one (NOPASSWD in /etc/sudoers.d). "
        "Where it asks although that is set, the user may not run every command as root.",
    ),
    AccessObstacle(
        "sudo-password-wrong",
        r"Incorrect \w+ password|incorrect password attempt",
        "sudo on {host} rejected the password",
        "Run it again with --ask-become-pass; it is the password of the user that logs in (ansible_user), and one for all hosts of the run.",
    ),
    AccessObstacle(
        "sudo-refuses",
        r"is not in the sudoers file|is not allowed to (execute|run)|may not run sudo|must have a tty to run sudo|sudo: .*(setuid|owned by uid)"
        r"|sudo: (command )?not found|sudo: Permission denied",
        "sudo on {host} does not let this user become root",
        "Give the user that logs in (ansible_user) every command as root, in /etc/sudoers.d, or log in as one that has it; then run it again.",
    ),
    AccessObstacle(
        "login-refused",
        r"Permission denied \(",
        "ssh to {host} does not let this user in",
        "Check ansible_user and the key (ansible_ssh_private_key_file) until `ssh` works without a question; then run it again.",
    ),
    AccessObstacle(
        "host-key-changed",
        r"REMOTE HOST IDENTIFICATION HAS CHANGED|Host key verification failed",
        "{host} shows another key than the one that this machine knows, or one that it does not know",
        "Compare it with the host's own (ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub), then `ssh-keygen -R` its address and `ssh` to it once.",
    ),
    AccessObstacle(
        "host-unknown",
        r"Could not resolve hostname|Name or service not known",
        "no name server knows {host}",
        "Correct ansible_host in the inventory, or the names of this machine.",
    ),
)
LOST = AccessObstacle(
    "connection-lost",
    r"Shared connection to .* closed|Connection (to .* )?(closed|reset|refused|timed out)|Broken pipe|client_loop|kex_exchange|not responding",
    "the connection to {host} was lost",
    "See that the machine is up and `ssh` to it works, then run it again: what was done stays, and what was half done is done again.",
)


def obstacle(error: str, *, had_answered: bool) -> AccessObstacle | None:
    """What the words of a failure mean; ``had_answered``: the host did something in this run, and then lost the connection."""
    candidates = (*OBSTACLES, LOST) if had_answered else OBSTACLES
    return next((known for known in candidates if re.search(known.words, error)), None)


class RunStatus(StrEnum):
    """How a run ended."""

    OK = "ok"
    FAILED = "failed"
    UNREACHABLE = "unreachable"
    TIMEOUT = "timeout"


@dataclass(frozen=True, slots=True)
class TaskRecord:
    """A task on one host that changed something or failed; ``error`` is empty for the former."""

    host: str
    role: str
    task: str
    path: str = ""
    error: str = ""


@dataclass(slots=True)
class RoleTiming:
    """Work of one role in one run: tasks begun, and seconds from the start of each to the start of the next."""

    role: str
    tasks: int = 0
    changed: int = 0
    duration_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One run of one playbook: counts per host, failures that were not rescued, changes, seconds per role, the last output."""

    playbook: str
    status: RunStatus
    check_mode: bool
    started_at: str
    duration_s: float
    hosts: Mapping[str, Mapping[str, int]]
    failures: tuple[TaskRecord, ...]
    changes: tuple[TaskRecord, ...]
    roles: tuple[RoleTiming, ...]
    output: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Every host ran to the end without a failure."""
        return self.status is RunStatus.OK

    @property
    def changed(self) -> int:
        """Results that changed a host, over all hosts."""
        return sum(counts["changed"] for counts in self.hosts.values())

    @property
    def obstacle(self) -> AccessObstacle | None:
        """What keeps this machine from working on the host that failed first; None where the failure is another."""
        if not self.failures or self.status is RunStatus.TIMEOUT:
            return None
        first = self.failures[0]
        counts = self.hosts.get(first.host) or {}
        return obstacle(first.error, had_answered=counts.get("ok", 0) > 0)

    def require_ok(self) -> RunSummary:
        """The summary itself; raises the NodeError that says what failed where, and why."""
        if self.ok:
            return self
        if self.status is RunStatus.TIMEOUT:
            raise NodeTimeoutError(
                f"{self.playbook} was stopped after {self.duration_s:.0f} s, its limit.",
                advice="Look at the last task shown, then run it again (it continues where it is needed), or raise --timeout.",
            )
        first = self.failures[0]
        what = f"{first.role}: {first.task}" if first.role else first.task
        if (hindrance := self.obstacle) is not None:
            said = hindrance.what.format(host=first.host)
            raise NodeAccessError(
                f"{said[:1].upper()}{said[1:]}, at task {what!r}: {first.error}", advice=hindrance.advice
            )
        if self.status is RunStatus.UNREACHABLE:
            raise NodeUnreachableError(
                f"Host {first.host} did not answer at task {what!r}: {first.error}",
                advice="Check that it is up, its address in the inventory, and that `ssh` to it works without a question.",
            )
        more = f" (and {len(self.failures) - 1} more)" if len(self.failures) > 1 else ""
        raise TaskFailedError(
            f"Task {what!r} failed on {first.host}{more}: {first.error}",
            advice=f"Fix the cause and run it again: what is done already stays done. The task is at {first.path}.",
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        code = self.obstacle.code if self.obstacle else None
        return {**asdict(self), "ok": self.ok, "changed": self.changed, "obstacle": code}


class SummaryBuilder:
    """Takes a run's events one after another; holds no event longer than it needs. ``began``: a task was started."""

    def __init__(self, playbook: str, check_mode: bool, started_s: float) -> None:
        self._playbook, self._check_mode, self._started_s = playbook, check_mode, started_s
        self._roles: dict[str, RoleTiming] = {}
        self._failures: list[TaskRecord] = []
        self._changes: list[TaskRecord] = []
        self._output: deque[str] = deque(maxlen=_KEPT_LINES)
        self._hosts: Mapping[str, Mapping[str, int]] = {}
        self._current: TaskStarted | None = None
        self._last_at_s = 0.0
        self.began = False

    def add(self, event: NodeEvent) -> None:
        """Take one event."""
        self._last_at_s = event.at_s or self._last_at_s
        match event:
            case TaskStarted():
                self._close_task()
                self._role(event.role).tasks += 1
                self._current, self.began = event, True
            case TaskEnded(outcome=TaskOutcome.CHANGED):
                self._role(event.role).changed += 1
                self._changes.append(_record(event))
            case TaskEnded(outcome=TaskOutcome.FAILED | TaskOutcome.UNREACHABLE):
                self._failures.append(_record(event))
            case OutputLine():
                self._output.append(event.text)
            case RunEnded():
                self._close_task()
                self._hosts = event.counts

    def build(self, ended_s: float, *, exit_code: int, timed_out: bool) -> RunSummary:
        """The summary of a run that ended with ``exit_code``."""
        self._close_task()
        failures = self._unrescued()
        if exit_code and not failures:  # e.g. no host matched: Ansible's own words are the reason
            said = "\n".join(self._output) or f"ansible-playbook ended with exit code {exit_code} and said nothing"
            failures = [TaskRecord(host="", role="", task="(none)", error=said)]
        return RunSummary(
            playbook=self._playbook,
            status=self._status(exit_code, timed_out=timed_out),
            check_mode=self._check_mode,
            started_at=datetime.fromtimestamp(self._started_s, UTC).isoformat(timespec="seconds"),
            duration_s=ended_s - self._started_s,
            hosts=self._hosts,
            failures=tuple(failures),
            changes=tuple(self._changes),
            roles=tuple(self._roles.values()),
            output=tuple(self._output),
        )

    def _close_task(self) -> None:
        if self._current is not None:
            self._role(self._current.role).duration_s += max(self._last_at_s - self._current.at_s, 0.0)
            self._current = None

    def _role(self, name: str) -> RoleTiming:
        return self._roles.setdefault(name, RoleTiming(name))

    def _unrescued(self) -> list[TaskRecord]:
        """A rescued failure comes before the one that ended a host: the recap says how many of the last count."""
        kept: list[TaskRecord] = []
        for host in dict.fromkeys(record.host for record in self._failures):
            records = [record for record in self._failures if record.host == host]
            counts = self._hosts.get(host)
            number = len(records) if counts is None else counts["failures"] + counts["dark"]
            kept += records[len(records) - number :] if number else []
        return kept

    def _status(self, exit_code: int, *, timed_out: bool) -> RunStatus:
        if timed_out:
            return RunStatus.TIMEOUT
        if exit_code == 0:
            return RunStatus.OK
        dark, failed = (any(counts[how] for counts in self._hosts.values()) for how in ("dark", "failures"))
        return RunStatus.UNREACHABLE if dark and not failed else RunStatus.FAILED


def _record(event: TaskEnded) -> TaskRecord:
    return TaskRecord(event.host, event.role, event.name, event.path, event.error)
