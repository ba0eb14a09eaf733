"""The latency of every single request: read the replicas' logs, keep them as Parquet.

A log is a row of little-endian pairs of int64: start of the request (Unix nanoseconds) and its latency
(nanoseconds). A replica killed in mid-write leaves a torn last record, which is dropped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from harness.errors import ResultsPathError
from harness.metrics.rows import series_name
from harness.results import times
from harness.results.files import storage_errors
from harness.results.layout import LATENCIES, RAW_LATENCIES, REPLICAS, workload_folders

RECORD = np.dtype([("start_ns", "<i8"), ("latency_ns", "<i8")])
_CHUNK_RECORDS = 1 << 18
_READINGS = 51
"""Times of reading a counter that are tried, between a step before its row and the row."""

Records = npt.NDArray[np.void]
Nanoseconds = npt.NDArray[np.int64]


def ended_ns(records: Records) -> Nanoseconds:
    """When each of these requests ended."""
    ended: Nanoseconds = records["start_ns"] + records["latency_ns"]
    return ended


def read(path: Path) -> Records:
    """All requests of one replica, from its log (``.bin``), or from what was made of it: Parquet, or published ``.times``.

    Returns:
        Structured array with the fields ``start_ns`` and ``latency_ns``, in the order served.

    Raises:
        ResultsPathError: the file is neither.
        StorageError: the file cannot be read.
    """
    with storage_errors(path, "read"):
        if path.suffix == times.SUFFIX:
            return _read_times(path)
        if path.suffix == ".bin":
            whole = path.stat().st_size // RECORD.itemsize
            return np.fromfile(path, dtype=RECORD, count=whole)
        return _read_parquet(path)


def chunks(path: Path, records: int = _CHUNK_RECORDS) -> Iterator[Records]:
    """The whole records of a ``.bin`` log, at most ``records`` at a time. Raises StorageError."""
    with storage_errors(path, "read"), path.open("rb") as stream:
        while True:
            data = stream.read(records * RECORD.itemsize)
            whole = len(data) // RECORD.itemsize
            if whole:
                yield np.frombuffer(data, dtype=RECORD, count=whole)
            if whole < records:
                return


class Tail:
    """Reads a ``.bin`` log that is still being written, every record once.

    Args:
        path: of the log; need not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset_bytes = 0
        self._held = np.empty(0, dtype=RECORD)

    def ended_by(self, end_ns: int) -> Records:
        """Records that are new and whose request ended by ``end_ns``; later ones wait. Raises StorageError."""
        fresh = self._held
        with storage_errors(self._path, "read"):
            if self._path.exists():
                whole = (self._path.stat().st_size - self._offset_bytes) // RECORD.itemsize
                added: Records = np.fromfile(self._path, dtype=RECORD, count=whole, offset=self._offset_bytes)
                self._offset_bytes += added.nbytes
                fresh = np.concatenate([fresh, added])
        over = ended_ns(fresh) <= end_ns
        self._held = fresh[~over]
        ended: Records = fresh[over]
        return ended


def requests_within(folder: Path, begin_s: float, end_s: float) -> dict[str, int]:
    """Requests that were finished after ``begin_s`` and by ``end_s``, as the replicas' counters see them.

    Args:
        folder: an attempt (logs in ``replicas/``) or a finished experiment (Parquet in ``latencies/``).
        begin_s: seconds since the epoch; usually the time of the first row.
        end_s: likewise; usually that of the last row.

    Returns:
        Number of requests by series name (``replica-0``, ``whisper/replica-0`` of a neighbour); replicas without a
        log are left out.

    Raises:
        ResultsPathError: a Parquet file is not ours.
        StorageError: a file cannot be read.
    """
    begin_ns, end_ns = round(begin_s * 1e9), round(end_s * 1e9)
    found = {}
    for name, parts in logs(folder):
        count = 0
        for part in parts:
            ends_ns = ended_ns(part)
            count += int(np.count_nonzero((ends_ns > begin_ns) & (ends_ns <= end_ns)))
        found[name] = count
    return found


