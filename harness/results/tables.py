"""The tables made of the metric CSVs: absent metrics filled in, ``wide.csv``, ``samples.parquet``.

Every function streams: memory does not grow with the length of the recording.
"""

from __future__ import annotations

import csv
import itertools
import operator
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.errors import ResultsPathError, clipped
from harness.metrics.rows import MetricRow
from harness.results.files import storage_errors
from harness.results.layout import MAX_REASON, METRIC_COLUMNS, WIDE_COLUMNS, from_iso, iso, metric_files


@dataclass(frozen=True, slots=True)
class Grid:
    """The times of a recording: ``start_s + k * step_s`` for k below ``rows``."""

    start_s: float
    step_s: float
    rows: int

    def times_s(self) -> Iterator[float]:
        """All grid times, seconds since the epoch."""
        return (self.start_s + index * self.step_s for index in range(self.rows))


def read_cells(path: Path, metric: str) -> Iterator[tuple[str, float, float | None, str]]:
    """The rows of one metric CSV, in the file's order: series, time in seconds since the epoch, value, reason.

    Raises ResultsPathError (a line is not what the harness writes; says which), StorageError (the file cannot be read).
    """
    with storage_errors(path, "read"), path.open(newline="", encoding="utf-8") as stream:
        reader = csv.reader(stream)
        try:
            if tuple(next(reader, ())) != METRIC_COLUMNS:
                raise ResultsPathError(f"{path} line 1: the columns must be {','.join(METRIC_COLUMNS)}.")
            for timestamp, _, series, value, reason in reader:
                cells = series, from_iso(timestamp), float(value) if value else None, reason
                if (not value) is (not reason):
                    MetricRow(metric, *cells)  # raises: it has neither or both
                yield cells
        except (ValueError, OverflowError, csv.Error) as error:
            raise ResultsPathError(f"{path} line {reader.line_num}: {error}.") from error


def fill_absent(paths: Mapping[str, Path], grid: Grid, reasons: Mapping[str, str], series: Mapping[str, str]) -> None:
    """Give every metric that has no row yet a CSV with one empty row per grid time, filed under its series, and the reason."""
    for metric, path in paths.items():
        if path.exists() and next(read_cells(path, metric), None) is not None:
            continue
        reason = clipped(reasons.get(metric, "nothing was recorded"), MAX_REASON)
        with storage_errors(path), path.open("w", newline="", encoding="utf-8") as stream:
            writer = csv.writer(stream, lineterminator="\n")
            writer.writerow(METRIC_COLUMNS)
            writer.writerows(
                (iso(time_s), repr(round(time_s - grid.start_s, 6)), series.get(metric, "node"), "", reason)
                for time_s in grid.times_s()
            )


def write_wide(folder: Path, target: Path, grid: Grid, cpus: int) -> int:
    """Write the one-row-per-time table for model training; returns its number of rows."""
    with storage_errors(target), target.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream, lineterminator="\n").writerows(
            itertools.chain([WIDE_COLUMNS], wide_rows(folder, grid, cpus))
        )
    return grid.rows


def wide_rows(folder: Path, grid: Grid, cpus: int) -> Iterator[list[str]]:
    """The rows of ``wide.csv``, made of the metric CSVs in ``folder``.

    Columns: ``cpu_util`` percent of the node's ``cpus``, ``ram_usage`` bytes, ``gpu_util`` percent (mean over GPUs),
    ``gpu_memory`` bytes (sum over GPUs), ``latency`` mean seconds. What was not measured is empty.
    """
    columns: dict[str, Callable[[Mapping[str, float]], float | None]] = {
        "cpu_usage": lambda cells: 100.0 * cells["all"] / cpus if "all" in cells else None,
        "memory_usage": lambda cells: cells.get("all"),
        "gpu_utilization": lambda cells: sum(gpus) / len(gpus) if (gpus := _of_gpus(cells)) else None,
        "gpu_memory": lambda cells: sum(gpus) if (gpus := _of_gpus(cells)) else None,
        "latency_avg": lambda cells: cells.get("all"),
    }
    files = metric_files(folder)
    readings = [_by_time(files[name], name) if name in files else iter(()) for name in columns]
    heads = [next(reading, None) for reading in readings]
    for time_s in grid.times_s():
        row = [iso(time_s)]
        for index, number_of in enumerate(columns.values()):
            while (head := heads[index]) is not None and head[0] < time_s - grid.step_s / 2:
                heads[index] = next(readings[index], None)
            number = number_of(head[1]) if head and abs(head[0] - time_s) < grid.step_s / 2 else None
            row.append("" if number is None else repr(number))
        yield row


