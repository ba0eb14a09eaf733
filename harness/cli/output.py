"""The only module that prints: results to stdout, everything else to stderr."""

from __future__ import annotations

import codecs
import contextlib
import io
import itertools
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

from harness.errors import StorageError, printable

if TYPE_CHECKING:
    from rich.console import Console

    from harness.analysis.pages.table import Table
    from harness.errors import HarnessError

_json_mode = _verbose = False
_GAP, _HANGING = 2, 4
_LONG_WORD = 20
"""Characters of a word that a table may break."""
_GREEN, _YELLOW, _RED = 32, 33, 31
_COLOURS = {
    "VALID": _GREEN,
    "DEGRADED": _YELLOW,
    "INVALID": _RED,
    "MISSING": _RED,
    "no significant difference": _YELLOW,
    "inconclusive: repeat it": _RED,
    "agrees": _GREEN,
    "inconclusive": _YELLOW,
    "differs": _RED,
}
"""Of verdicts, as the terminal counts colours."""
_COMMAND = re.compile(r"(?<=: )(harness|kubectl|sudo) .*$")
"""A command at the end of a sentence, which has to stay in one piece for whoever copies it."""


def use_json(wanted: bool) -> None:
    """From here on stdout holds one JSON document, and errors are JSON on stderr; or people read both, as at the start."""
    global _json_mode  # noqa: PLW0603 - one process prints in one mode
    _json_mode = wanted


def use_verbose(wanted: bool) -> None:
    """From here on every step of a campaign is said, or each of its experiments alone, as at the start."""
    global _verbose  # noqa: PLW0603 - one process prints in one mode
    _verbose = wanted


def is_verbose() -> bool:
    """Whether steps are said, too."""
    return _verbose


def open_closed_streams() -> None:
    """Lead streams that were closed before the start nowhere: a file of ours would get their number, and what children print."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free: this one
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "r" if name == "stdin" else "w", closefd=False))


def take_every_sign() -> None:
    """Write what the terminal's encoding lacks as a question mark, and a file's name that is no text byte by byte."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        whole = codecs.lookup(sys.stdout.encoding).name == "utf-8"
        sys.stdout.reconfigure(errors="surrogateescape" if whole else "replace")


def is_json() -> bool:
    """Whether a machine reads the output."""
    return _json_mode


def result(text: str = "") -> None:
    """A line of the answer, on stdout."""
    _write(printable(text))


def _write(text: str) -> None:
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
    import json

    _write(json.dumps(data, indent=2, default=str, allow_nan=False))


def sentence(text: str = "") -> None:
    """A sentence of the answer, on stdout; in a terminal no word is cut at the edge."""
    result(_folded(text) if has_terminal() else text)


def sentences(texts: Iterable[str]) -> None:
    """Several of them."""
    for text in texts:
        sentence(text)


def entry(text: str, verdict: str = "") -> None:
    """A line of a list that is read like a table, on stdout: as wide as those are, and its verdict has a colour."""
    text = _folded(printable(text))
    _write(text.replace(verdict, _painted(verdict, verdict), 1) if verdict else text)


def note(text: str) -> None:
    """A line beside the answer, on stderr; in a terminal no word is cut at the edge."""
    stream = _Terminal(sys.stderr)
    text = printable(text)
    text = _folded(text) if stream.isatty() and not _json_mode else text
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
        import json

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


def has_terminal() -> bool:
    """Whether somebody sees the answer as it is written."""
    return sys.stdout.isatty()


def terminal_width() -> int:
    """Characters of a line, which are 80 where nothing says how many there are."""
    return shutil.get_terminal_size().columns


def _folded(text: str) -> str:
    """The same with line breaks between words where a line would be wider than the terminal."""
    lines = []
    for line in text.split("\n"):
        whole = _COMMAND.sub(lambda match: match[0].replace(" ", "\0"), line)
        indent = len(line) - len(line.lstrip())
        lines += _broken(whole, terminal_width(), " " * (indent and indent + _HANGING), whole_words=True)
    return "\n".join(lines).replace("\0", " ")


def _broken(text: str, width: int, indent: str = "", *, whole_words: bool = False) -> list[str]:
    return textwrap.wrap(
        text, width, subsequent_indent=indent, break_on_hyphens=False, break_long_words=not whole_words
    ) or [""]


def table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """An aligned table on stdout, verdicts in colour in a terminal; columns two spaces apart.

    A row of one cell is a heading across all columns. Where a line has no room for them all, the widest cells are folded;
    where that would break words, each row is a list of its cells.
    """
    lines = [list(headers), *([printable(str(cell)) for cell in row] for row in rows)]
    wide = _narrowed([line for line in lines if len(line) == len(headers)], terminal_width())
    if wide is None:
        _listed(lines)
        return
    for line in lines:
        if len(line) < len(wide):
            entry(line[0])
            continue
        folded = [_broken(cell, width) for cell, width in zip(line, wide, strict=True)]
        for pieces in itertools.zip_longest(*folded, fillvalue=""):
            padded = (
                _painted(cell, piece) + " " * (width - len(piece))
                for cell, piece, width in zip(line, pieces, wide, strict=True)
            )
            _write((" " * _GAP).join(padded).rstrip())


def show(shown: Table) -> None:
    """A table of results below its caption."""
    if shown.caption:
        sentence(shown.caption)
    table(shown.titles, shown.texts)


def _listed(lines: Sequence[Sequence[str]]) -> None:
    headers, *rows = lines
    first = max(map(len, headers)) + _GAP
    for row in rows:
        if len(row) < len(headers):
            entry(row[0])
            continue
        for header, cell in zip(headers, row, strict=True):
            pieces = _broken(cell, max(terminal_width() - first, _LONG_WORD))
            for label, piece in itertools.zip_longest([header], pieces, fillvalue=""):
                _write((label.ljust(first) + _painted(cell, piece)).rstrip())
        _write("")


def _narrowed(lines: Sequence[Sequence[str]], limit: int) -> list[int] | None:
    """Widths of the columns that have room in a line, the widest gives way first; None: there is none without breaking words."""
    wide = [max(1, width) for width in widths(lines)]
    least = [
        min(_LONG_WORD, max((len(word) for cell in column for word in cell.split()), default=1))
        for column in zip(*lines, strict=True)
    ]
    while sum(wide) > limit - _GAP * (len(wide) - 1):
        widest = max(range(len(wide)), key=lambda index: wide[index] if wide[index] > least[index] else 0)
        if wide[widest] <= least[widest]:
            return None
        wide[widest] -= 1
    return wide


def widths(lines: Sequence[Sequence[str]]) -> list[int]:
    """Characters of the widest cell of each column."""
    return [max(map(len, column)) for column in zip(*lines, strict=True)]


def _painted(text: str, piece: str) -> str:
    """A piece of a folded text in the colour of the whole, if that is a verdict and somebody sees it."""
    colour = _COLOURS.get(text) if piece else None
    if colour is None or not has_terminal() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return piece
    return f"\033[{colour}m{piece}\033[0m"
