#!/usr/bin/python
"""Takes chains and tables of some names out of the packet filter, and leaves every other rule as it is."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from typing import Any

from ..module_utils.documented import documented

DOCUMENTATION = r"""
{"module": "packet_filter_without", "author": ["the project"], "short_description": "Removes iptables chains and nftables tables by name, with the rules that lead to the chains",
 "description": [
  "Both versions of IP; one step for each, so that no packet meets half of it.",
  "A machine without iptables or without a packet filter has nothing to remove."],
 "options": {
  "chains": {"type": "list", "elements": "str", "default": [], "description": "Beginnings of the names of iptables chains."},
  "comments": {"type": "list", "elements": "str", "default": [], "description": "Beginnings of the comments of single rules in other chains."},
  "tables": {"type": "list", "elements": "str", "default": [], "description": "Names of nftables tables."}}}
"""

FAMILIES = (("iptables-save", "iptables-restore"), ("ip6tables-save", "ip6tables-restore"))
FOLDERS = "/usr/sbin:/sbin:/usr/bin:/bin"


def removal(saved: str, chains: Sequence[str], comments: Sequence[str]) -> tuple[str, list[str]]:
    """What `iptables-restore --noflush` has to read so that they are gone, and the chains; nothing where there are none."""
    steps: list[str] = []
    removed: list[str] = []
    for table in re.findall(r"^\*\S+$.*?^COMMIT$", saved, re.DOTALL | re.MULTILINE):
        lines = table.splitlines()
        own = [name for name in re.findall(r"^:(\S+) ", table, re.MULTILINE) if name.startswith(tuple(chains))]
        rules = [line for line in lines if line.startswith("-A ") and line.split()[1] not in own]
        leading = [line for line in rules if _leads_to(line, own) or _comment(line).startswith(tuple(comments))]
        if own or leading:
            steps += [lines[0], *(f":{name} - [0:0]" for name in own), *(f"-D{line[2:]}" for line in leading)]
            steps += [*(f"-X {name}" for name in own), "COMMIT"]
            removed += own
    return "".join(f"{step}\n" for step in steps), removed


def _leads_to(rule: str, chains: Sequence[str]) -> bool:
    target = re.search(r" -[jg] (\S+)", rule)
    return target is not None and target[1] in chains


def _comment(rule: str) -> str:
    found = re.search(r' --comment "?([^"\s]+)', rule)
    return found[1] if found else "\0"


def filter_rules(module: Any) -> list[str]:
    """Removes the chains of both versions of IP."""
    removed: list[str] = []
    for save, restore in FAMILIES:
        program = shutil.which(save, path=f"{os.environ.get('PATH', '')}:{FOLDERS}")
        if program is None:
            continue
        status, saved, _ = module.run_command([program])
        steps, chains = removal(saved, module.params["chains"], module.params["comments"]) if status == 0 else ("", [])
        removed += chains
        if steps and not module.check_mode:
            _do(module, [program.removesuffix(save) + restore, "--noflush"], steps)
    return removed


def filter_tables(module: Any) -> list[str]:
    """Removes the tables of nftables."""
    program = shutil.which("nft", path=f"{os.environ.get('PATH', '')}:{FOLDERS}")
    if program is None:
        return []
    _, listed, _ = module.run_command([program, "list", "tables"])
    found = [line.split()[1:3] for line in listed.splitlines() if line.startswith("table ")]
    own = [(family, name) for family, name in found if name in module.params["tables"]]
    for family, name in own:
        if not module.check_mode:
            _do(module, [program, "delete", "table", family, name])
    return [f"{family} {name}" for family, name in own]


def _do(module: Any, command: list[str], data: str | None = None) -> None:
    status, out, err = module.run_command(command, data=data)
    if status != 0:
        module.fail_json(
            msg=f"{' '.join(command)} failed: {(err or out).strip()}. Another program may have changed the packet filter at the same"
            " moment: run again; a reboot removes these rules, too."
        )


def main() -> None:
    """Runs the module."""
    module = documented(DOCUMENTATION)
    removed = [*filter_rules(module), *filter_tables(module)]
    module.exit_json(changed=bool(removed), removed=removed)


if __name__ == "__main__":
    main()
