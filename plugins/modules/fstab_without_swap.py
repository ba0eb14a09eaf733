#!/usr/bin/python
"""Turns the swap entries of fstab off and removes entries that stand there twice; nothing else is touched."""

from __future__ import annotations

import stat
from pathlib import Path

from ..module_utils.documented import documented
from ..module_utils.node_files import write_file

DOCUMENTATION = r"""
{"module": "fstab_without_swap", "author": ["the project"], "short_description": "Turns swap off in fstab without harm to any other line",
 "description": [
  "Comments every swap entry out, with a mark that says who did it.",
  "Removes an entry that repeats an earlier one word for word (spacing aside), commented swap entries included.",
  "Comments, blank lines, spacing and order of everything else stay as they are, byte for byte."],
 "options": {
  "path": {"type": "path", "default": "/etc/fstab", "description": "The file."}}}
"""

MARK = "# swap is off on a Kubernetes node: "


def entry(line: str) -> tuple[str, ...] | None:
    """The fields of a mount entry; None for a comment, a blank line or anything that is no entry."""
    fields = tuple(line.split())
    return fields if len(fields) >= 3 and not line.lstrip().startswith("#") else None


def without_swap(text: str) -> tuple[str, list[str], list[str]]:
    """The new text, the swap entries turned off and the duplicate entries removed."""
    kept: list[str] = []
    disabled: list[str] = []
    duplicates: list[str] = []
    seen: set[tuple[str, ...]] = set()
    for line in text.splitlines(keepends=True):
        fields = entry(line.removeprefix(MARK))
        if fields in seen:
            duplicates.append(line.strip())
            continue
        seen |= {fields} if fields else set()
        swap = fields is not None and fields[2] == "swap" and not line.startswith(MARK)
        disabled += [line.strip()] if swap else []
        kept.append(MARK + line.lstrip() if swap else line)
    return "".join(kept), disabled, duplicates


def main() -> None:
    """Runs the module."""
    module = documented(DOCUMENTATION)
    path = Path(module.params["path"])
    before = path.read_text(encoding="utf-8", errors="surrogateescape") if path.exists() else ""
    after, disabled, duplicates = without_swap(before)
    if before != after and not module.check_mode:
        write_file(path, after.encode(errors="surrogateescape"), stat.S_IMODE(path.stat().st_mode))
    diff = {"before": before, "after": after, "before_header": str(path), "after_header": str(path)}
    module.exit_json(changed=before != after, disabled=disabled, duplicates=duplicates, diff=diff)


if __name__ == "__main__":
    main()
