"""The only module that prints: results to stdout, everything else to stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from harness.errors import HarnessError

_json_mode = False


def use_json() -> None:
    """From here on stdout carries one JSON document, and errors are JSON on stderr."""
    global _json_mode  # noqa: PLW0603 - one process prints in one mode
    _json_mode = True


def is_json() -> bool:
    """Whether a machine reads the output."""
    return _json_mode


def result(text: str = "") -> None:
    """A line of the answer, on stdout."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def document(data: Any) -> None:
    """The whole answer as JSON, on stdout."""
    result(json.dumps(data, indent=2, default=str, allow_nan=False))


def note(text: str) -> None:
    """A line beside the answer, on stderr."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def error(failure: HarnessError) -> None:
    """What failed and what to do next, on stderr."""
    if _json_mode:
        body = {"error": type(failure).__name__, "message": failure.message, "advice": failure.advice}
        note(json.dumps({**body, "exit_code": failure.exit_code}))
        return
    note(f"error: {failure.message}")
    if failure.advice:
        note(f"  do: {failure.advice}")


def stderr_console() -> Console:
    """A rich console on stderr, for progress; plain where there is no terminal."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """An aligned table on stdout, the same in a terminal and in a file; columns two spaces apart."""
    lines = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(line[i]) for line in [list(headers), *lines]) for i in range(len(headers))]
    for line in [list(headers), *lines]:
        result("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