def requests_between_readings(
    folder: Path, rows_s: Mapping[str, tuple[float, float]], *, start_s: float, step_s: float, late_s: float
) -> dict[str, tuple[int, int]]:
    """Fewest and most requests by which a counter can have grown between the readings for two rows.

    Either reading may have been up to a step before its row, as that of a server that scrapes; both equally early, how early
    nobody says. And each by itself may have been late.

    Args:
        folder: as of ``requests_within``.
        rows_s: times of the two rows by series name, seconds since row 0; of other series nothing is counted.
        start_s: time of row 0, seconds since the epoch.
        step_s: from row to row.
        late_s: how long after its row, at most, a reading was.

    Returns:
        Fewest and most by series name; replicas without a log are left out.

    Raises:
        ResultsPathError: a Parquet file is not ours.
        StorageError: a file cannot be read.
    """
    earlier_ns = np.round(np.linspace(0.0, step_s, _READINGS) * 1e9).astype(np.int64)
    late_ns = round(late_s * 1e9)
    found = {}
    for name, parts in logs(folder):
        if name not in rows_s:
            continue
        begins_ns, ends_ns = (round((start_s + row_s) * 1e9) - earlier_ns for row_s in rows_s[name])
        fewest, most = np.zeros((2, _READINGS), dtype=np.int64)
        for part in parts:
            done_ns = np.sort(ended_ns(part))
            begun, begun_late, over, over_late = (
                np.searchsorted(done_ns, times_ns, side="right")
                for times_ns in (begins_ns, begins_ns + late_ns, ends_ns, ends_ns + late_ns)
            )
            fewest += over - begun_late
            most += over_late - begun
        found[name] = int(fewest.min()), int(most.max())
    return found


def logs(folder: Path) -> Iterator[tuple[str, Iterator[Records]]]:
    """Every replica's series name and the parts of its log, in an attempt or a finished experiment."""
    for workload, place in workload_folders(folder).items():
        for path in sorted((place / REPLICAS).glob(f"replica-*/{RAW_LATENCIES}")):
            yield series_name(path.parent.name, workload), chunks(path)
        for path in kept(place):
            yield series_name(path.stem, workload), iter([read(path)])


def kept(folder: Path) -> list[Path]:
    """The replicas' latencies in a finished experiment, or of one of its neighbours, in the order of the replicas' numbers."""
    found = (folder / LATENCIES).glob("replica-*")
    ours = (path for path in found if path.suffix in {".parquet", times.SUFFIX} and path.is_file())
    return sorted(ours, key=lambda path: int(path.stem.rpartition("-")[2]))


def to_parquet(source: Path, target: Path) -> int:
    """Write the log ``source`` as the new Parquet file ``target``; returns the number of requests.

    Raises StorageError. Memory is constant, however long the log is.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([("start_ns", pa.int64()), ("latency_ns", pa.int64())])
    requests = 0
    encodings = {"start_ns": "DELTA_BINARY_PACKED", "latency_ns": "DELTA_BINARY_PACKED"}
    with (
        storage_errors(target),
        pq.ParquetWriter(
            target, schema, compression="zstd", use_dictionary=False, column_encoding=encodings, version="2.6"
        ) as writer,
    ):
        for chunk in chunks(source):
            # Not pa.array, which imports all of pandas to see whether it was given some of it.
            buffers = [pa.py_buffer(np.ascontiguousarray(chunk[name])) for name in schema.names]
            columns = [pa.Array.from_buffers(pa.int64(), len(chunk), [None, buffer]) for buffer in buffers]
            writer.write_table(pa.table(columns, schema=schema))
            requests += len(chunk)
    return requests


def _read_times(path: Path) -> Records:
    names, table = times.read(path)
    if tuple(names) != RECORD.names:
        raise ResultsPathError(f"{path} holds no latencies, but {', '.join(names)}.")
    return np.ascontiguousarray(table).view(RECORD)[:, 0]


def _read_parquet(path: Path) -> Records:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:  # not read_table, which imports pyarrow.dataset and with it pandas
            table = file.read(columns=list(RECORD.names or ()))
        records = np.empty(table.num_rows, dtype=RECORD)
        for name in RECORD.names or ():
            records[name] = np.from_dlpack(table.column(name).combine_chunks())
    except (pa.ArrowException, KeyError, ValueError, TypeError) as error:
        raise ResultsPathError(
            f"{path} is not a latency file of this harness: {error}", advice="Restore it from a backup."
        ) from error
    return records
