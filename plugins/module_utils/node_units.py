# ruff: noqa: INP001 - Ansible loads this folder by its own rules, without a package
"""Units brought to their state: running with their present files, enabled, masked or off."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .journal import of_unit

FIELDS = "Id,LoadState,ActiveState,UnitFileState,NeedDaemonReload,ActiveEnterTimestampMonotonic,Type"
ALIVE = ("active", "activating", "reloading")
AT_BOOT = ("enabled", "static", "generated", "indirect")
MICROSECONDS = 1_000_000
SAYS_SO = {"notify", "notify-reload", "dbus"}


def changed_at(paths: list[str]) -> float:
    """When one of the paths last changed on this machine, in seconds since the epoch; 0.0 for none of them there.

    The change time counts, not the modification time: a package brings files older than itself.
    """
    latest = 0.0
    for path in map(Path, paths):
        places = [path, *path.iterdir()] if path.is_dir() else [path]
        for place in places:
            if place.exists():
                latest = max(latest, place.stat().st_ctime)
    return latest


def started_at(values: dict[str, str]) -> float:
    """When a unit became active, in seconds since the epoch."""
    since_boot_s = int(values.get("ActiveEnterTimestampMonotonic") or 0) / MICROSECONDS
    return time.time() - time.monotonic() + since_boot_s


class Units:
    """The wanted units against what systemd says of them.

    written: files that were written just now, or would have been in check mode.
    """

    def __init__(self, module: Any, written: Sequence[str] = ()) -> None:
        self.module = module
        self.written = written
        self.actions: list[str] = []
        self.begun: dict[str, str] = {}

    def show(self, name: str) -> dict[str, str]:
        """The properties of a unit."""
        command = ["systemctl", "show", "--property", FIELDS, "--", name]
        code, out, err = self.module.run_command(command)
        if code != 0:
            self.module.fail_json(
                msg=f"systemd does not answer about {name}: {err.strip()}. Is the machine booted with it?"
            )
        return dict(line.split("=", 1) for line in out.splitlines() if "=" in line)

    def do(self, verb: str, name: str = "") -> None:
        """One systemctl verb, noted; ends the module with the journal when it fails."""
        command = ["systemctl", verb, *filter(None, [name])]
        self.actions.append(" ".join(command[1:]))
        if self.module.check_mode:
            return
        code, out, err = self.module.run_command(command)
        if code != 0:
            self.fail(name, f"{' '.join(command)} failed: {(err or out).strip()}")

    def fail(self, name: str, what: str) -> None:
        """Ends the module with the unit's own words."""
        journal = of_unit(self.module, name, self.module.params["journal_lines"])
        self.module.fail_json(
            msg=f"{what}\nIts first errors and its last lines in systemd's journal:\n{journal}\n"
            f"Fix what it reports (systemctl status {name}) and run again.",
            actions=self.actions,
        )

    def apply(self, unit: dict[str, Any]) -> None:
        """Brings one unit to its state."""
        name, state = unit["name"], unit["state"]
        values = self.show(name)
        if values.get("LoadState") == "not-found" and state not in ("masked", "off"):
            self.absent(unit)
            return
        if state == "masked":
            if values.get("LoadState") != "masked":
                self.do("mask", name)
        elif state == "off":
            self.off(name, values)
        else:
            self.on(unit, values)

    def absent(self, unit: dict[str, Any]) -> None:
        """A unit that does not exist: no error where it is optional or will be there after a real run."""
        if unit["optional"]:
            return
        if self.module.check_mode:
            self.actions.append(f"{unit['state']} {unit['name']}")
        else:
            self.module.fail_json(msg=f"there is no unit {unit['name']}. Its package brings it: is it installed whole?")

    def off(self, name: str, values: dict[str, str]) -> None:
        """Stopped and not started at boot."""
        if values.get("ActiveState") in (*ALIVE, "failed"):
            self.do("stop" if values["ActiveState"] != "failed" else "reset-failed", name)
        if values.get("UnitFileState") == "enabled":
            self.do("disable", name)
        if values.get("LoadState") == "masked":
            self.do("unmask", name)

    def on(self, unit: dict[str, Any], values: dict[str, str]) -> None:
        """Reload, enable, start or restart, each only where needed."""
        name, state = unit["name"], unit["state"]
        reloaded = values.get("NeedDaemonReload") == "yes"
        if reloaded:
            self.do("daemon-reload")
        if values.get("UnitFileState") not in AT_BOOT:
            self.do("enable", name)
        active = values.get("ActiveState") in ALIVE
        old = active and (reloaded or self.foreseen(unit["paths"]) or changed_at(unit["paths"]) > started_at(values))
        if (state == "running" and not active) or (state in ("running", "current") and old):
            self.do("restart" if active else "start", name)
            # A timer or a path cannot end by itself.
            if not self.module.check_mode and name.endswith(".service") and values.get("Type") != "oneshot":
                self.begun[name] = values.get("Type", "")

    def foreseen(self, paths: list[str]) -> bool:
        """Whether check mode would have written one of the unit's files."""
        return self.module.check_mode and any(
            file == path or file.startswith(f"{path}/") for file in self.written for path in paths
        )

    def settle(self) -> None:
        """Ends the module unless every service that was started here stays up."""
        # One that says itself when it is up has said so.
        if not set(self.begun.values()) <= SAYS_SO:
            time.sleep(self.module.params["settle_s"])
        for name in self.begun:
            state = self.show(name).get("ActiveState")
            if state not in ("active", "reloading"):
                self.fail(name, f"{name} does not stay up (state {state})")
