"""One request, one row: ``requests.parquet`` of a run, whoever sent the requests, and the logs that it is made of.

While a run lasts, whoever measures a request appends it to a log of little-endian int64: a replica that serves by itself to
``latencies.bin`` (``LATENCY``), the client of a user's server to ``requests.bin`` (``CLIENT``), the load generator to
``load/requests.bin`` (``GENERATED``). A process killed in mid-write leaves a torn last record, which is dropped. The client
is believed: where the generator has a log, what its replicas logged is kept beside the table and only counted.

Runs from before there was the table are converted when they are read; so are packed ones (``packed.py``).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.errors import ResultsPathError
from harness.metrics.rows import series_name
from harness.results.files import storage_errors
from harness.results.layout import LATENCIES, RAW_LATENCIES, REPLICAS, REQUESTS, workload_folders
from harness.results.packed import OLD_SUFFIX, Nanoseconds, int64_array, not_ours, read_columns
from harness.traffic.records import (
    ANSWER_FIELDS,
    CLIENT_FIELDS,
    GENERATED_FIELDS,
    LATENCY_FIELDS,
    NONE,
    OK,
    TURN_FIELDS,
)

LOAD_LOG = "load/requests.bin"
CLIENT_LOG, GAPS_LOG, ANSWERS_LOG, TURNS_LOG = "requests.bin", "gaps.bin", "answers.bin", "turns.bin"
NS_PER_S, NS_PER_MS = 1e9, 1e6

COLUMNS = (
    *("replica", "intended_ns", "sent_ns", "first_token_ns", "end_ns"),
    *("itl_p99_ns", "input_tokens", "output_tokens", "status", "session", "turn"),
    *("first_answer_ns", "pieces", "token_source", "tokenizer_tokens"),
)
"""Of the table. Instants are since the epoch; ``itl_p99_ns`` is that of the answer's own gaps, a ``session`` one of its replica's."""

SINCE_INTENDED = {"send_error_ns": "sent_ns", "ttft_ns": "first_token_ns", "ttfo_ns": "first_answer_ns"}
"""Times of logs and packed tables that count from the intended one, and the instants of the table."""


def _record(*names: str) -> np.dtype[np.void]:
    return np.dtype([(name, "<i8") for name in names])


ROW = _record(*COLUMNS)
LATENCY = _record(*LATENCY_FIELDS)
GAP = _record("start_ns", "gap_ns")
CLIENT = _record(*CLIENT_FIELDS)
ANSWER = _record(*ANSWER_FIELDS)
TURN = _record(*TURN_FIELDS)
BESIDE = {ANSWERS_LOG: ANSWER, TURNS_LOG: TURN}
"""Logs of more about each request of the client's, in its order."""
GENERATED = _record(*GENERATED_FIELDS)
REPLICAS_KEY = b"harness.replicas"
"""Of a file's metadata: who has a log."""
_CHUNK_RECORDS = 1 << 18
_READINGS = 51
"""Times of reading a counter that are tried, between a step before its row and the row."""

Rows = npt.NDArray[np.void]


@dataclass(frozen=True, slots=True)
class Window:
    """From ``begin_s`` on, and before ``end_s``: seconds since the epoch. Whatever ends in it belongs to it."""

    begin_s: float
    end_s: float

    @property
    def duration_s(self) -> float:
        """Seconds."""
        return self.end_s - self.begin_s

    def holds(self, times_ns: Nanoseconds) -> npt.NDArray[np.bool_]:
        """Which of the times lie in it."""
        begin_ns, end_ns = round(self.begin_s * NS_PER_S), round(self.end_s * NS_PER_S)
        inside: npt.NDArray[np.bool_] = (times_ns >= begin_ns) & (times_ns < end_ns)
        return inside


@dataclass(frozen=True, slots=True)
class RequestTable:
    """The requests of one workload of a run, the rows of each replica in the order in which they were logged.

    ``replicas``: who has a log, also where no request is in it; empty where nobody said who served.
    """

    rows: Rows
    replicas: tuple[int, ...]

    def of(self, replica: int) -> Rows:
        """The rows of one replica."""
        rows: Rows = self.rows[self.rows["replica"] == replica]
        return rows


def read(folder: Path) -> RequestTable | None:
    """The requests of a run, or of a neighbour in it, finished or not; None where nobody wrote any log.

    Raises ResultsPathError where a file is not ours, StorageError.
    """
    path = folder / REQUESTS
    if not path.is_file():
        parts = list(_parts(folder))
        rows = np.concatenate([np.empty(0, ROW), *(chunk for _, chunks in parts for chunk in chunks)])
        return RequestTable(rows, _known(parts)) if parts else None
    columns, metadata = read_columns(path)
    try:
        rows, replicas = to_rows(columns), tuple(map(int, json.loads(metadata[REPLICAS_KEY])))
    except (KeyError, ValueError, TypeError) as error:
        raise not_ours(path, error) from error
    return RequestTable(rows, replicas)


