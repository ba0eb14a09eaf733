"""A log of times as a published set may hold it (``.times``): rounded to a resolution that is said, in a form that xz packs well.

Blocks of at most ``BLOCK_ROWS`` rows. A block is one line of JSON, ``{"rows", "unit_ns", "begin", "after", "columns"}``, and
then the values of each of ``columns``: ``[name, planes, middle]``, where plane k holds byte k of every row. Values are counts of
``unit_ns`` where the name ends in ``_ns``, less ``middle`` (absent in older files: 0), their median where most of them fit into one byte around it, zigzagged (0, -1, 1, -2... are 0, 1, 2, 3...). A negative duration says that there is
none, and stays as it is. The first column says when a row begins; its values are steps from ``begin``, each after the sum of the
columns ``after`` in the row before: of a closed loop those are the small waits between an answer and the next request.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.errors import ResultsPathError
from harness.results.files import storage_errors

SUFFIX = ".times"
BLOCK_ROWS = 1 << 20
_BYTES = 8
_HALF_BYTE = 128
_HEADER_BYTES = 1 << 16

Integers = npt.NDArray[np.int64]


def write(path: Path, names: Sequence[str], tables: Iterator[Integers], unit_ns: int) -> None:
    """Write the rows of ``tables`` (int64 of shape [rows, columns]) as the new file ``path``. Raises StorageError.

    Instants are rounded to the nearest ``unit_ns``, durations are those between rounded instants: they are off by less than
    one ``unit_ns``. The first column is the instant at which a row begins; the other names that end in ``_ns`` are durations.
    """
    blocks = (table[start : start + BLOCK_ROWS] for table in tables for start in range(0, len(table), BLOCK_ROWS))
    first = next(blocks, np.empty((0, len(names)), np.int64))  # an empty log has its columns, too
    with storage_errors(path), path.open("xb") as stream:
        for block in itertools.chain([first], blocks):
            stream.write(_block(names, _rounded(names, block, unit_ns), unit_ns))


def read(path: Path) -> tuple[list[str], Integers]:
    """The columns' names and all rows, in nanoseconds.

    Raises:
        ResultsPathError: the file is not whole, or something else.
        StorageError: it cannot be read.
    """
    names: list[str] = []
    tables = []
    with storage_errors(path, "read"), path.open("rb") as stream:
        try:
            while header := stream.readline(_HEADER_BYTES):
                said = json.loads(header)
                if not 0 <= said["rows"] <= BLOCK_ROWS:
                    raise ValueError(f"a block of {said['rows']} rows")  # noqa: TRY301 - one way out for what is no log
                names = [name for name, *_ in said["columns"]]
                rows = int(said["rows"])
                planes = [
                    np.frombuffer(stream.read(rows * int(count)), np.uint8).reshape(int(count), rows)
                    for _, count, *_ in said["columns"]
                ]
                tables.append(_table(said, names, planes))
            return names, np.concatenate([np.empty((0, len(names)), np.int64), *tables])
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise ResultsPathError(
                f"{path} is no log of times of this harness: {error}", advice="Fetch the published set again."
            ) from error


def _is_time(name: str) -> bool:
    return name.endswith("_ns")


def _rounded(names: Sequence[str], table: Integers, unit_ns: int) -> Integers:
    """The rows in counts of ``unit_ns``."""
    half = unit_ns // 2
    counts = table.copy()
    begin = table[:, 0]
    counts[:, 0] = (begin + half) // unit_ns
    for index, name in enumerate(names[1:], start=1):
        if _is_time(name):
            ends = (begin + table[:, index] + half) // unit_ns
            counts[:, index] = np.where(table[:, index] < 0, table[:, index], ends - counts[:, 0])
    return counts


def _block(names: Sequence[str], counts: Integers, unit_ns: int) -> bytes:
    first = counts[:, 0]
    candidates = [names[:1], names[:2]]
    steps = [np.diff(first) - counts[:-1, 1 : len(after)].sum(axis=1) for after in candidates]
    best = min(range(len(steps)), key=lambda index: (np.median(np.abs(steps[index])) if len(first) > 1 else 0, index))
    columns = [np.concatenate([[0], steps[best]])[: len(first)], *counts.T[1:]]
    middles = [_middle(column) for column in columns]
    planes = [_planes(column - middle) for column, middle in zip(columns, middles, strict=True)]
    header = {
        "rows": len(counts),
        "unit_ns": unit_ns,
        "begin": int(first[0]) if len(first) else 0,
        "after": candidates[best],
        "columns": [[name, len(one), middle] for name, one, middle in zip(names, planes, middles, strict=True)],
    }
    return b"".join([json.dumps(header).encode(), b"\n", *(one.tobytes() for one in planes)])


def _middle(column: Integers) -> int:
    """The median where at least half of the values fit into one byte around it, else 0: xz finds more in repetitions that stay as they are."""
    if not len(column):
        return 0
    median = int(np.partition(column, len(column) // 2)[len(column) // 2])
    near = np.count_nonzero((column - median >= -_HALF_BYTE) & (column - median < _HALF_BYTE))
    return median if 2 * near >= len(column) else 0


def _planes(column: Integers) -> npt.NDArray[np.uint8]:
    folded = np.ascontiguousarray((column << 1) ^ (column >> 63)).astype("<u8")
    planes = folded.view(np.uint8).reshape(-1, _BYTES).T
    needed = _BYTES - next((count for count in range(_BYTES) if planes[_BYTES - 1 - count].any()), _BYTES)
    return np.ascontiguousarray(planes[:needed])


def _table(said: dict[str, Any], names: list[str], planes: list[npt.NDArray[np.uint8]]) -> Integers:
    unit_ns = int(said["unit_ns"])
    table = np.empty((int(said["rows"]), len(names)), np.int64)
    for index, one in enumerate(planes):
        folded = np.zeros((len(table), _BYTES), np.uint8)
        folded[:, : len(one)] = one.T
        values = folded.view("<u8")[:, 0]
        table[:, index] = (values >> np.uint64(1)).astype(np.int64) ^ -(values & np.uint64(1)).astype(np.int64)
        table[:, index] += int(next(iter(said["columns"][index][2:]), 0))
    steps = table[:, 0]
    steps[:1] += int(said["begin"])
    for name in said["after"][1:]:
        steps[1:] += table[:-1, names.index(name)]
    table[:, 0] = np.cumsum(steps)
    for index, name in enumerate(names):
        if _is_time(name):
            table[:, index] *= np.where(table[:, index] < 0, 1, unit_ns)
    return table
