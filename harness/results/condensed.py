"""An experiment as a published set may hold it: a fifth of the size, its times rounded to a resolution that its manifest says."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path, PurePosixPath

import numpy as np

from harness.errors import UsageError
from harness.metrics.nvml import ACTIVITY, six_digits
from harness.results import latencies, times
from harness.results.files import read_object, sha256_of, storage_errors
from harness.results.layout import LATENCIES, MANIFEST, REPLICAS, SAMPLES, SERVICES, TELEMETRY
from harness.results.manifest import Condensed, FileEntry, content_digest, read_manifest

_PAIR = ("start_ns", "latency_ns")
_REQUEST = ("intended_ns", "send_error_ns", "latency_ns")
_LOGS = {
    (LATENCIES, ".parquet"): _PAIR,
    (REPLICAS, SERVICES): _PAIR,
    (REPLICAS, "gaps.bin"): ("start_ns", "gap_ns"),
    (REPLICAS, "requests.bin"): (*_REQUEST, "ttft_ns", "itl_p99_ns", "input_tokens", "output_tokens", "status"),
    ("load", "requests.bin"): (*_REQUEST, "status"),
}
"""Folder, name or ending: the columns of every log of times."""


def condense(folder: Path, into: Path, resolution_ns: int) -> dict[str, Path]:
    """Write what takes the place of an experiment's files below ``into``, a new folder; returns all its files by name.

    Logs of times become ``.times`` files; ``samples.parquet``, which is made of the CSVs, is left out; the manifest lists what
    is there, and keeps the hashes of what was recorded. One that is condensed already gets its logs as they are written now.

    Raises:
        UsageError: the experiment was condensed before, to another resolution.
        ResultsPathError: a file is not ours.
        StorageError: a file cannot be read or written.
    """
    manifest = read_manifest(folder)
    files = {name: folder / name for name in (MANIFEST, *manifest.files)}
    if manifest.condensed and manifest.condensed.resolution_ns != resolution_ns:
        raise UsageError(
            f"{folder.name} was published with a resolution of {manifest.condensed.resolution_ns} ns already.",
            advice="Publish the campaign as it was recorded, or leave --resolution out.",
        )
    listed, recorded = dict(manifest.files), {}
    for name in manifest.files:
        path = folder / name
        if path.suffix == times.SUFFIX:
            columns, table = times.read(path)
            tables = iter([table])
        elif found := _columns(PurePosixPath(name)):
            columns, tables = list(found), _tables(path, len(found))
        else:
            if name == SAMPLES:
                recorded[name] = listed.pop(name)
                del files[name]
            elif name == TELEMETRY and (shorter := _with_six_digits(path)):
                recorded[name] = listed[name]
                files[name] = into / name
                with storage_errors(files[name]):
                    into.mkdir(parents=True, exist_ok=True)
                    files[name].write_bytes(shorter)
                listed[name] = FileEntry(
                    sha256=sha256(shorter).hexdigest(), bytes=len(shorter), rows=recorded[name].rows
                )
            continue
        short = str(PurePosixPath(name).with_suffix(times.SUFFIX))
        before = listed.pop(name)
        if short != name:
            recorded[name] = before
        del files[name]
        files[short] = into / short
        with storage_errors(files[short]):
            files[short].parent.mkdir(parents=True, exist_ok=True)
        times.write(files[short], columns, tables, resolution_ns)
        with storage_errors(files[short], "read"):
            size = files[short].stat().st_size
            listed[short] = FileEntry(sha256=sha256_of(files[short]), bytes=size, rows=before.rows)
    before_it = manifest.condensed or Condensed(
        resolution_ns=resolution_ns, recorded={}, recorded_digest=manifest.digest
    )
    made = before_it.model_copy(update={"recorded": before_it.recorded | recorded})
    content = read_object(folder / MANIFEST) | {
        "files": {name: listed[name].model_dump() for name in sorted(listed)},
        "condensed": made.model_dump(),
    }
    files[MANIFEST] = into / MANIFEST
    with storage_errors(into):
        into.mkdir(parents=True, exist_ok=True)
        files[MANIFEST].write_text(json.dumps(content | {"digest": content_digest(content)}, indent=2) + "\n")
    return files


def _columns(name: PurePosixPath) -> tuple[str, ...]:
    """Of the log of times that has this name; none of any other file."""
    for (folder, ending), columns in _LOGS.items():
        if folder in name.parts[:-1] and name.name.endswith(ending):
            return columns
    return ()


def _with_six_digits(path: Path) -> bytes | None:
    """The telemetry with the GPU's counters as they are recorded now; None where they are like that already, or not there."""
    with storage_errors(path, "read"):
        content = path.read_bytes()
    head, *lines = content.decode().splitlines()
    columns = [place for place, name in enumerate(head.split(",")) if re.sub(r"^gpu\d+_", "", name) in ACTIVITY]
    rows = [line.split(",") for line in lines]
    for row in rows:
        for place in columns:
            row[place] = repr(six_digits(float(row[place]))) if row[place] else ""
    made = "".join(f"{','.join(row)}\n" for row in [[head], *rows]).encode()
    return made if made != content else None


def _tables(path: Path, columns: int) -> Iterator[times.Integers]:
    """The rows of a log, in pieces. A torn last record is left out, as every reader leaves it."""
    if path.suffix == ".parquet":
        yield latencies.read(path).view("<i8").reshape(-1, columns)
        return
    size = columns * np.dtype("<i8").itemsize
    with storage_errors(path, "read"), path.open("rb") as stream:
        while data := stream.read(times.BLOCK_ROWS * size):
            yield np.frombuffer(data, "<i8", count=len(data) // size * columns).reshape(-1, columns)
