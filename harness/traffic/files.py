"""The text of a data file, record by record with its line: JSON lines, a JSON array or CSV, gzipped or not.

Lines end at a newline alone: texts may hold U+2028 and other characters that Python takes for line ends.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import json
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import BufferedReader, RawIOBase
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from harness.errors import LoadError

GZIP = b"\x1f\x8b"
_BOM = b"\xef\xbb\xbf"
_HEAD_BYTES = 4096
_CHUNK_BYTES = 1 << 20
_KINDS = {
    b"\xff\xfe": "UTF-16 text",
    b"\xfe\xff": "UTF-16 text",
    b"PAR1": "Parquet",
    b"ARROW1": "Arrow",
    b"ORC": "ORC",
    b"\xff\xff\xff\xff": "an Arrow stream",
    b"\x89HDF": "HDF5",
    b"SQLite": "SQLite",
    b"PK\x03\x04": "a zip archive",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\xfd7zXZ": "xz",
    b"BZh": "bzip2",
    b"\x80\x04": "a Python pickle",
    b"\x80\x05": "a Python pickle",
}
READ = "JSON lines, a JSON array or CSV, each plain or as .gz"


class CsvCell(str):
    """A cell of a CSV file, which says nothing of types: it may be a number."""

    __slots__ = ()


class Record(NamedTuple):
    """One record of a file; ``fault`` says why it has no value."""

    line: int
    value: Any
    fault: str = ""


def records(path: Path) -> Iterator[Record]:
    """The records of a file. ``line`` counts lines, in a JSON array its entries. Raises LoadError where it holds none."""
    with _opened(path) as file:
        head = file.peek(_HEAD_BYTES)[:_HEAD_BYTES]
        if head.startswith(_BOM):
            file.read(len(_BOM))
            head = head[len(_BOM) :]
        _refuse_other_kinds(path, head)
        begin = head.lstrip()[:1]
        if begin == b"[":
            yield from _of_array(file)
        elif _is_csv(head.lstrip()):
            yield from _of_csv(file)
        else:
            yield from _of_lines(file)


@contextmanager
def _opened(path: Path) -> Iterator[BufferedReader[Any]]:
    try:
        with path.open("rb") as plain:
            if plain.peek(2)[:2] == GZIP:
                with gzip.open(plain) as packed, BufferedReader(cast("RawIOBase", packed), _CHUNK_BYTES) as unpacked:
                    yield unpacked
            else:
                yield plain
    except (OSError, EOFError, zlib.error) as error:
        raise LoadError(f"{path} cannot be read: {error}.") from error


def _refuse_other_kinds(path: Path, head: bytes) -> None:
    if not head.strip():
        raise LoadError(f"{path} is empty: it holds no request.")
    kind = next((kind for begin, kind in _KINDS.items() if head.startswith(begin)), None)
    if kind is None and b"\0" in head:
        kind = "a binary file"
    if kind is not None:
        raise LoadError(f"{path} is {kind} (it begins with {head[:8]!r}); convert it to {READ}.")


def _is_csv(head: bytes) -> bool:
    """Whether the first line names columns."""
    return head[:1] != b"{" and b"," in head.split(b"\n", 1)[0]


def _of_lines(file: Iterable[bytes]) -> Iterator[Record]:
    for number, line in enumerate(file, start=1):
        if line.strip():
            yield _parsed(number, line)


def _parsed(number: int, line: bytes) -> Record:
    try:
        return Record(number, json.loads(line.decode()))
    except UnicodeDecodeError:
        return Record(number, None, "it is not UTF-8")
    except (ValueError, RecursionError) as error:
        return Record(number, None, f"it is not JSON ({error})")


def _of_array(file: IO[bytes]) -> Iterator[Record]:
    """Entry by entry, so that no more than one of them and a chunk of the text is in memory."""
    decoder = json.JSONDecoder()
    text, number = _Text(file), 1
    text.skip("[")
    while not text.begins("]"):
        try:
            yield Record(number, text.take(decoder))
        except ValueError as error:
            yield Record(number, None, f"it is not JSON, and what follows is not read ({error})")
            return
        number += 1
        if text.begins(","):
            text.skip(",")
        elif not text.begins("]"):
            yield Record(number, None, "the array ends before its `]`, or a comma is missing")
            return


class _Text:
    """A text of which the beginning is taken away, and the rest read when it is needed."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._decoder = file, codecs.getincrementaldecoder("utf-8")("replace")
        self._text, self._at = "", 0

    def begins(self, mark: str) -> bool:
        """Whether that is next, after white space."""
        while True:
            while self._at < len(self._text) and self._text[self._at].isspace():
                self._at += 1
            if self._at < len(self._text):
                return self._text.startswith(mark, self._at)
            if not self._read_on():
                return False

    def skip(self, mark: str) -> None:
        """Go beyond it."""
        if self.begins(mark):
            self._at += len(mark)

    def take(self, decoder: json.JSONDecoder) -> Any:
        """The value that is next. Raises ValueError."""
        self.begins("")
        while True:
            try:
                value, end = decoder.raw_decode(self._text, self._at)
            except ValueError:
                if not self._read_on():
                    raise
            else:
                if end < len(self._text) or not self._read_on():  # a number may go on
                    self._at = end
                    return value

    def _read_on(self) -> bool:
        data = self._file.read(max(_CHUNK_BYTES, len(self._text)))
        self._text, self._at = self._text[self._at :] + self._decoder.decode(data, final=not data), 0
        return bool(data)


def _of_csv(file: IO[bytes]) -> Iterator[Record]:
    """Each row as an object of texts, without the cells that are empty."""
    rows = csv.DictReader((line.decode("utf-8", errors="replace") for line in file), skipinitialspace=True)
    while True:
        try:
            row = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            yield Record(rows.line_num, None, f"it is not CSV ({error})")
        else:
            short = any(value is None for value in row.values()) or None in row
            cells = {name: CsvCell(value) for name, value in row.items() if value}
            fault = "it has more or fewer cells than the first line has names" if short else ""
            yield Record(rows.line_num, None if short else cells, fault)
