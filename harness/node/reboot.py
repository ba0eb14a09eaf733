"""The reboot test: judged, rebooted, judged again, converged again with nothing left to change.

A machine cannot reboot itself and watch. For the machine we are on, the test has two halves:
``save_state`` before the reboot and ``compare_state`` after it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from harness.errors import NodeError, StorageError, UsageError
from harness.node.events import Listener, RunSummary
from harness.node.runner import NodeRunner, RunRequest, resolve
from harness.node.verify import NodeVerdict, VerifyRequest, verify

SITE = Path("site.yml")
REBOOT = Path("playbooks/reboot.yml")
_SHOWN_CHANGES = 10


@dataclass(frozen=True, slots=True)
class BootState:
    """What has to be the same after a reboot, and the boot id, which has not."""

    host: str
    boot_id: str
    checks: tuple[str, ...]

    @classmethod
    def of(cls, verdict: NodeVerdict) -> BootState:
        """The state that a verdict describes."""
        return cls(verdict.host, verdict.boot_id, tuple(check.name for check in verdict.checks))


@dataclass(frozen=True, slots=True)
class RebootReport:
    """What the reboot test found.

    Attributes:
        reboot_s: seconds of the reboot itself, until the machine answered; None when somebody else rebooted it.
        recovery_s: seconds from then until nothing failed any more (or the waiting was over).
    """

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
        return {
            "ok": self.ok,
            "problems": self.problems,
            "reboot_s": self.reboot_s,
            "recovery_s": self.recovery_s,
            "before": [asdict(state) for state in self.before],
            "after": [verdict.to_dict() for verdict in self.after],
            "converge": self.converge.to_dict(),
        }


@dataclass(slots=True)
class RebootTest:
    """The test, step by step."""

    project: Path
    request: VerifyRequest
    listener: Listener
    step: Callable[[str], None]
    become_password: str | None = None

    def run(self) -> RebootReport:
        """All of it, for nodes that are not the machine we are on.

        Raises UsageError for a node reached by connection local, NodeError where a node is unwell before or does not
        come back.
        """
        self._refuse_local()
        before = self._state()
        self.step("rebooting")
        started_s = time.monotonic()
        self._play(REBOOT).require_ok()
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
            saved = json.loads(path.read_text(encoding="utf-8"))
            before = [BootState(state["host"], state["boot_id"], tuple(state["checks"])) for state in saved]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UsageError(
                f"{path} is no state saved before a reboot: {error}", advice="Begin with --before."
            ) from error
        return self._after(before, reboot_s=None)

    def _refuse_local(self) -> None:
        names = ("ansible_connection",)
        hosts = resolve(self.project, names, inventory=self.request.inventory, limit=self.request.limit)
        local = [host for host, values in hosts.items() if values["ansible_connection"] == "local"]
        if local:
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
                    advice="Run `harness provision`, then `harness verify-node`, until nothing fails.",
                )
        return [BootState.of(verdict) for verdict in verdicts]

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