def _of_gpus(cells: Mapping[str, float]) -> list[float]:
    return [value for series, value in cells.items() if series.startswith("gpu-")]


def _by_time(path: Path, metric: str) -> Iterator[tuple[float, dict[str, float]]]:
    for time_s, rows in itertools.groupby(read_cells(path, metric), key=operator.itemgetter(1)):
        yield time_s, {series: value for series, _, value, _ in rows if value is not None}


def write_samples(folder: Path, target: Path, units: Mapping[str, str]) -> int:
    """Write every row of every metric CSV to one tidy Parquet file; returns the number of rows.

    Columns: timestamp (ms, UTC), metric, series, value (null when missing), reason, unit.
    """
    import pyarrow as pa
    import pyarrow.csv as pc
    import pyarrow.parquet as pq

    text = pa.dictionary(pa.int32(), pa.string())
    times = pa.timestamp("ms", "UTC")
    types = {"timestamp": times, "metric": text, "series": text, "value": pa.float64(), "reason": text, "unit": text}
    schema = pa.schema(list(types.items()))
    read_types = {name: types[name] for name in ("timestamp", "series", "value", "reason")}
    convert = pc.ConvertOptions(column_types=read_types, include_columns=list(read_types), strings_can_be_null=False)

    def repeated(word: str, rows: int) -> Any:
        # Of buffers, because pa.array and pa.scalar import all of pandas to see whether they were given some of it.
        end = len(word.encode())
        words = pa.StringArray.from_buffers(1, pa.py_buffer(struct.pack("=2i", 0, end)), pa.py_buffer(word.encode()))
        first = pa.Array.from_buffers(pa.int32(), rows, [None, pa.py_buffer(bytes(4 * rows))])
        return pa.DictionaryArray.from_arrays(first, words)

    written = 0
    with storage_errors(target), pq.ParquetWriter(target, schema, compression="zstd") as writer:
        for metric, path in metric_files(folder).items():
            constant = {"metric": metric, "unit": units.get(metric, "")}
            for batch in _batches(path, convert):
                columns = [
                    repeated(constant[name], batch.num_rows) if name in constant else batch.column(name)
                    for name in schema.names
                ]
                writer.write_table(pa.table(columns, schema=schema))
                written += batch.num_rows
    return written


def differing_samples(folder: Path, path: Path) -> str:
    """The first metric whose CSV and ``samples.parquet`` do not hold the same values; empty when all do.

    Raises ResultsPathError when one of them is not ours.
    """
    import pyarrow as pa
    import pyarrow.csv as pc
    import pyarrow.parquet as pq

    convert = pc.ConvertOptions(column_types={"value": pa.float64()}, include_columns=["value"])
    end = object()
    try:
        with storage_errors(path, "read"), pq.ParquetFile(path) as file:
            batches = file.iter_batches(columns=["value"])
            kept = itertools.chain.from_iterable(batch.column(0).to_pylist() for batch in batches)
            for metric, table in metric_files(folder).items():
                for batch in _batches(table, convert):
                    if any(next(kept, end) != value for value in batch.column(0).to_pylist()):
                        return metric
            return "" if next(kept, end) is end else "a metric without a CSV"
    except (pa.ArrowException, IndexError) as error:
        raise ResultsPathError(f"{path} is not a table of this harness: {error}.") from error


def _batches(path: Path, convert: Any) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.csv as pc

    try:
        with pc.open_csv(path, convert_options=convert) as reader:
            yield from reader
    except pa.ArrowException as error:
        raise ResultsPathError(f"{path} is not a metric table of this harness: {error}.") from error
