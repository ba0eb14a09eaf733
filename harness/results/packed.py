"""Tables of times as a published set holds them: rounded to a resolution that is said, in columns that xz packs well.

A Parquet file without compression of its own, whose values are split into their bytes. The first column is the instant at
which a row begins; other names that end in ``_ns`` are durations, negative where there is none. Times are counts of the
resolution. The first column is kept as steps, each after the sum of the columns ``after`` in the row before: of a closed loop
those are the small waits between an answer and the next request. All values are less their column's ``middle`` and zigzagged
(0, -1, 1, -2... are 0, 1, 2, 3...). A column with one value is in the metadata alone.

Sets published before hold the same in ``.times`` files; those are read, and never written.
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

OLD_SUFFIX = ".times"
_KEY = b"harness.packed"
_BYTES = 8
_HALF_BYTE = 128
_MOST_OLD_ROWS = 1 << 20
_HEADER_BYTES = 1 << 16

Integers = npt.NDArray[np.int64]


def pack(
    path: Path, names: Sequence[str], table: Integers, unit_ns: int, metadata: Mapping[bytes, bytes] | None = None
) -> None:
    """Write ``table`` (int64 of shape [rows, columns]) as the new file ``path``, with ``metadata``. Raises StorageError.

    Instants are rounded to the nearest ``unit_ns``, durations are those between rounded instants: they are off by less than
    one ``unit_ns``.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    counts = _rounded(names, table, unit_ns)
    candidates = [list(names[:1]), list(names[:2])]
    steps = [_steps(counts, len(after)) for after in candidates]
    best = min(
        range(len(steps)), key=lambda index: (np.median(np.abs(steps[index][1:])) if len(table) > 1 else 0, index)
    )
    columns = dict(zip(names, [steps[best], *counts.T[1:]], strict=True))
    constants = {
        name: int(column[0]) for name, column in columns.items() if len(column) and (column == column[0]).all()
    }
    varying = {name: column for name, column in columns.items() if name not in constants}
    middles = {name: _middle(column) for name, column in varying.items()}
    packed = {name: _zigzag(column - middles[name]) for name, column in varying.items()}
    about = {
        "unit_ns": unit_ns,
        "rows": len(table),
        "columns": list(names),
        "after": candidates[best],
        "constants": constants,
        "middles": middles,
    }
    schema = pa.schema(
        [(name, pa.int64()) for name in packed], metadata={**(metadata or {}), _KEY: json.dumps(about).encode()}
    )
    with (
        storage_errors(path),
        path.open("xb") as stream,
        pq.ParquetWriter(
            stream,
            schema,
            compression="NONE",
            use_dictionary=False,
            column_encoding=dict.fromkeys(packed, "BYTE_STREAM_SPLIT") or None,
            write_statistics=False,
            version="2.6",
        ) as writer,
    ):
        writer.write_table(pa.table([int64_array(column) for column in packed.values()], schema=schema))


