"""Judge a node: run every check that applies, once or until all pass, and every role's own verification; and the reboot test.

The same node gives the same checks before and after a reboot; only what is applicable is judged, and what is not is
named with its reason. A machine cannot reboot itself and watch: for the one we are on, the test has two halves.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from harness.errors import NodeError, NodeUnreachableError, StorageError, UsageError
from harness.node.checks import Node, NodeCheck, registered
from harness.node.checks.registry import CannotLookError, NotApplicableError, Observation
from harness.node.events import Listener, RunSummary
from harness.node.expected import VARIABLES, Expected
from harness.node.machine import connect
from harness.node.runner import NodeRunner, RunRequest, resolve

ROLES_AREA = "roles"
VERIFY_PLAYBOOK, REBOOT_PLAYBOOK, SITE = Path("playbooks/verify.yml"), Path("playbooks/reboot.yml"), Path("site.yml")
_JOURNAL_LINES = 20
_SHOWN_CHANGES = 10
_RETRY_S = 5.0


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One judged check. ``journal``: last lines of the unit concerned, only when the check failed."""

    name: str
    ok: bool
    expected: str
    found: str
    advice: str = ""
    journal: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"{self.name}: expected {self.expected}; found {self.found}."]
        if not self.ok:
            lines += [f"  do: {self.advice}", *(f"  | {line}" for line in self.journal)]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class NotApplicableCheck:
    """A check that this node cannot be judged by."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class NodeVerdict:
    """All checks of one node at one time."""

    host: str
    boot_id: str
    checked_at: str
    checks: list[CheckResult]
    not_applicable: list[NotApplicableCheck] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether there is at least one check and none failed."""
        return bool(self.checks) and all(check.ok for check in self.checks)

    @property
    def failed(self) -> list[CheckResult]:
        """The checks that failed."""
        return [check for check in self.checks if not check.ok]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON: ``{ok, host, boot_id, checked_at, checks: [{name, ok, expected, found, advice, journal}], not_applicable}``."""
        return {"ok": self.ok, **asdict(self)}


@dataclass(frozen=True, slots=True)
class VerifyRequest:
    """What to judge: hosts, and areas of checks (``swap``, ``crio``...; empty: all), for up to ``wait_s`` while something fails."""

    inventory: Path | None = None
    limit: str = ""
    areas: Sequence[str] = ()
    wait_s: float = 0.0


def verify(project: Path, request: VerifyRequest) -> list[NodeVerdict]:
    """The verdict on every node of the request. Raises UsageError for an unknown area, NodeError where a node cannot be judged."""
    checks = selected(request.areas)
    variables = resolve(project, VARIABLES, inventory=request.inventory, limit=request.limit)
    verdicts = [
        _judge_until(project, host, Expected.from_variables(values), checks, request)
        for host, values in variables.items()
    ]
    if not request.areas or ROLES_AREA in request.areas:
        _ask_roles(project, request, verdicts)
    return verdicts


def selected(areas: Sequence[str]) -> list[NodeCheck]:
    """The checks of these areas, or all."""
    known = {check.area for check in registered()} | {ROLES_AREA}
    unknown = sorted(set(areas) - known)
    if unknown:
        raise UsageError(
            f"There are no checks in {', '.join(unknown)}.", advice=f"Choose from {', '.join(sorted(known))}."
        )
    return [check for check in registered() if not areas or check.area in areas]


def _ask_roles(project: Path, request: VerifyRequest, verdicts: Sequence[NodeVerdict]) -> None:
    """Add to each verdict whether the roles find their own work done; reads only."""
    play = RunRequest(VERIFY_PLAYBOOK, inventory=request.inventory, limit=request.limit)
    summary = NodeRunner(project).run(play)
    for verdict in verdicts:
        failures = [record for record in summary.failures if record.host in ("", verdict.host)]
        failed = "; ".join(f"{record.role} {record.task}: {record.error}" for record in failures) or "all passed"
        advice = "Run `harness node provision`; the task's own words say what is missing." if failures else ""
        expected = "every role's own verification passes"
        verdict.checks.append(CheckResult(f"{ROLES_AREA}/verify", not failures, expected, failed, advice))


def judge(host: str, node: Node, checks: Sequence[NodeCheck]) -> NodeVerdict:
    """Run the checks that apply to this node."""
    boot_id = (node.machine.read("/proc/sys/kernel/random/boot_id") or "").strip()
    verdict = NodeVerdict(host, boot_id, datetime.now(UTC).isoformat(timespec="seconds"), [])
    for check in checks:
        try:
            verdict.checks.append(run_check(check, node))
        except NotApplicableError as reason:
            verdict.not_applicable.append(NotApplicableCheck(check.name, str(reason)))
    return verdict


def run_check(check: NodeCheck, node: Node) -> CheckResult:
    """One check; raises NotApplicableError where the node cannot be judged by it."""
    try:
        seen = check.look(node)
    except CannotLookError as reason:
        seen = Observation(False, (check.function.__doc__ or "").splitlines()[0].rstrip("."), str(reason))
    if seen.ok:
        return CheckResult(check.name, ok=True, expected=seen.expected, found=seen.found)
    journal = node.machine.journal(check.unit, _JOURNAL_LINES) if check.unit else []
    return CheckResult(check.name, False, seen.expected, seen.found, check.advice, journal)


def _judge_until(
    project: Path, host: str, expected: Expected, checks: Sequence[NodeCheck], request: VerifyRequest
) -> NodeVerdict:
    """Judge afresh, over a connection of its own each time, until all is well or the time is over."""

    def once() -> NodeVerdict:
        with connect(project, host, request.inventory) as machine:
            return judge(host, Node(machine, expected), checks)

    return until_ok(once, wait_s=request.wait_s if checks else 0.0)


def until_ok(once: Callable[[], NodeVerdict], *, wait_s: float, retry_s: float = _RETRY_S) -> NodeVerdict:
    """The first verdict without a failure, or the last one in ``wait_s`` seconds. Raises NodeUnreachableError of a machine silent at the end."""
    deadline_s = time.monotonic() + wait_s
    while True:
        last = time.monotonic() + retry_s >= deadline_s
        try:
            verdict = once()
        except NodeUnreachableError:
            if last:
                raise
        else:
            if verdict.ok or last:
                return verdict
        time.sleep(retry_s)


@dataclass(frozen=True, slots=True)
class BootState:
    """What has to be the same after a reboot, and the boot id, which has not."""

    host: str
    boot_id: str
    checks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RebootReport:
    """What the reboot test found; ``reboot_s``: None when somebody else rebooted, ``recovery_s``: from then until nothing failed."""

    before: Sequence[BootState]
    after: Sequence[NodeVerdict]
    reboot_s: float | None
    recovery_s: float
    converge: RunSummary
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether the node survived."""
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        after = [verdict.to_dict() for verdict in self.after]
        return {"ok": self.ok, **asdict(self), "after": after, "converge": self.converge.to_dict()}


