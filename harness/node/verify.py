"""Judge a node: run every check that applies, once or until all pass, and every role's own verification.

The same node gives the same checks before and after a reboot; only what is applicable is judged, and what is not is
named with its reason.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.errors import NodeUnreachableError, UsageError
from harness.node.checks import Node, NodeCheck, registered
from harness.node.checks.registry import CannotLookError, NotApplicableError
from harness.node.expected import VARIABLES, Expected
from harness.node.machine import Machine, connect
from harness.node.runner import NodeRunner, RunRequest, resolve

ROLES_AREA = "roles"
VERIFY_PLAYBOOK = Path("playbooks/verify.yml")
_JOURNAL_LINES = 20
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
    """What to judge.

    Attributes:
        inventory: None: the one that ``ansible.cfg`` names.
        limit: hosts to judge; empty: every node of the inventory.
        areas: first parts of check names (``swap``, ``crio``...); empty: all.
        wait_s: how long to judge again while something fails; a cluster needs a while after a reboot.
    """

    inventory: Path | None = None
    limit: str = ""
    areas: Sequence[str] = ()
    wait_s: float = 0.0


def verify(project: Path, request: VerifyRequest) -> list[NodeVerdict]:
    """The verdict on every node of the request, in the inventory's order.

    Raises UsageError for an area that does not exist, NodeError where a node cannot be judged at all.
    """
    checks = selected(request.areas)
    variables = resolve(project, VARIABLES, inventory=request.inventory, limit=request.limit)
    verdicts = []
    for host, values in variables.items():
        expected = Expected.from_variables(values)
        verdicts.append(_judge_until(project, host, expected, checks, request))
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
        failed = "; ".join(f"{record.role} {record.task}: {record.error}" for record in failures)
        advice = "Run `harness provision`; the task's own words say what is missing." if failures else ""
        ok = not failures
        expected = "every role's own verification passes"
        verdict.checks.append(CheckResult(f"{ROLES_AREA}/verify", ok, expected, failed or "all passed", advice))


def judge(host: str, node: Node, checks: Sequence[NodeCheck]) -> NodeVerdict:
    """Run the checks that apply to this node."""
    boot_id = (node.machine.read("/proc/sys/kernel/random/boot_id") or "").strip()
    verdict = NodeVerdict(host, boot_id, datetime.now(UTC).isoformat(timespec="seconds"), [])
    for check in checks:
        if node.expected.kind not in check.kinds:
            verdict.not_applicable.append(NotApplicableCheck(check.name, f"this node is a {node.expected.kind}"))
            continue
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
        purpose = (check.function.__doc__ or "").splitlines()[0].rstrip(".")
        return _failed(check, node.machine, purpose, str(reason))
    if seen.ok:
        return CheckResult(check.name, ok=True, expected=seen.expected, found=seen.found)
    return _failed(check, node.machine, seen.expected, seen.found)


def _failed(check: NodeCheck, machine: Machine, expected: str, state: str) -> CheckResult:
    journal = machine.journal(check.unit, _JOURNAL_LINES) if check.unit else []
    return CheckResult(check.name, ok=False, expected=expected, found=state, advice=check.advice, journal=journal)


def _judge_until(
    project: Path, host: str, expected: Expected, checks: Sequence[NodeCheck], request: VerifyRequest
) -> NodeVerdict:
    """Judge afresh, over a connection of its own each time, until all is well or the time is over."""

    def once() -> NodeVerdict:
        with connect(project, host, request.inventory) as machine:
            return judge(host, Node(machine, expected), checks)

    return until_ok(once, wait_s=request.wait_s if checks else 0.0)


def until_ok(once: Callable[[], NodeVerdict], *, wait_s: float, retry_s: float = _RETRY_S) -> NodeVerdict:
    """The first verdict without a failure, or the last one in ``wait_s`` seconds.

    A machine that does not answer is asked again too; raises NodeUnreachableError where it is silent at the end.
    """
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
