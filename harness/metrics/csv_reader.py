"""Reads the metric CSVs of one experiment back as columns, for the checks that look at whole series."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.errors import MetricsError
from harness.metrics.catalogue import CATALOGUE

_SMALL_BYTES = 1 << 18
_FILE = re.compile(r"_r(?P<replicas>\d+)_(?P<metric>[a-z0-9_]+)_\d{8}T\d{6}Z\.csv$")


@dataclass(frozen=True, slots=True)
class CodedTexts:
    """A column of few different texts: ``words``, in the order of their first rows, and the place of each row's among them."""

    words: list[str]
    places: NDArray[np.int32]

    def of(self, rows: slice) -> CodedTexts:
        """The same of some rows."""
        places = self.places[rows]
        used, first = np.unique(places, return_index=True)
        used = used[np.argsort(first)]
        renumbered = np.empty(len(self.words), np.int32)
        renumbered[used] = np.arange(len(used))
        return CodedTexts([self.words[place] for place in used], renumbered[places])


Columns = tuple[NDArray[np.float64], CodedTexts, NDArray[np.float64], CodedTexts]
"""Seconds since row 0, the series' name, the value (NaN where missing) and the reason (empty where none) of each row."""


@dataclass(frozen=True, slots=True)
class SeriesColumns:
    """One series: seconds since row 0, values (NaN where missing), and how often each reason was given."""

    elapsed_s: NDArray[np.float64]
    values: NDArray[np.float64]
    reasons: Mapping[str, int]

    @property
    def present(self) -> NDArray[np.float64]:
        """The values that are there."""
        return self.values[~np.isnan(self.values)]


@dataclass(frozen=True, slots=True)
class ExperimentColumns:
    """Every series of one experiment, by metric and series name."""

    replicas: int
    metrics: Mapping[str, Mapping[str, SeriesColumns]]


def read_experiment(folder: Path) -> ExperimentColumns:
    """The metric CSVs of one experiment's folder. Raises MetricsError: there is none, or one is not as the harness writes them."""
    named = [(path, match) for path in sorted(folder.glob("*.csv")) if (match := _FILE.search(path.name))]
    named = [(path, match) for path, match in named if path.is_file()]
    paths = {match["metric"]: path for path, match in named if match["metric"] in CATALOGUE}
    together = read_together(paths)
    metrics = {name: _read(path, together.get(name)) for name, path in paths.items()}
    if not metrics:
        raise MetricsError(f"{folder} holds no CSV of any metric.", advice="Give the folder of an experiment.")
    replicas = max(int(match["replicas"]) for _, match in named)
    return ExperimentColumns(replicas, {name: metrics[name] for name in CATALOGUE if name in metrics})


def read_columns(path: Path) -> Columns:
    """The rows of one metric CSV, in their order. Raises MetricsError where it is none of the harness's, OSError."""
    import pyarrow as pa

    try:
        return _parsed(path.read_bytes())
    except pa.ArrowException as error:
        raise _no_csv(path, error) from error


def read_together(paths: Mapping[str, Path]) -> dict[str, Columns]:
    """What ``read_columns`` gives of the small ones of several CSVs by their names: to begin to read takes longer than such a file.

    Empty where one of them cannot be read, or is not as the harness writes it.
    """
    import pyarrow as pa

    try:
        contents = {name: path.read_bytes() for name, path in paths.items() if path.stat().st_size <= _SMALL_BYTES}
        heads = {content[: content.find(b"\n") + 1] for content in contents.values()}
        if len(heads) != 1 or not all(content.endswith(b"\n") for content in contents.values()):
            return {}
        (head,) = heads
        rows = [content.count(b"\n") - 1 for content in contents.values()]
        elapsed_s, names, values, reasons = _parsed(
            head + b"".join(content[len(head) :] for content in contents.values())
        )
    except (OSError, pa.ArrowException):
        return {}
    if len(values) != sum(rows):
        return {}  # a quoted line end, or a line with nothing in it
    ends = np.cumsum(rows)
    parts = zip(contents, map(slice, ends - rows, ends), strict=True)
    return {name: (elapsed_s[own], names.of(own), values[own], reasons.of(own)) for name, own in parts}


def _parsed(content: bytes) -> Columns:
    import pyarrow as pa
    from pyarrow import csv

    text = pa.dictionary(pa.int32(), pa.string())
    types = {"elapsed_s": pa.float64(), "series": text, "value": pa.float64(), "reason": text}
    convert = csv.ConvertOptions(column_types=types, include_columns=list(types))
    # From memory and in this thread: to hand a small file from thread to thread takes longer than to read it.
    here = csv.ReadOptions(use_threads=False)
    table = csv.read_csv(pa.py_buffer(content), read_options=here, convert_options=convert)
    # Not by Arrow's to_numpy, which imports all of pandas to see whether it was given some of it.
    batches = table.select(["elapsed_s", "value"]).to_batches()
    numbers = np.concatenate([np.empty((0, 2)), *(batch.to_tensor(null_to_nan=True).to_numpy() for batch in batches)])
    names, reasons = (table[name].combine_chunks() for name in ("series", "reason"))
    return numbers[:, 0], _texts(names), numbers[:, 1], _texts(reasons)


def _texts(column: Any) -> CodedTexts:
    places = np.asarray(np.from_dlpack(column.indices), dtype=np.int32)
    return CodedTexts(column.dictionary.to_pylist(), places)


def _read(path: Path, columns: Columns | None) -> dict[str, SeriesColumns]:
    try:
        elapsed_s, names, values, reasons = columns or read_columns(path)
    except OSError as error:
        raise _no_csv(path, error) from error
    return {name: _series(names.places == place, elapsed_s, values, reasons) for place, name in enumerate(names.words)}


def _no_csv(path: Path, error: Exception) -> MetricsError:
    return MetricsError(
        f"{path} is not a CSV of the harness: {str(error).splitlines()[0]}.",
        advice="Verify the experiment; the file was damaged or edited.",
    )


def _series(
    rows: NDArray[np.bool_], elapsed_s: NDArray[np.float64], values: NDArray[np.float64], reasons: CodedTexts
) -> SeriesColumns:
    counts = np.bincount(reasons.places[rows], minlength=len(reasons.words)).tolist()
    given = {text: count for text, count in sorted(zip(reasons.words, counts, strict=True)) if text and count}
    return SeriesColumns(elapsed_s[rows], values[rows], given)