@dataclass(slots=True)
class RebootTest:
    """The test, step by step."""

    project: Path
    request: VerifyRequest
    listener: Listener
    step: Callable[[str], None]
    become_password: str | None = None

    def run(self) -> RebootReport:
        """All of it, for nodes that are not the machine we are on. Raises UsageError for that one, NodeError where a node is unwell."""
        self._refuse_local()
        before = self._state()
        self.step("rebooting")
        started_s = time.monotonic()
        self._play(REBOOT_PLAYBOOK).require_ok()
        return self._after(before, reboot_s=time.monotonic() - started_s)

    def save_state(self, path: Path) -> None:
        """First half: judge, and write down what has to be the same after the reboot."""
        state = [asdict(state) for state in self._state()]
        try:
            path.write_text(json.dumps(state, indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            raise StorageError(f"{path} cannot be written: {error}", advice="Name another file.") from error

    def compare_state(self, path: Path) -> RebootReport:
        """Second half, after the reboot. Raises UsageError where the file is none of ours."""
        try:
            before = TypeAdapter(list[BootState]).validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            raise UsageError(
                f"{path} is not a state saved before a reboot: {error}", advice="Begin with --before."
            ) from error
        return self._after(before, reboot_s=None)

    def _refuse_local(self) -> None:
        names = ("ansible_connection",)
        hosts = resolve(self.project, names, inventory=self.request.inventory, limit=self.request.limit)
        if local := [host for host, values in hosts.items() if values["ansible_connection"] == "local"]:
            raise UsageError(
                f"{', '.join(local)} is the machine this runs on, and a machine cannot watch its own reboot.",
                advice="Use --before FILE, reboot, then --after FILE; or run this from another machine, over ssh.",
            )

    def _state(self) -> list[BootState]:
        self.step("judging before the reboot")
        verdicts = verify(self.project, replace(self.request, wait_s=0.0))
        for verdict in verdicts:
            if not verdict.ok:
                raise NodeError(
                    f"{verdict.host} is not well before the reboot: {verdict.failed[0]}",
                    advice="Run `harness node provision`, then `harness node verify`, until nothing fails.",
                )
        return [
            BootState(verdict.host, verdict.boot_id, tuple(check.name for check in verdict.checks))
            for verdict in verdicts
        ]

    def _after(self, before: Sequence[BootState], *, reboot_s: float | None) -> RebootReport:
        self.step(f"judging after the reboot (for up to {self.request.wait_s:.0f} s)")
        started_s = time.monotonic()
        after = verify(self.project, self.request)
        recovery_s = time.monotonic() - started_s
        self.step("converging again: nothing may change")
        converge = self._play(SITE)
        problems = [*compare(before, after), *unconverged(converge)]
        return RebootReport(before, after, reboot_s, recovery_s, converge, problems)

    def _play(self, playbook: Path) -> RunSummary:
        runner = NodeRunner(self.project, listener=self.listener, become_password=self.become_password)
        return runner.run(RunRequest(playbook, inventory=self.request.inventory, limit=self.request.limit))


def compare(before: Sequence[BootState], after: Sequence[NodeVerdict]) -> list[str]:
    """What is wrong with the nodes after the reboot, in sentences."""
    problems = []
    now = {verdict.host: verdict for verdict in after}
    for state in before:
        verdict = now.get(state.host)
        if verdict is None:
            problems.append(f"{state.host} was judged before the reboot and not after it.")
            continue
        if verdict.boot_id == state.boot_id:
            problems.append(f"{state.host} has not rebooted: its boot id is still {state.boot_id}.")
        lost = set(state.checks) - {check.name for check in verdict.checks}
        if lost:
            problems.append(f"{state.host} is no longer judged by {', '.join(sorted(lost))}.")
        problems += [f"{state.host}: {check}" for check in verdict.failed]
    return problems


def unconverged(summary: RunSummary) -> list[str]:
    """What the run after the reboot did that it should not have had to do."""
    problems = [f"Converging again failed: {record.host} {record.task}: {record.error}" for record in summary.failures]
    if summary.changed:
        tasks = [f"{record.role}: {record.task} ({record.host})" for record in summary.changes[:_SHOWN_CHANGES]]
        problems.append(f"Converging again changed {summary.changed} things: {'; '.join(tasks)}.")
    return problems
