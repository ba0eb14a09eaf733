"""``docs/commands.md``, from the commands themselves and the table of exit codes."""

from __future__ import annotations

import inspect

from harness.cli import MOVED, REMOVED, listed
from harness.errors import EXIT_CODES

_HEAD = """# Commands and exit codes

<!-- Written by `python -m scripts.pages` from harness/cli and harness/errors.py. -->

`harness COMMAND --help` lists a command's options. Commands that moved keep their old names for one release.

| command | since 1.0 | what it does |
|---|---|---|
"""
_EXIT_CODES = """
## Exit codes

With `--fail-on`, the lowest code that applies is the exit code. With `--json`, an error is one JSON object on stderr.

| code | meaning |
|---|---|
"""


def page() -> str:
    """The whole page."""
    before = {now: old for old, now in MOVED.items()}
    rows = [
        f"| `{name}` | {f'moved: was `{before[name]}`' if name in before else 'kept'} | {_short(info.callback)} |\n"
        for name, info in listed().items()
    ]
    rows += [f"| `{name}` | gone | {advice} |\n" for name, advice in REMOVED.items() if " " not in name]
    codes = [f"| {code} | {meaning} |\n" for code, meaning in EXIT_CODES.items()]
    return "".join([_HEAD, *rows, _EXIT_CODES, *codes])


def _short(function: object) -> str:
    return " ".join((inspect.getdoc(function) or "").partition("\n\n")[0].split())
