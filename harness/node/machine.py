"""A machine as the checks see it: files, units, packages and commands, all read-only.

``Machine`` is the seam: ``TestinfraMachine`` looks at a real one, locally or over ssh;
``fake.FakeMachine`` is the one shipped fake.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from harness.node.errors import NodeUnreachableError

if TYPE_CHECKING:
    from testinfra.host import Host

_UNIT_PROPERTIES = "LoadState,ActiveState,SubState,UnitFileState,Result,NeedDaemonReload,ExecMainStartTimestamp"
_STAT_FORMAT = "%F|%a|%U|%Y|%Z"


@dataclass(frozen=True, slots=True)
class CommandOutput:
    """What a command said."""

    exit_code: int
    stdout: str
    stderr: str


@dataclass(frozen=True, slots=True)
class FileState:
    """A path, links followed.

    Attributes:
        kind: as ``stat`` names it: regular file, directory, socket...
        mode: octal permission bits, e.g. 0o600.
        changed_at_s: last change of content or attributes, seconds since the epoch.
    """

    kind: str
    mode: int
    owner: str
    changed_at_s: float


@dataclass(frozen=True, slots=True)
class UnitState:
    """A systemd unit.

    Attributes:
        load: loaded, masked, not-found...
        active: active, inactive, failed, activating...
        enabled: enabled, disabled, masked, static, or empty where there is no such unit.
        started_at_s: start of its main process, seconds since the epoch; None where it has none.
    """

    load: str
    active: str
    sub: str
    enabled: str
    result: str
    needs_reload: bool
    started_at_s: float | None


@dataclass(frozen=True, slots=True)
class PackageState:
    """A Debian package: its version, whether it is wholly installed, and whether it is held."""

    version: str
    installed: bool
    held: bool


class Machine(Protocol):
    """What a check may ask a machine."""

    def read(self, path: str) -> str | None:
        """Text of a file; None where it cannot be read."""
        ...

    def listing(self, folder: str) -> list[str]:
        """Sorted names in a folder; empty where there is none."""
        ...

    def stat(self, path: str) -> FileState | None:
        """State of a path; None where there is nothing."""
        ...

    def unit(self, name: str) -> UnitState:
        """State of a systemd unit; load is ``not-found`` where there is none."""
        ...

    def packages(self) -> Mapping[str, PackageState]:
        """Every Debian package the machine knows of."""
        ...

    def command(self, *arguments: str) -> CommandOutput:
        """Run a command that only reads."""
        ...

    def journal(self, unit: str, lines: int = 20) -> list[str]:
        """Last lines of a unit's journal in this boot."""
        ...


class TestinfraMachine:
    """A real machine, through a testinfra host, as it is in one moment: every question is asked once."""

    __test__ = False  # its name is no test's

    def __init__(self, host: Host) -> None:
        self._host = host
        self._asked: dict[tuple[str, ...], CommandOutput] = {}

    def read(self, path: str) -> str | None:
        """Text of a file; None where it cannot be read."""
        output = self.command("cat", path)
        return output.stdout if output.exit_code == 0 else None

    def listing(self, folder: str) -> list[str]:
        """Sorted names in a folder; empty where there is none."""
        output = self.command("ls", "-A1", folder)
        return sorted(output.stdout.splitlines()) if output.exit_code == 0 else []

    def stat(self, path: str) -> FileState | None:
        """State of a path; None where there is nothing."""
        output = self.command("stat", "--dereference", "--format", _STAT_FORMAT, path)
        if output.exit_code != 0:
            return None
        kind, mode, owner, modified, changed = output.stdout.strip().split("|")
        return FileState(kind, int(mode, 8), owner, max(float(modified), float(changed)))

    def unit(self, name: str) -> UnitState:
        """State of a systemd unit; load is ``not-found`` where there is none."""
        output = self.command("systemctl", "show", name, f"--property={_UNIT_PROPERTIES}", "--timestamp=unix")
        return unit_state(output.stdout)

    def packages(self) -> Mapping[str, PackageState]:
        """Every Debian package the machine knows of."""
        output = self.command("dpkg-query", "--show", "--showformat", r"${Package}|${Version}|${Status}\n")
        return package_states(output.stdout)

    def command(self, *arguments: str) -> CommandOutput:
        """Run a command that only reads. Raises NodeUnreachableError when the machine does not answer."""
        if arguments not in self._asked:
            self._asked[arguments] = self._ask(arguments)
        return self._asked[arguments]

    def _ask(self, arguments: tuple[str, ...]) -> CommandOutput:
        try:
            result = self._host.run(" ".join(["%s"] * len(arguments)), *arguments)
        except RuntimeError as error:  # what testinfra raises when ssh itself fails
            said = getattr(error.args[0], "stderr", str(error)).strip() if error.args else "nothing"
            raise NodeUnreachableError(
                f"The node did not answer while it was judged: {said}",
                advice="Check that it is up and that `ssh` to it works without a question.",
            ) from error
        return CommandOutput(result.rc, result.stdout, result.stderr)

    def journal(self, unit: str, lines: int = 20) -> list[str]:
        """Last lines of a unit's journal in this boot."""
        arguments = ("--unit", unit, "--boot", "--no-pager", "--output=short-iso", "--lines", str(lines))
        return self.command("journalctl", *arguments).stdout.splitlines()


def unit_state(text: str) -> UnitState:
    """Parse what ``systemctl show`` says."""
    values = dict(line.partition("=")[::2] for line in text.splitlines() if "=" in line)
    started = values.get("ExecMainStartTimestamp", "").removeprefix("@")
    return UnitState(
        load=values.get("LoadState", "not-found"),
        active=values.get("ActiveState", "unknown"),
        sub=values.get("SubState", ""),
        enabled=values.get("UnitFileState", ""),
        result=values.get("Result", ""),
        needs_reload=values.get("NeedDaemonReload") == "yes",
        started_at_s=float(started) if started.replace(".", "", 1).isdigit() else None,
    )


def package_states(text: str) -> dict[str, PackageState]:
    """Parse ``name|version|want error status`` lines of dpkg."""
    states = {}
    for line in text.splitlines():
        name, version, status = line.split("|")
        want, _, current = status.split()
        states[name] = PackageState(version, current == "installed", want == "hold")
    return states
