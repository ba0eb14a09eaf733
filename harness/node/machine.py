"""A machine as the checks see it: files, units, packages and commands, all read-only.

``connect`` gives a real one, reached the way the playbooks reach it: locally or over one ssh connection, as root.
"""

from __future__ import annotations

import copy
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import NodeUnreachableError, UsageError
from harness.node.runner import path_with_ours

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
    """A path, links followed: its kind as ``stat`` names it, and the last change of content or attributes since the epoch."""

    kind: str
    mode: int
    owner: str
    changed_at_s: float


@dataclass(frozen=True, slots=True)
class UnitState:
    """A systemd unit in systemd's words; ``started_at_s``: start of its main process since the epoch, None where it has none."""

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


class Machine:
    """A machine as it is in one moment, asked through a testinfra host: files, units and packages, all by commands that only read."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._asked: dict[tuple[str, ...], CommandOutput] = {}

    def command(self, *arguments: str) -> CommandOutput:
        """Run it, once however often it is asked. Raises NodeUnreachableError when the machine does not answer."""
        if arguments not in self._asked:
            try:
                result = self._host.run(" ".join(["%s"] * len(arguments)), *arguments)
            except RuntimeError as error:  # what testinfra raises when ssh itself fails
                said = getattr(error.args[0], "stderr", str(error)).strip() if error.args else "nothing"
                raise NodeUnreachableError(
                    f"The node did not answer while it was judged: {said}",
                    advice="Check that it is up and that `ssh` to it works without a question.",
                ) from error
            self._asked[arguments] = CommandOutput(result.rc, result.stdout, result.stderr)
        return self._asked[arguments]

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


@contextmanager
def connect(project: Path, host: str, inventory: Path | None = None) -> Iterator[Machine]:
    """A machine of the inventory, as root, reached the way the playbooks reach it. Raises UsageError and NodeUnreachableError."""
    ours = {"ANSIBLE_CONFIG": str(project / "ansible.cfg"), "PATH": path_with_ours()}
    with _environment(ours), tempfile.TemporaryDirectory(prefix="harness-ssh-") as sockets:
        native = _native_host(host, inventory)
        _share_connection(native, sockets)
        if Machine(native).command("id", "-u").stdout.strip() != "0":
            native.backend.sudo = True
            if Machine(native).command("id", "-u").stdout.strip() != "0":
                raise UsageError(
                    f"Judging {host} needs root's rights, and sudo there does not give them without a password.",
                    advice="Log in as root, or allow this user sudo without a password.",
                )
        try:
            yield Machine(native)
        finally:
            for socket in Path(sockets).iterdir():
                end = ["ssh", "-O", "exit", "-o", f"ControlPath={socket}", "node"]
                subprocess.run(end, capture_output=True, check=False)


def _native_host(host: str, inventory: Path | None) -> Host:
    """The connection that testinfra makes to a host of Ansible's inventory."""
    from testinfra.host import Host
    from testinfra.utils.ansible_runner import AnsibleRunner

    shared = AnsibleRunner(str(inventory.resolve()) if inventory else None).get_host(host)
    if shared is None:
        raise UsageError(
            f"The inventory reaches {host} in a way that the checks cannot use.",
            advice="Use ansible_connection ssh or local.",
        )
    # testinfra keeps one connection per address for the life of the process: what is set on it would stay.
    backend = copy.copy(shared.backend)
    native = Host(backend)
    backend.set_host(native)
    return native


def _share_connection(native: Host, sockets: str) -> None:
    """One ssh connection for all commands: each of its own would take most of the time there is."""
    arguments = getattr(native.backend, "ssh_extra_args", None)
    if arguments is None:  # no ssh: the machine we are on
        return
    if not native.backend.host.password:
        arguments += " -o BatchMode=yes"  # a question nobody sees would be waited for
    if "controlpath" not in arguments.lower():
        arguments += f" -o ControlMaster=auto -o ControlPersist=60s -o ControlPath={sockets}/%C"
    native.backend.ssh_extra_args = arguments


@contextmanager
def _environment(wanted: Mapping[str, str]) -> Iterator[None]:
    """The environment with these variables while this is open."""
    before = {name: os.environ.pop(name, None) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name in wanted:
            os.environ.pop(name)
        os.environ.update({name: value for name, value in before.items() if value is not None})
