#!/usr/bin/python3
"""A systemd service that runs, is enabled, and started after its binary and its configuration last changed."""

from __future__ import annotations

import time
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: unit_current
short_description: A service that runs with its present binary and configuration
description:
  - Compares the moment the service started with the moment its files last changed, and restarts it when it is older.
  - A handler is lost when a run is killed between the change and the restart; this looks at the machine instead,
    so the next run finishes what the killed one began.
  - Reloads systemd only where it says that it needs to.
options:
  name: {description: The unit., type: str, required: true}
  paths: {description: Files and folders it reads at its start; a folder counts with everything directly in it.,
          type: list, elements: str, default: []}
  enabled: {description: Start it at boot., type: bool, default: true}
  masked: {description: Keep it from ever starting; everything else about it is then left alone., type: bool,
           default: false}
  running: {description: Have it running now; C(if_running) restarts it only where it runs already., type: str,
            choices: [always, if_running, never], default: always}
  settle_s: {description: Seconds it has to stay up after a start., type: float, default: 2.0}
  journal_lines: {description: Lines of its journal shown when it does not come up., type: int, default: 30}
author: [the project]
"""

EXAMPLES = r"""
- name: Run CRI-O as configured
  unit_current:
    name: crio.service
    paths: [/usr/bin/crio, /etc/crio/crio.conf.d]
"""

RETURN = r"""
actions: {description: What was done., type: list, elements: str, returned: always}
"""

FIELDS = ("LoadState", "ActiveState", "UnitFileState", "NeedDaemonReload", "ActiveEnterTimestampMonotonic", "Type")
MICROSECONDS = 1_000_000


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


class Unit:
    """One unit as systemd sees it."""

    def __init__(self, module: AnsibleModule) -> None:
        self.module = module
        self.name = str(module.params["name"])
        self.actions: list[str] = []

    def show(self) -> dict[str, str]:
        """The unit's properties."""
        command = ["systemctl", "show", "--property", ",".join(FIELDS), "--", self.name]
        code, out, err = self.module.run_command(command)
        if code != 0:
            self.module.fail_json(msg=f"systemd does not answer about {self.name}: {err.strip()}")
        return dict(line.split("=", 1) for line in out.splitlines() if "=" in line)

    def started_at(self, values: dict[str, str]) -> float:
        """When it became active, in seconds since the epoch."""
        since_boot_s = int(values.get("ActiveEnterTimestampMonotonic") or 0) / MICROSECONDS
        return time.time() - time.monotonic() + since_boot_s

    def do(self, *verb: str) -> None:
        """One systemctl verb, noted; ends the module with the journal when it fails."""
        self.actions.append(verb[0])
        if self.module.check_mode:
            return
        code, out, err = self.module.run_command(["systemctl", *verb])
        if code != 0:
            self.fail(f"systemctl {' '.join(verb)} failed: {(err or out).strip()}")

    def fail(self, what: str) -> None:
        """Ends the module with the unit's own words."""
        lines = str(self.module.params["journal_lines"])
        _, journal, _ = self.module.run_command(
            ["journalctl", "--unit", self.name, "--no-pager", "--lines", lines, "--output", "cat"]
        )
        self.module.fail_json(
            msg=f"{what}\nIts journal ends with:\n{journal.strip()}\n"
            f"Mend what it complains of (systemctl status {self.name}) and run again.",
            actions=self.actions,
        )

    def settle(self) -> None:
        """Ends the module unless the unit stays up."""
        time.sleep(self.module.params["settle_s"])
        state = self.show()
        if state.get("ActiveState") not in ("active", "reloading"):
            self.fail(f"{self.name} does not stay up (state {state.get('ActiveState')})")

    def apply(self) -> None:
        """Reload, enable, start or restart, each only where needed."""
        values = self.show()
        if self.module.params["masked"]:
            if values.get("LoadState") != "masked":
                self.do("mask", self.name)
            return
        wanted = self.module.params["running"]
        if values.get("LoadState") == "not-found" and not self.module.check_mode:
            self.module.fail_json(msg=f"there is no unit {self.name}. Its package brings it: is it installed whole?")
        reloaded = values.get("NeedDaemonReload") == "yes"
        if reloaded:
            self.do("daemon-reload")
        if self.module.params["enabled"] and values.get("UnitFileState") not in ("enabled", "static"):
            self.do("enable", self.name)
        active = values.get("ActiveState") in ("active", "activating", "reloading")
        old = active and (reloaded or changed_at(self.module.params["paths"]) > self.started_at(values))
        if (not active and wanted == "always") or (old and wanted != "never"):
            self.do("restart" if active else "start", self.name)
            if not self.module.check_mode and values.get("Type") != "oneshot":
                self.settle()


def main() -> None:
    """Runs the module."""
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "paths": {"type": "list", "elements": "str", "default": []},
            "enabled": {"type": "bool", "default": True},
            "masked": {"type": "bool", "default": False},
            "running": {"type": "str", "choices": ["always", "if_running", "never"], "default": "always"},
            "settle_s": {"type": "float", "default": 2.0},
            "journal_lines": {"type": "int", "default": 30},
        },
        supports_check_mode=True,
    )
    module.run_command_environ_update = {"LC_ALL": "C", "LANG": "C"}
    unit = Unit(module)
    unit.apply()
    module.exit_json(changed=bool(unit.actions), actions=unit.actions)


if __name__ == "__main__":
    main()