def unpack(path: Path) -> tuple[list[str], Integers]:
    """The columns' names and all rows in nanoseconds, of a packed table or a ``.times`` file.

    Raises:
        ResultsPathError: the file is not whole, or something else.
        StorageError: it cannot be read.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with storage_errors(path, "read"):
            if path.suffix == OLD_SUFFIX:
                return _read_old(path)
            with pq.ParquetFile(path) as file:
                about = json.loads((file.schema_arrow.metadata or {})[_KEY])
                columns = {
                    name: np.from_dlpack(column.combine_chunks()).astype(np.int64, copy=False)
                    for name, column in _named(file.read())
                }
        return _restored(about, columns)
    except (pa.ArrowException, ValueError, KeyError, TypeError, IndexError) as error:
        raise ResultsPathError(
            f"{path} is no log of times of this harness: {error}", advice="Fetch the published set again."
        ) from error


def is_packed(metadata: Mapping[bytes, bytes] | None) -> bool:
    """Whether a Parquet file with this metadata is a packed table."""
    return _KEY in (metadata or {})


def int64_array(values: Integers, valid: npt.NDArray[np.bool_] | None = None) -> Any:
    """The values as a ``pyarrow.Array``, null where not ``valid``.

    Not by pa.array, which imports all of pandas to see whether it was given some of it.
    """
    import pyarrow as pa

    nulls = None if valid is None or valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(pa.int64(), len(values), [nulls, pa.py_buffer(np.ascontiguousarray(values))])


def _named(table: Any) -> list[tuple[str, Any]]:
    return list(zip(table.column_names, table.columns, strict=True))


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


def _steps(counts: Integers, columns: int) -> Integers:
    """From row to row of the first column, each after the sum of the next ``columns`` - 1 in the row before."""
    steps = np.diff(counts[:, 0], prepend=0)
    steps[1:] -= counts[:-1, 1:columns].sum(axis=1)
    return steps


def _middle(column: Integers) -> int:
    """The median where at least half of the values fit into one byte around it, else 0: xz finds more in repetitions that stay as they are."""
    if not len(column):
        return 0
    median = int(np.partition(column, len(column) // 2)[len(column) // 2])
    near = np.count_nonzero((column - median >= -_HALF_BYTE) & (column - median < _HALF_BYTE))
    return median if 2 * near >= len(column) else 0


def _zigzag(column: Integers) -> Integers:
    return (column << 1) ^ (column >> 63)


def _unzigzag(values: npt.NDArray[np.uint64]) -> Integers:
    return (values >> np.uint64(1)).astype(np.int64) ^ -(values & np.uint64(1)).astype(np.int64)


def _restored(about: Mapping[str, Any], packed: Mapping[str, Integers]) -> tuple[list[str], Integers]:
    names = list(about["columns"])
    table = np.empty((int(about["rows"]), len(names)), np.int64)
    for index, name in enumerate(names):
        if name in about["constants"]:
            table[:, index] = int(about["constants"][name])
        else:
            table[:, index] = _unzigzag(packed[name].view(np.uint64)) + int(about["middles"][name])
    return names, _in_ns(names, table, about["after"], int(about["unit_ns"]))


def _in_ns(names: Sequence[str], table: Integers, after: Sequence[str], unit_ns: int) -> Integers:
    """Instants from steps, and times from counts, in place."""
    for name in after[1:]:
        table[1:, 0] += table[:-1, names.index(name)]
    table[:, 0] = np.cumsum(table[:, 0])
    for index, name in enumerate(names):
        if _is_time(name):
            table[:, index] *= np.where(table[:, index] < 0, 1, unit_ns)
    return table


def _read_old(path: Path) -> tuple[list[str], Integers]:
    """Blocks of a line of JSON, and of each of its columns the planes: plane k holds byte k of every row."""
    names: list[str] = []
    tables = []
    with path.open("rb") as stream:
        while header := stream.readline(_HEADER_BYTES):
            about = json.loads(header)
            rows = int(about["rows"])
            if not 0 <= rows <= _MOST_OLD_ROWS:
                raise ValueError(f"a block of {rows} rows")
            names = [name for name, *_ in about["columns"]]
            table = np.empty((rows, len(names)), np.int64)
            for index, (_, count, *middle) in enumerate(about["columns"]):
                planes = np.frombuffer(stream.read(rows * int(count)), np.uint8).reshape(int(count), rows)
                whole = np.zeros((rows, _BYTES), np.uint8)
                whole[:, : int(count)] = planes.T
                table[:, index] = _unzigzag(whole.view("<u8")[:, 0]) + int(middle[0] if middle else 0)
            table[:1, 0] += int(about["begin"])
            tables.append(_in_ns(names, table, about["after"], int(about["unit_ns"])))
    return names, np.concatenate([np.empty((0, len(names)), np.int64), *tables])
