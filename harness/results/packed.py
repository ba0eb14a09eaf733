"""Columns of int64 as Parquet files: plain ones, and packed ones, a fifth of the size, of times rounded to a resolution.

A packed file has no compression of its own and its values are split into their bytes, so that xz packs it well. The first column
is the instant at which a row begins; other names that end in ``_ns`` are durations, negative where there is none. Times are
counts of the resolution. The first column is kept as steps, each after the sum of the columns ``after`` in the row before: of a
closed loop those are the small waits between an answer and the next request. All values are less their column's ``middle`` and
zigzagged (0, -1, 1, -2... are 0, 1, 2, 3...). A column with one value is in the metadata alone. Sets that were published before
hold ``.times`` files instead.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.errors import ResultsPathError
from harness.results.files import storage_errors
from harness.traffic.records import NONE

OLD_SUFFIX = ".times"
_PACKED = b"harness.packed"
"""Of a file's metadata: how it is packed."""
_HALF_BYTE, _BYTES, _MOST_OLD_ROWS, _HEADER_BYTES = 128, 8, 1 << 20, 1 << 16

Nanoseconds = npt.NDArray[np.int64]


def int64_array(values: Nanoseconds, valid: npt.NDArray[np.bool_] | None = None) -> Any:
    """The values as a ``pyarrow.Array``, null where not ``valid``.

    Not by pa.array, which imports all of pandas to see whether it was given some of it.
    """
    import pyarrow as pa

    nulls = None if valid is None or valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(pa.int64(), len(values), [nulls, pa.py_buffer(np.ascontiguousarray(values))])


def read_columns(path: Path) -> tuple[dict[str, Nanoseconds], Mapping[bytes, bytes]]:
    """The columns of a file, packed or not, NONE for null, and its metadata.

    Raises ResultsPathError (the file is not whole, or something else), StorageError.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with storage_errors(path, "read"):
            if path.suffix == OLD_SUFFIX:
                return _read_old(path), {}
            with pq.ParquetFile(path) as file:  # not read_table, which imports pandas
                metadata, table = file.schema_arrow.metadata or {}, file.read()
        columns = dict(zip(table.column_names, map(_numbers, table.columns), strict=True))
        return (_restored(json.loads(metadata[_PACKED]), columns) if _PACKED in metadata else columns), metadata
    except (pa.ArrowException, KeyError, ValueError, TypeError, IndexError) as error:
        raise not_ours(path, error) from error


def not_ours(path: Path, error: Exception) -> ResultsPathError:
    """What is said of a file that another program wrote, or that is damaged."""
    return ResultsPathError(f"{path} is not a log of this harness: {error}", advice="Restore it from a backup.")


def pack_columns(
    path: Path, columns: Mapping[str, Nanoseconds], unit_ns: int, metadata: Mapping[bytes, bytes] | None = None
) -> None:
    """Write columns of equal length as the new file ``path``, with ``metadata``. Raises StorageError.

    Instants are rounded to the nearest ``unit_ns``, durations are those between rounded instants: they are off by less than
    one ``unit_ns``.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    (begin, second, *_), rows = columns, len(next(iter(columns.values())))
    counts = _rounded(columns, unit_ns)
    every_step = np.diff(counts[begin], prepend=0)
    after_second = every_step.copy()
    after_second[1:] -= counts[second][:-1]
    shorter = rows > 1 and np.median(np.abs(after_second[1:])) < np.median(np.abs(every_step[1:]))
    counts[begin] = after_second if shorter else every_step
    constants = {name: int(column[0]) for name, column in counts.items() if rows and (column == column[0]).all()}
    varying = {name: column for name, column in counts.items() if name not in constants}
    middles = {name: _middle(column) for name, column in varying.items()}
    zigzagged = {name: column - middles[name] for name, column in varying.items()}
    about = {
        "unit_ns": unit_ns,
        "rows": rows,
        "columns": list(columns),
        "after": [begin, second] if shorter else [begin],
        "constants": constants,
        "middles": middles,
    }
    schema = pa.schema(
        [(name, pa.int64()) for name in varying],
        metadata={**(metadata or {}), _PACKED: json.dumps(about).encode()},
    )
    with (
        storage_errors(path),
        path.open("xb") as stream,
        pq.ParquetWriter(
            stream,
            schema,
            compression="NONE",
            use_dictionary=False,
            column_encoding=dict.fromkeys(varying, "BYTE_STREAM_SPLIT") or None,
            write_statistics=False,
            version="2.6",
        ) as writer,
    ):
        arrays = [int64_array((column << 1) ^ (column >> 63)) for column in zigzagged.values()]
        writer.write_table(pa.table(arrays, schema=schema))


