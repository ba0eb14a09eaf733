"""What is written of an experiment: rows streamed to its metric CSVs; at the end tables, hashes, the manifest, then one rename."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import orjson

from harness.errors import ConflictError, clipped
from harness.metrics.catalogue import CATALOGUE
from harness.metrics.rows import MetricColumn, MetricRow
from harness.results import requests
from harness.results.files import (
    atomic_write,
    count_lines,
    storage_error,
    storage_errors,
    sync_file,
    sync_folder,
    whole_file,
    write_all,
)
from harness.results.layout import (
    MANIFEST,
    MAX_REASON,
    METRIC_COLUMNS,
    REQUESTS,
    SAMPLES,
    WIDE,
    iso,
    metric_file_name,
    workload_folders,
)
from harness.results.manifest import FileEntry, Manifest
from harness.results.tables import Grid, fill_absent, write_samples, write_wide

_LEAST_PLAIN, _LEAST_EXPONENT = 1e-4, 1e16
"""Between these, ``repr`` writes no exponent."""


class ExperimentWriter:
    """Writes every row to its metric's CSV as it comes.

    Each call of ``write`` ends with whole lines handed to the system, so that killing this process
    loses nothing of an earlier call; in the middle of one it can leave part of a line. A disk that fills up
    in mid-line is cut back to the last whole line.

    ``start_s`` is the UTC start of the recording, seconds since the epoch; row 0. Raises ConflictError where a file exists,
    StorageError.
    """

    def __init__(
        self, folder: Path, *, workload: str, replicas: int, metrics: Sequence[str], start_s: float, step_s: float
    ) -> None:
        self.folder = folder
        self.start_s = start_s
        self.step_s = step_s
        self.rows = dict.fromkeys(metrics, 0)
        self._files: dict[str, _LineFile] = {}
        self._times: tuple[float, str, str] | None = None
        self._column_times: tuple[Sequence[float], list[str]] = ((), [])
        with storage_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        try:
            for metric in metrics:
                file = _LineFile(folder / metric_file_name(workload, replicas, metric, start_s))
                self._files[metric] = file
                file.append(_csv_lines([METRIC_COLUMNS]))
        except BaseException:
            self._close_all()
            raise

    def write(self, rows: Iterable[MetricRow]) -> None:
        """Append the rows. Raises StorageError when the disk refuses, KeyError on a metric that was not announced."""
        pending: dict[str, list[tuple[str, ...]]] = {}
        for row in rows:
            pending.setdefault(row.metric, []).append((*self._time_columns(row.timestamp_s), *_value_columns(row)))
        for metric, lines in pending.items():
            self._files[metric].append(_csv_lines(lines))
            self.rows[metric] += len(lines)

    def write_columns(self, times_s: Sequence[float], columns: Sequence[MetricColumn]) -> None:
        """Append what ``write`` would, called with the rows of all columns for one grid time after another.

        Raises StorageError when the disk refuses, KeyError on a metric that was not announced.
        """
        # The columns of one export come metric by metric, with the same times: format them once.
        if times_s is not self._column_times[0]:
            self._column_times = times_s, [",".join(self._time_columns(time_s)) for time_s in times_s]
        together: dict[str, list[list[str]]] = {}
        for column in columns:
            together.setdefault(column.metric, []).append(_column_lines(self._column_times[1], column))
        for metric, lines in together.items():
            self._files[metric].append("".join(chain.from_iterable(zip(*lines, strict=True))).encode())
            self.rows[metric] += len(lines) * len(times_s)

    def close(self) -> None:
        """Make everything survive a power cut. Raises StorageError; may be called twice."""
        try:
            for file in self._files.values():
                file.sync()
            if self._files:
                with storage_errors(self.folder):
                    sync_folder(self.folder)
        finally:
            self._close_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _time_columns(self, timestamp_s: float) -> tuple[str, str]:
        # All rows of one call share a grid time: format it once.
        if self._times is None or self._times[0] != timestamp_s:
            self._times = (timestamp_s, iso(timestamp_s), repr(round(timestamp_s - self.start_s, 6)))
        return self._times[1], self._times[2]

    def _close_all(self) -> None:
        for file in self._files.values():
            file.close()
        self._files = {}


class _LineFile:
    """A new file that only ever holds whole appends."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._end = 0
        try:
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError as error:
            raise ConflictError(
                f"{path} exists already and results are never overwritten.", advice="Start a new attempt folder."
            ) from error
        except OSError as error:
            raise storage_error(error, path) from error

    def append(self, data: bytes) -> None:
        try:
            write_all(self._descriptor, data)
        except OSError as error:
            os.ftruncate(self._descriptor, self._end)
            raise storage_error(error, self._path) from error
        self._end += len(data)

    def sync(self) -> None:
        with storage_errors(self._path):
            os.fsync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)