def write(folder: Path, target: Path) -> None:
    """Write the table of an attempt's logs, if there are any, as the new file ``target``.

    Memory is constant, however long the logs are. Raises StorageError.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    parts = list(_parts(folder))
    if not parts:
        return
    schema = pa.schema(
        [(name, pa.int64()) for name in COLUMNS], metadata={REPLICAS_KEY: json.dumps(_known(parts)).encode()}
    )
    options = {"column_encoding": dict.fromkeys(COLUMNS, "DELTA_BINARY_PACKED"), "version": "2.6"}
    with (
        storage_errors(target),
        pq.ParquetWriter(target, schema, compression="zstd", use_dictionary=False, **options) as writer,
    ):
        for _, chunks in parts:
            for chunk in chunks:
                columns = [
                    int64_array(chunk[name], None if name == "status" else chunk[name] != NONE) for name in COLUMNS
                ]
                writer.write_table(pa.table(columns, schema=schema))


def logs_of(folder: Path) -> list[Path]:
    """The files of an attempt that its table takes the place of."""
    generated = folder / LOAD_LOG
    if generated.parent.is_dir():  # what the replicas logged stays, as the counters' other side
        return [generated] if generated.is_file() else []
    raw = [
        path for name in (RAW_LATENCIES, CLIENT_LOG, *BESIDE) for path in (folder / REPLICAS).glob(f"replica-*/{name}")
    ]
    return sorted([*raw, *(folder / LATENCIES).glob("replica-*.parquet")])


def count(path: Path) -> int:
    """The rows of a table of requests. Raises StorageError, ResultsPathError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with storage_errors(path, "read"), pq.ParquetFile(path) as file:
            return int(file.metadata.num_rows)
    except pa.ArrowException as error:
        raise not_ours(path, error) from error


def gaps(folder: Path, replica: int) -> Rows:
    """Times and lengths of the gaps between the tokens of a replica's answers, dtype ``GAP``; none where it has no such log.

    Raises ResultsPathError, StorageError.
    """
    place = folder / REPLICAS / f"replica-{replica}" / GAPS_LOG
    for path in (place, place.with_suffix(".parquet"), place.with_suffix(OLD_SUFFIX)):
        if path.is_file():
            return records_of(path, GAP)
    return np.empty(0, GAP)


def served(folder: Path) -> Iterator[tuple[str, Nanoseconds]]:
    """When the requests ended that each replica answered well, by its series name, as its own counter sees them.

    ``folder`` is an attempt or a finished run, with its neighbours (``whisper/replica-0``); replicas without a log are left out.
    Raises as ``read``.
    """
    for workload, place in workload_folders(folder).items():
        own = {}
        if not (place / LATENCIES).is_dir():
            logs = (place / REPLICAS).glob(f"replica-*/{Path(RAW_LATENCIES).stem}.*")
            for log in sorted(logs, key=lambda path: _number(path.parent)):
                records = records_of(log, LATENCY)
                own[_number(log.parent)] = records["start_ns"] + records["latency_ns"]
        table = None if own else read(place)
        if table is not None:
            answered = well(table.rows)
            own = {replica: answered["end_ns"][answered["replica"] == replica] for replica in table.replicas}
        for replica, ends_ns in own.items():
            yield series_name(f"replica-{replica}", workload), ends_ns


def requests_within(folder: Path, window: Window) -> dict[str, int]:
    """How many requests each replica finished in a window, by series name; raises as ``served``."""
    return {name: int(np.count_nonzero(window.holds(ends_ns))) for name, ends_ns in served(folder)}


def requests_between_readings(
    folder: Path, rows_s: Mapping[str, tuple[float, float]], *, start_s: float, step_s: float, late_s: float
) -> dict[str, tuple[int, int]]:
    """Fewest and most requests by which a counter can have grown between the readings for two rows; raises as ``served``.

    Either reading may have been up to a step before its row, as that of a server that scrapes; both equally early, how early
    nobody says. And each by itself may have been late.

    Args:
        rows_s: times of the two rows by series name, seconds since row 0; of other series nothing is counted.
        start_s: time of row 0, seconds since the epoch.
        late_s: how long after its row, at most, a reading was.
    """
    earlier_ns = np.round(np.linspace(0.0, step_s, _READINGS) * NS_PER_S).astype(np.int64)
    late_ns = round(late_s * NS_PER_S)
    counts = {}
    for name, ends_ns in served(folder):
        if name not in rows_s:
            continue
        begins_ns, overs_ns = (round((start_s + row_s) * NS_PER_S) - earlier_ns for row_s in rows_s[name])
        ascending_ns = np.sort(ends_ns)
        begun, begun_late, over, over_late = (
            np.searchsorted(ascending_ns, times_ns, side="left")
            for times_ns in (begins_ns, begins_ns + late_ns, overs_ns, overs_ns + late_ns)
        )
        counts[name] = int((over - begun_late).min()), int((over_late - begun).max())
    return counts


