#!/usr/bin/python
"""Turns the swap entries of fstab off and removes entries that stand there twice; nothing else is touched."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from ..module_utils.documented import documented

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
TYPE_FIELD = 2
MIN_FIELDS = 3


def entry(line: str) -> tuple[str, ...] | None:
    """The fields of a mount entry; None for a comment, a blank line or anything that is no entry."""
    fields = tuple(line.split())
    return fields if len(fields) >= MIN_FIELDS and not line.lstrip().startswith("#") else None


def without_swap(text: str) -> tuple[str, list[str], list[str]]:
    """The new text, the swap entries turned off and the duplicate entries removed."""
    kept: list[str] = []
    disabled: list[str] = []
    duplicates: list[str] = []
    seen: set[tuple[str, ...]] = set()
    for line in text.splitlines(keepends=True):
        ours = line.startswith(MARK)
        fields = entry(line.removeprefix(MARK)) if ours else entry(line)
        if fields is None:
            kept.append(line)
            continue
        swap = fields[TYPE_FIELD] == "swap"
        if fields in seen:
            duplicates.append(line.strip())
            continue
        seen.add(fields)
        if swap and not ours:
            disabled.append(line.strip())
            kept.append(MARK + line.lstrip())
        else:
            kept.append(line)
    return "".join(kept), disabled, duplicates


def write(module: Any, path: Path, text: str) -> None:
    """Replaces the file in one step, with its owner and mode kept."""
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=module.tmpdir, delete=False) as new:
        new.write(text)
    module.atomic_move(new.name, str(path))


def main() -> None:
    """Runs the module."""
    module = documented(DOCUMENTATION)
    path = Path(module.params["path"])
    if not path.exists():
        module.exit_json(changed=False, disabled=[], duplicates=[])
    before = path.read_text(encoding="utf-8", errors="surrogateescape")
    after, disabled, duplicates = without_swap(before)
    changed = before != after
    if changed and not module.check_mode:
        write(module, path, after)
    diff = {"before": before, "after": after, "before_header": str(path), "after_header": str(path)}
    module.exit_json(changed=changed, disabled=disabled, duplicates=duplicates, diff=diff)


if __name__ == "__main__":
    main()
