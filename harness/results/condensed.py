"""An experiment as a published set may hold it: a fifth of the size, its times rounded to a resolution that its manifest says.

A log of times is packed into a Parquet file without compression of its own, whose values are split into their bytes, so that xz
packs it well. The first column is the instant at which a row begins; other names that end in ``_ns`` are durations, negative
where there is none. Times are counts of the resolution. The first column is kept as steps, each after the sum of the columns
``after`` in the row before: of a closed loop those are the small waits between an answer and the next request. All values are
less their column's ``middle`` and zigzagged (0, -1, 1, -2... are 0, 1, 2, 3...). A column with one value is in the metadata
alone. ``requests.py`` reads such files, and the ``.times`` files that sets published before hold instead.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

import numpy as np

from harness.errors import UsageError
from harness.results import requests
from harness.results.files import read_object, sha256_of, storage_errors
from harness.results.layout import LATENCIES, MANIFEST, RAW_LATENCIES, REPLICAS, REQUESTS, SAMPLES, SERVICES
from harness.results.manifest import SCHEMA_VERSION, Condensed, FileEntry, content_digest, read_manifest
from harness.results.requests import Nanoseconds, int64_array
from harness.traffic.records import NONE

_LOGS = {
    RAW_LATENCIES: requests.LATENCY,
    SERVICES: requests.LATENCY,
    requests.GAPS_LOG: requests.GAP,
}
"""Logs of times beside the table of requests, by the names under which replicas write them."""
_HALF_BYTE = 128


def condense(folder: Path, into: Path, resolution_ns: int) -> dict[str, Path]:
    """Write what takes the place of an experiment's files below ``into``, a new folder; returns all its files by name.

    The table of requests and logs of times are packed; ``samples.parquet``, which is made of the CSVs, is left out; the
    manifest lists what is there, and keeps the hashes of what was recorded. One that is condensed already gets its logs as they
    are packed now.

    Raises:
        UsageError: the experiment was condensed before, to another resolution.
        ResultsPathError: a file is not ours.
        StorageError: a file cannot be read or written.
    """
    manifest = read_manifest(folder)
    if manifest.condensed and manifest.condensed.resolution_ns != resolution_ns:
        raise UsageError(
            f"{folder.name} was published with a resolution of {manifest.condensed.resolution_ns} ns already.",
            advice="Publish the campaign as it was recorded, or leave --resolution out.",
        )
    with storage_errors(into):
        into.mkdir(parents=True, exist_ok=True)
    made = _packed(folder, into, list(manifest.files), resolution_ns)
    replaced = {name for sources in made.values() for name in sources} | ({SAMPLES} & manifest.files.keys())
    files = {name: folder / name for name in (MANIFEST, *manifest.files) if name not in replaced}
    listed = {name: entry for name, entry in manifest.files.items() if name not in replaced}
    for name, sources in made.items():
        files[name] = into / name
        rows = sum(manifest.files[source].rows or 0 for source in sources)
        with storage_errors(files[name], "read"):
            size = files[name].stat().st_size
            listed[name] = FileEntry(sha256=sha256_of(files[name]), bytes=size, rows=rows)
    recorded = {} if manifest.condensed else {name: manifest.files[name] for name in replaced}
    before = manifest.condensed or Condensed(resolution_ns=resolution_ns, recorded={}, recorded_digest=manifest.digest)
    condensed = before.model_copy(update={"recorded": before.recorded | recorded})
    content = read_object(folder / MANIFEST) | {
        "schema_version": SCHEMA_VERSION,
        "files": {name: listed[name].model_dump() for name in sorted(listed)},
        "condensed": condensed.model_dump(),
    }
    files[MANIFEST] = into / MANIFEST
    with storage_errors(into):
        files[MANIFEST].write_text(json.dumps(content | {"digest": content_digest(content)}, indent=2) + "\n")
    return files


def pack(
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
        metadata={**(metadata or {}), requests.PACKED_KEY: json.dumps(about).encode()},
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


def _packed(folder: Path, into: Path, names: list[str], resolution_ns: int) -> dict[str, list[str]]:
    """Pack the requests and the logs of times among these files; the names that are new, with those that they replace."""
    made: dict[str, list[str]] = {}
    for place in dict.fromkeys(name for name in map(_of_requests, names) if name is not None):
        if (table := requests.read(folder / place)) is not None:
            target = str(place / REQUESTS)
            _make_room(into / target)
            replicas = {requests.REPLICAS_KEY: json.dumps(table.replicas).encode()}
            pack(into / target, _relative(table.rows), resolution_ns, replicas)
            made[target] = [source for source in names if _of_requests(source) == place]
    for name in names:
        path = PurePosixPath(name)
        raw = path.with_suffix(".bin").name
        if REPLICAS in path.parts and raw in _LOGS and path.suffix in {".bin", ".parquet", requests.OLD_SUFFIX}:
            records = requests.records_of(folder / name, _LOGS[raw])
            target = str(path.with_suffix(".parquet"))
            _make_room(into / target)
            pack(into / target, {column: records[column] for column in records.dtype.names or ()}, resolution_ns)
            made[target] = [name]
    return made


def _make_room(path: Path) -> None:
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)


def _of_requests(name: str) -> PurePosixPath | None:
    """The workload's folder, where a file holds its requests: the table, or the logs of before there was one."""
    path = PurePosixPath(name)
    if path.name == REQUESTS:
        return path.parent
    if path.parent.name == LATENCIES:
        return path.parents[1]
    if path.stem == "requests" and REPLICAS in path.parts:
        return path.parents[2]
    return None


def _relative(rows: requests.Rows) -> dict[str, Nanoseconds]:
    """The columns of a table of requests with the intended instant first, and durations after it."""
    since = {
        name: np.where(rows[instant] >= 0, rows[instant] - rows["intended_ns"], NONE)
        for name, instant in (("send_error_ns", "sent_ns"), ("ttft_ns", "first_token_ns"))
    }
    others = ("itl_p99_ns", "input_tokens", "output_tokens", "status", "replica")
    head = {"intended_ns": rows["intended_ns"], "latency_ns": requests.latency_ns(rows)}
    return head | since | {name: rows[name] for name in others}


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
