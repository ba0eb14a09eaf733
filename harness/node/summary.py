"""What one run did: outcome, what failed and why, what changed, seconds and tasks per role.

Where sudo or ssh of a host lets nobody work on it, the words that Ansible hands on say so: an ``AccessObstacle``, and what to do then.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from harness.errors import NodeAccessError, NodeTimeoutError, NodeUnreachableError, TaskFailedError
from harness.node.events import NodeEvent, OutputLine, RunEnded, TaskEnded, TaskOutcome, TaskStarted

_KEPT_LINES = 40


class Access(StrEnum):
    """What stands in the way, as a code."""

    SUDO_ASKS = "sudo-wants-a-password"
    SUDO_DISBELIEVES = "sudo-password-wrong"
    SUDO_REFUSES = "sudo-refuses"
    LOGIN_REFUSED = "login-refused"
    HOST_KEY = "host-key-changed"
    NO_ADDRESS = "host-unknown"
    CONNECTION_LOST = "connection-lost"


@dataclass(frozen=True, slots=True)
class AccessObstacle:
    """One of them.

    Attributes:
        what: a sentence, with {host}.
    """

    code: Access
    words: re.Pattern[str]
    what: str
    advice: str


def _obstacle(code: Access, words: str, what: str, advice: str) -> AccessObstacle:
    return AccessObstacle(code, re.compile(words), what, advice)


# The first that fits: what is said of a login also says that the connection has ended.
OBSTACLES = (
    _obstacle(
        Access.SUDO_ASKS,
        r"Missing \w+ password|sudo: a (terminal|password) is required",
        "sudo on {host} wants a password, and none was given",
        "Run it again with --ask-become-pass, or let the user that logs in become root without one (NOPASSWD in /etc/sudoers.d). "
        "Where it asks although that is set, the user may not run every command as root.",
    ),
    _obstacle(
        Access.SUDO_DISBELIEVES,
        r"Incorrect \w+ password|incorrect password attempt",
        "sudo on {host} did not take the password",
        "Run it again with --ask-become-pass; it is the password of the user that logs in (ansible_user), and one for all hosts of the run.",
    ),
    _obstacle(
        Access.SUDO_REFUSES,
        r"is not in the sudoers file|is not allowed to (execute|run)|may not run sudo|must have a tty to run sudo|sudo: .*(setuid|owned by uid)"
        r"|sudo: (command )?not found|sudo: Permission denied",
        "sudo on {host} does not let this user become root",
        "Give the user that logs in (ansible_user) every command as root, in /etc/sudoers.d, or log in as one that has it; then run it again.",
    ),
    _obstacle(
        Access.LOGIN_REFUSED,
        r"Permission denied \(",
        "ssh to {host} does not let this user in",
        "Check ansible_user and the key (ansible_ssh_private_key_file) until `ssh` works without a question; then run it again.",
    ),
    _obstacle(
        Access.HOST_KEY,
        r"REMOTE HOST IDENTIFICATION HAS CHANGED|Host key verification failed",
        "{host} shows another key than the one that this machine knows, or one that it does not know",
        "Compare it with the host's own (ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub), then `ssh-keygen -R` its address and `ssh` to it once.",
    ),
    _obstacle(
        Access.NO_ADDRESS,
        r"Could not resolve hostname|Name or service not known",
        "nobody knows the address of {host}",
        "Correct ansible_host in the inventory, or the names of this machine.",
    ),
)
LOST = _obstacle(
    Access.CONNECTION_LOST,
    r"Shared connection to .* closed|Connection (to .* )?(closed|reset|refused|timed out)|Broken pipe|client_loop|kex_exchange|not responding",
    "the connection to {host} was lost",
    "See that the machine is up and `ssh` to it works, then run it again: what was done stays, and what was half done is done again.",
)


def obstacle(error: str, *, had_answered: bool) -> AccessObstacle | None:
    """What the words of a failure mean; None where it is none of these.

    had_answered: whether the host had done something in this run, so that an end of the connection came in its middle.
    """
    known = (candidate for candidate in OBSTACLES if candidate.words.search(error))
    if (first := next(known, None)) is not None:
        return first
    return LOST if had_answered and LOST.words.search(error) else None


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
    """Work of one role in one run.

    Attributes:
        tasks: tasks begun, handlers included.
        duration_s: wall-clock seconds from the start of each task to the start of the next, summed.
    """

    role: str
    tasks: int = 0
    changed: int = 0
    duration_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One run of one playbook.

    Attributes:
        hosts: per host, how many tasks ended ok, changed, skipped, failures, dark (unreachable), rescued, ignored.
        failures: what failed and was not rescued.
        output: last lines Ansible said outside of tasks.
    """

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
            advice=f"Mend the cause and run it again: what is done already stays done. The task is at {first.path}.",
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        code = self.obstacle.code.value if self.obstacle else None
        return {**asdict(self), "ok": self.ok, "changed": self.changed, "obstacle": code}


