"""The verdict on one node: every check with what was expected, what was found and what to do.

``to_dict`` gives the JSON object that the command prints:
``{ok, host, boot_id, checked_at, checks: [{name, ok, expected, found, advice, journal}], not_applicable: [{name, reason}]}``.
The same node gives the same checks before and after a reboot; only what is applicable is judged,
and what is not is named with its reason.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


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
class Verdict:
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
        """Plain data for JSON."""
        return {"ok": self.ok, **asdict(self)}