class LatencyTail:
    """Reads a replica's ``latencies.bin`` that is still being written, every record once; it need not exist yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset_bytes = 0
        self._held = np.empty(0, dtype=LATENCY)

    def ended_before(self, end_ns: int) -> Rows:
        """Records that are new and whose request ended before ``end_ns``; later ones wait. Raises StorageError."""
        fresh = self._held
        with storage_errors(self._path, "read"):
            if self._path.exists():
                whole = (self._path.stat().st_size - self._offset_bytes) // LATENCY.itemsize
                added: Rows = np.fromfile(self._path, dtype=LATENCY, count=whole, offset=self._offset_bytes)
                self._offset_bytes += added.nbytes
                fresh = np.concatenate([fresh, added])
        over = fresh["start_ns"] + fresh["latency_ns"] < end_ns
        self._held = fresh[~over]
        ended: Rows = fresh[over]
        return ended


def records_of(path: Path, dtype: np.dtype[np.void]) -> Rows:
    """All records of a log, raw or published. Raises ResultsPathError, StorageError."""
    return np.concatenate([np.empty(0, dtype), *_records(path, dtype)])


def is_of_requests(name: str) -> bool:
    """Whether a file of an experiment, by its name in the manifest, holds requests of the measured replicas."""
    return name == REQUESTS or name.startswith(f"{LATENCIES}/")


def well(rows: Rows) -> Rows:
    """Those that were answered well."""
    answered: Rows = rows[rows["status"] == OK]
    return answered


def latency_ns(rows: Rows) -> Nanoseconds:
    """From the intended time of each request to its end."""
    latencies: Nanoseconds = rows["end_ns"] - rows["intended_ns"]
    return latencies


def to_rows(log: Rows | Mapping[str, Nanoseconds], replica: int = NONE) -> Rows:
    """Rows of the table from records of any of the logs, or from columns of a file. Raises KeyError where one is missing."""
    names = set(log if isinstance(log, Mapping) else log.dtype.names or ())
    intended = log["intended_ns" if "intended_ns" in names else "start_ns"]
    rows = np.full(len(intended), NONE, dtype=np.int64).astype(ROW)  # every field is NONE
    rows["replica"], rows["status"], rows["intended_ns"] = replica, OK, intended
    _fill(rows, log, names)
    rows["end_ns"] = log["end_ns"] if "end_ns" in names else intended + log["latency_ns"]
    return rows


def _fill(rows: Rows, log: Rows | Mapping[str, Nanoseconds], names: Iterable[str]) -> None:
    """Put what a log says of as many rows into them; times that count from the intended one become instants."""
    for name in names:
        if name in SINCE_INTENDED:
            rows[SINCE_INTENDED[name]] = np.where(log[name] >= 0, rows["intended_ns"] + log[name], NONE)
        elif name in COLUMNS:
            rows[name] = log[name]


def _parts(folder: Path) -> Iterator[tuple[int, Iterator[Rows]]]:
    """Each replica's number, NONE where its rows say it, and its rows in pieces: of the logs of an attempt, or of an older run."""
    generated = folder / LOAD_LOG
    older = folder / LATENCIES
    if generated.is_file() and not older.is_dir():
        yield NONE, map(to_rows, _records(generated, GENERATED))
        return
    clients = {_number(path.parent): path for path in (folder / REPLICAS).glob(f"replica-*/{Path(CLIENT_LOG).stem}.*")}
    logs = {_number(path.parent): path for path in (folder / REPLICAS).glob(f"replica-*/{RAW_LATENCIES}")}
    logs |= {_number(path): path for path in older.glob("replica-*") if path.suffix in {".parquet", OLD_SUFFIX}}
    for replica in sorted({*clients, *logs}):
        path, dtype = (clients[replica], CLIENT) if replica in clients else (logs[replica], LATENCY)
        rows: Iterator[Rows] = map(partial(to_rows, replica=replica), _records(path, dtype))
        for name, more in BESIDE.items():
            if (beside := path.with_name(name)).is_file():
                rows = _with(rows, _records(beside, more))
        yield replica, rows


def _with(chunks: Iterator[Rows], beside: Iterator[Rows]) -> Iterator[Rows]:
    """The rows with what another log says of each; both are read in pieces of as many records."""
    for rows in chunks:
        of_rows = next(beside, rows[:0])[: len(rows)]
        _fill(rows[: len(of_rows)], of_rows, of_rows.dtype.names or ())
        yield rows


def _known(parts: Sequence[tuple[int, Any]]) -> tuple[int, ...]:
    return tuple(replica for replica, _ in parts if replica != NONE)


def _records(path: Path, dtype: np.dtype[np.void]) -> Iterator[Rows]:
    """The whole records of a log, in pieces where it is a raw one."""
    if path.suffix == ".bin":
        with storage_errors(path, "read"), path.open("rb") as stream:
            while data := stream.read(_CHUNK_RECORDS * dtype.itemsize):
                yield np.frombuffer(data, dtype=dtype, count=len(data) // dtype.itemsize)
        return
    columns, _ = read_columns(path)
    names = dtype.names or ()
    if set(columns) != set(names):
        raise ResultsPathError(f"{path} holds {', '.join(columns)} and not {', '.join(names)}.")
    records = np.empty(len(columns[names[0]]), dtype)
    for name in names:
        records[name] = columns[name]
    yield records


def _number(path: Path) -> int:
    return int(path.stem.rpartition("-")[2])