@dataclass(slots=True)
class SummaryBuilder:
    """Takes a run's events one after another; holds no event longer than it needs."""

    playbook: str
    check_mode: bool
    started_s: float
    _roles: dict[str, RoleTiming] = field(default_factory=dict)
    _failures: dict[str, list[TaskRecord]] = field(default_factory=dict)
    _changes: list[TaskRecord] = field(default_factory=list)
    _output: deque[str] = field(default_factory=lambda: deque(maxlen=_KEPT_LINES))
    _hosts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    _current: TaskStarted | None = None
    _last_at_s: float = 0.0

    @property
    def began(self) -> bool:
        """Whether any task was started."""
        return bool(self._roles)

    def add(self, event: NodeEvent) -> None:
        """Take one event."""
        self._last_at_s = event.at_s or self._last_at_s
        match event:
            case TaskStarted():
                self._close_task(event.at_s)
                self._role(event.role).tasks += 1
                self._current = event
            case TaskEnded():
                self._end(event)
            case OutputLine():
                self._output.append(event.text)
            case RunEnded():
                self._close_task(event.at_s)
                self._hosts = event.counts

    def build(self, ended_s: float, *, exit_code: int, timed_out: bool) -> RunSummary:
        """The summary of a run that ended with ``exit_code``."""
        self._close_task(self._last_at_s)
        failures = self._unrescued()
        return RunSummary(
            playbook=self.playbook,
            status=self._status(exit_code, timed_out=timed_out),
            check_mode=self.check_mode,
            started_at=datetime.fromtimestamp(self.started_s, UTC).isoformat(timespec="seconds"),
            duration_s=ended_s - self.started_s,
            hosts=self._hosts,
            failures=failures or self._unexplained(exit_code),
            changes=tuple(self._changes),
            roles=tuple(self._roles.values()),
            output=tuple(self._output),
        )

    def _end(self, event: TaskEnded) -> None:
        record = TaskRecord(event.host, event.role, event.name, event.path, event.error)
        if event.outcome is TaskOutcome.CHANGED:
            self._role(event.role).changed += 1
            self._changes.append(record)
        elif event.outcome in {TaskOutcome.FAILED, TaskOutcome.UNREACHABLE}:
            self._failures.setdefault(event.host, []).append(record)

    def _close_task(self, at_s: float) -> None:
        if self._current is not None:
            self._role(self._current.role).duration_s += max(at_s - self._current.at_s, 0.0)
            self._current = None

    def _role(self, name: str) -> RoleTiming:
        return self._roles.setdefault(name, RoleTiming(name))

    def _unrescued(self) -> tuple[TaskRecord, ...]:
        """A rescued failure comes before the one that ended a host: the recap says how many of the last count."""
        kept: list[TaskRecord] = []
        for host, records in self._failures.items():
            counts = self._hosts.get(host)
            number = len(records) if counts is None else counts["failures"] + counts["dark"]
            kept += records[len(records) - number :] if number else []
        return tuple(kept)

    def _unexplained(self, exit_code: int) -> tuple[TaskRecord, ...]:
        """Ansible ended badly without a failed task, e.g. no host matched: its own words are the reason."""
        if exit_code == 0:
            return ()
        said = "\n".join(self._output) or f"ansible-playbook ended with exit code {exit_code} and said nothing"
        return (TaskRecord(host="", role="", task="(none)", error=said),)

    def _status(self, exit_code: int, *, timed_out: bool) -> RunStatus:
        if timed_out:
            return RunStatus.TIMEOUT
        if exit_code == 0:
            return RunStatus.OK
        dark = any(counts["dark"] for counts in self._hosts.values())
        failed = any(counts["failures"] for counts in self._hosts.values())
        return RunStatus.UNREACHABLE if dark and not failed else RunStatus.FAILED