def _rounded(columns: Mapping[str, Nanoseconds], unit_ns: int) -> dict[str, Nanoseconds]:
    """The same in counts of ``unit_ns``."""
    half = unit_ns // 2
    first, *others = columns
    begin = columns[first]
    counts = {first: (begin + half) // unit_ns}
    for name in others:
        column = columns[name]
        ends = (begin + column + half) // unit_ns - counts[first]
        counts[name] = np.where(column < 0, column, ends) if name.endswith("_ns") else column
    return counts


def _middle(column: Nanoseconds) -> int:
    """The median where at least half of the values fit into one byte around it, else 0: xz finds more in repetitions that stay as they are."""
    if not len(column):
        return 0
    median = int(np.partition(column, len(column) // 2)[len(column) // 2])
    near = np.count_nonzero((column - median >= -_HALF_BYTE) & (column - median < _HALF_BYTE))
    return median if 2 * near >= len(column) else 0


def _numbers(column: Any) -> Nanoseconds:
    whole = column.combine_chunks()
    if whole.null_count == len(whole):
        return np.full(len(whole), NONE, np.int64)
    return np.from_dlpack(whole.fill_null(NONE) if whole.null_count else whole).astype(np.int64, copy=False)


def _restored(about: Mapping[str, Any], packed: Mapping[str, Nanoseconds]) -> dict[str, Nanoseconds]:
    rows, constants, middles = int(about["rows"]), about["constants"], about["middles"]
    columns = {
        name: np.full(rows, int(constants[name]), np.int64)
        if name in constants
        else _unzigzag(packed[name].view(np.uint64)) + int(middles[name])
        for name in about["columns"]
    }
    return _in_ns(columns, about["after"], int(about["unit_ns"]))


def _unzigzag(values: npt.NDArray[np.uint64]) -> Nanoseconds:
    return (values >> np.uint64(1)).astype(np.int64) ^ -(values & np.uint64(1)).astype(np.int64)


def _in_ns(columns: dict[str, Nanoseconds], after: Sequence[str], unit_ns: int) -> dict[str, Nanoseconds]:
    """Instants from steps, each after the columns ``after`` in the row before, and times from counts."""
    begin = next(iter(columns))
    for name in after[1:]:
        columns[begin][1:] += columns[name][:-1]
    columns[begin] = np.cumsum(columns[begin])
    return {
        name: column * np.where(column < 0, 1, unit_ns) if name.endswith("_ns") else column
        for name, column in columns.items()
    }


def _read_old(path: Path) -> dict[str, Nanoseconds]:
    """``.times``: blocks of a line of JSON, and of each of its columns the planes; plane k holds byte k of every row."""
    blocks: list[dict[str, Nanoseconds]] = []
    with path.open("rb") as stream:
        while header := stream.readline(_HEADER_BYTES):
            about = json.loads(header)
            rows, columns = int(about["rows"]), {}
            if not 0 <= rows <= _MOST_OLD_ROWS:
                raise ValueError(f"a block of {rows} rows")
            for name, planes, *middle in about["columns"]:
                whole = np.zeros((rows, _BYTES), np.uint8)
                content = np.frombuffer(stream.read(rows * int(planes)), np.uint8)
                whole[:, : int(planes)] = content.reshape(int(planes), rows).T
                columns[name] = _unzigzag(whole.view("<u8")[:, 0]) + int(middle[0] if middle else 0)
            next(iter(columns.values()))[:1] += int(about["begin"])
            blocks.append(_in_ns(columns, about["after"], int(about["unit_ns"])))
    return {name: np.concatenate([block[name] for block in blocks]) for name in (blocks[0] if blocks else ())}