def _value_columns(row: MetricRow) -> tuple[str, str, str]:
    value = "" if row.value is None else repr(float(row.value))
    return row.series, value, clipped(row.reason, MAX_REASON)


def _column_lines(times: Sequence[str], column: MetricColumn) -> list[str]:
    """One line of the CSV for every grid time."""
    missing = {
        reason: _csv_lines([[column.series, "", clipped(reason, MAX_REASON)]]).decode()
        for reason in set(column.reasons)
    }
    head = missing.pop("", f"{column.series},,\n")[:-2]
    if not missing:
        return [f"{time},{head}{value},\n" for time, value in zip(times, float_texts(column.values), strict=True)]
    return [
        f"{time},{missing[reason]}" if reason else f"{time},{head}{value},\n"
        for time, value, reason in zip(times, float_texts(column.values), column.reasons, strict=True)
    ]


def float_texts(values: Sequence[float]) -> list[str]:
    """``repr`` of every float, six times as fast: orjson writes the same digits, but for what has an exponent."""
    numbers = np.asarray(values, dtype=np.float64)
    if not len(numbers):
        return []
    texts = orjson.dumps(numbers, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1].decode().split(",")
    size = np.abs(numbers)
    for place in np.flatnonzero(~((size >= _LEAST_PLAIN) & (size < _LEAST_EXPONENT)) & (size != 0)):
        texts[place] = repr(float(numbers[place]))
    return texts


def _csv_lines(lines: Iterable[Sequence[str]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue().encode()


def finalise(attempt: Path, final: Path, manifest: Manifest) -> Manifest:
    """Turn a recorded attempt into the experiment's folder ``final`` on the same file system; returns the manifest as written.

    Metrics that are absent get CSVs, ``manifest`` its ``files`` and ``digest``. Can be called again on the same attempt when it was
    killed in the middle: what is made here is made anew. Raises ConflictError where ``final`` exists, StorageError.
    """
    if final.exists():
        raise _taken(final)
    spec = manifest.experiment
    grid = Grid(manifest.start_s, spec.timing.step_s, manifest.rows)
    paths = {
        metric: attempt / metric_file_name(spec.workload.name, spec.replicas, metric, manifest.start_s)
        for metric in spec.metrics
    }
    with storage_errors(attempt):
        for path in attempt.rglob("*.tmp"):
            path.unlink()
    absent_series = {name: metric.level.absent_series for name, metric in CATALOGUE.items()}
    units = {name: metric.unit for name, metric in CATALOGUE.items()}
    fill_absent(paths, grid, manifest.absent_metrics, absent_series)
    rows = _make_tables_of_requests(attempt)
    with storage_errors(attempt):
        with whole_file(attempt / WIDE, replace=True) as wide:
            rows[WIDE] = write_wide(attempt, wide, grid, manifest.provenance.host.cpus)
        with whole_file(attempt / SAMPLES, replace=True) as samples:
            rows[SAMPLES] = write_samples(attempt, samples, units)
        sealed = manifest.model_copy(update={"files": _entries(attempt, rows)}).sealed()
        atomic_write(attempt / MANIFEST, sealed.to_json(), replace=True)
        _sync_tree(attempt)
    _publish(attempt, final)
    return sealed


def _make_tables_of_requests(attempt: Path) -> dict[str, int]:
    """Turn each workload's logs into its table of requests; returns the requests by file."""
    rows: dict[str, int] = {}
    for folder in workload_folders(attempt).values():
        with storage_errors(folder):
            target, logs = folder / REQUESTS, requests.logs_of(folder)
            if logs and not target.is_file():
                with whole_file(target) as temporary:
                    requests.write(folder, temporary)
            for log in logs:
                log.unlink()
            if target.is_file():
                rows[str(target.relative_to(attempt))] = requests.count(target)
    return rows


def _entries(attempt: Path, rows: dict[str, int]) -> dict[str, FileEntry]:
    entries = {}
    for path in sorted(attempt.rglob("*")):
        name = str(path.relative_to(attempt))
        if not path.is_file() or name == MANIFEST:
            continue
        count = count_lines(path) - 1 if path.suffix == ".csv" else rows.get(name)
        entries[name] = FileEntry.of(path, count)
    return entries


def _sync_tree(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            sync_file(path)
        elif path.is_dir():
            sync_folder(path)
    sync_folder(folder)


def _publish(attempt: Path, final: Path) -> None:
    try:
        os.rename(attempt, final)  # noqa: PTH104 - fails on a folder that is not empty; Path.replace says it would not
        sync_folder(final.parent)
        sync_folder(attempt.parent)
    except OSError as error:
        if final.exists() and attempt.exists():
            raise _taken(final) from error
        raise storage_error(error, final) from error


def _taken(final: Path) -> ConflictError:
    return ConflictError(
        f"{final} exists already and results are never overwritten.",
        advice="Another harness finished the same experiment: keep one of the two folders.",
    )
