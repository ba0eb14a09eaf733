"""The only module that prints: results to stdout, everything else to stderr."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

from harness.errors import StorageError

if TYPE_CHECKING:
    from rich.console import Console

    from harness.errors import HarnessError

_json_mode = False
_COLOURS = {"VALID": 32, "DEGRADED": 33, "INVALID": 31, "MISSING": 31}
"""Of verdicts, as the terminal counts them: green, yellow, red."""


def use_json() -> None:
    """From here on stdout holds one JSON document, and errors are JSON on stderr."""
    global _json_mode  # noqa: PLW0603 - one process prints in one mode
    _json_mode = True


def is_json() -> bool:
    """Whether a machine reads the output."""
    return _json_mode


def result(text: str = "") -> None:
    """A line of the answer, on stdout."""
    try:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
    except OSError as error:
        _stop_writing(sys.stdout)
        if isinstance(error, BrokenPipeError):
            raise
        raise StorageError(
            f"The answer cannot be written to stdout: {error.strerror}.",
            advice="Free some space, or write it elsewhere.",
        ) from error


def document(data: Any) -> None:
    """The whole answer as JSON, on stdout."""
    result(json.dumps(data, indent=2, default=str, allow_nan=False))


def note(text: str) -> None:
    """A line beside the answer, on stderr."""
    stream = _Terminal(sys.stderr)
    stream.write(f"{text}\n")
    stream.flush()


class _Terminal:
    """stderr, whose end is no error: what is under way goes on or ends in good order though its terminal is closed."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError:
            _stop_writing(self._stream)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError:
            _stop_writing(self._stream)


def _stop_writing(stream: TextIO) -> None:
    """Let go of what could not be written, which Python would try again at its end."""
    with contextlib.suppress(OSError, ValueError), Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())


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

    return Console(file=cast("TextIO", _Terminal(sys.stderr)), highlight=False)


def table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """An aligned table on stdout, verdicts in colour in a terminal; columns two spaces apart."""
    lines = [list(headers), *([str(cell) for cell in row] for row in rows)]
    wide = widths(lines)
    for line in lines:
        padded = (_painted(cell) + " " * (width - len(cell)) for cell, width in zip(line, wide, strict=True))
        result("  ".join(padded).rstrip())


def widths(lines: Sequence[Sequence[str]]) -> list[int]:
    """Characters of the widest cell of each column."""
    return [max(map(len, column)) for column in zip(*lines, strict=True)]


def _painted(cell: str) -> str:
    colour = _COLOURS.get(cell)
    if colour is None or not sys.stdout.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return cell
    return f"\033[{colour}m{cell}\033[0m"
