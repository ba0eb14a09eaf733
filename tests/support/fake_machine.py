"""A machine on paper: the one fake behind ``machine.Machine``. Made well, then broken one thing at a time in tests."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.node.machine import CommandOutput, FileState, Machine, PackageState, UnitState

BOOT_ID_PATH = "/proc/sys/kernel/random/boot_id"
_NO_UNIT = UnitState("not-found", "inactive", "dead", "", "success", needs_reload=False, started_at_s=None)
_NOT_FOUND = 127


@dataclass
class FakeMachine(Machine):
    """Answers from dictionaries.

    Attributes:
        files: path -> text; ``states`` overrides the state of a path (default: regular file, 0644, root).
        commands: words of a command -> output; ``objects``: kind -> what kubectl lists.
    """

    files: dict[str, str] = field(default_factory=dict)
    states: dict[str, FileState] = field(default_factory=dict)
    units: dict[str, UnitState] = field(default_factory=dict)
    installed: dict[str, PackageState] = field(default_factory=dict)
    commands: dict[str, str] = field(default_factory=dict)
    objects: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    journals: dict[str, list[str]] = field(default_factory=dict)

    def read(self, path: str) -> str | None:
        """Text of a file; None where there is none."""
        return self.files.get(path)

    def listing(self, folder: str) -> list[str]:
        """Names directly in a folder."""
        below = {
            path.removeprefix(f"{folder}/") for path in [*self.files, *self.states] if path.startswith(f"{folder}/")
        }
        return sorted(name for name in below if "/" not in name)

    def stat(self, path: str) -> FileState | None:
        """State of a path; None where there is nothing."""
        if path in self.states:
            return self.states[path]
        return FileState("regular file", 0o644, "root", 0.0) if path in self.files else None

    def unit(self, name: str) -> UnitState:
        """State of a unit; ``not-found`` where there is none."""
        return self.units.get(name, _NO_UNIT)

    def packages(self) -> Mapping[str, PackageState]:
        """Every package."""
        return self.installed

    def command(self, *arguments: str) -> CommandOutput:
        """The output prepared for these words, or for those without options; exit code 127 where there is none."""
        words = [argument for argument in arguments if not argument.startswith("--")]
        prepared = self.commands.get(" ".join(arguments), self.commands.get(" ".join(words)))
        if prepared is not None:
            return CommandOutput(0, prepared, "")
        if words[:2] == ["kubectl", "get"] and words[2] in self.objects:
            return CommandOutput(0, json.dumps({"items": self.objects[words[2]]}), "")
        return CommandOutput(_NOT_FOUND, "", f"{words[0]}: nothing prepared for this")

    def journal(self, unit: str, lines: int = 20) -> list[str]:
        """Last lines of a unit's journal."""
        return self.journals.get(unit, [])[-lines:]
