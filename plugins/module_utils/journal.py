# ruff: noqa: INP001 - Ansible loads this folder by its own rules, without a package
"""What a journal says, without its repetitions."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

# The date, time and process of klog's lines (E1122 10:00:00.000000    1234 file.go:1] words).
_STAMP = re.compile(r"^([IWEF])\d{4} [\d:.]+ +\d+ ")
_NUMBER = re.compile(r"\d+")
# A daemon that writes its whole configuration in one line hides what stands below it.
_LONGEST, _END = 500, 120
LINES_READ = 5000
_ERROR = re.compile(r"^[EF]\d{4} |\b(error|fatal|failed|panic)\b", re.IGNORECASE)


def excerpt(journal: str, lines_max: int) -> str:
    """The first errors and the last lines, at most so many, a long one without its middle; lines that differ in numbers alone count as one."""
    first: dict[str, str] = {}
    last: dict[str, str] = {}
    times: Counter[str] = Counter()
    for line in filter(None, map(str.rstrip, journal.splitlines())):
        kind = _NUMBER.sub("#", _STAMP.sub(r"\1 ", line))
        times[kind] += 1
        first.setdefault(kind, line)
        last.pop(kind, None)
        last[kind] = line
    ending = list(last)[-lines_max:]
    errors = [kind for kind, line in first.items() if kind not in ending and _ERROR.search(line)][: lines_max // 4]
    shown = [*((kind, first[kind]) for kind in errors), *((kind, last[kind]) for kind in ending[len(errors) :])]
    return "\n".join(_cut(line) + (f"  ({times[kind]} times)" if times[kind] > 1 else "") for kind, line in shown)


def of_unit(module: Any, unit: str, lines_max: int) -> str:
    """The excerpt of a unit's journal of this boot, of all for an empty name; one that repeats itself pushes the cause out of any few last lines."""
    words = ["--unit", unit] if unit else []
    command = ["journalctl", *words, "--boot", "--no-pager", "--lines", str(LINES_READ), "--output", "cat"]
    return excerpt(str(module.run_command(command)[1]), lines_max)


def _cut(line: str) -> str:
    left_out = len(line) - _LONGEST
    return line if left_out <= 0 else f"{line[: _LONGEST - _END]} [{left_out} characters] {line[-_END:]}"
