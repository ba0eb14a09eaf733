"""An experiment as a published set may hold it: a fifth of the size, its times rounded to a resolution that its manifest says."""

from __future__ import annotations

import json
import re
from pathlib import Path, PurePosixPath

import numpy as np

from harness.errors import UsageError
from harness.metrics.nvml import ACTIVITY, six_digits
from harness.results import packed, requests
from harness.results.files import read_object, sha256_of, storage_errors
from harness.results.layout import LATENCIES, MANIFEST, RAW_LATENCIES, REPLICAS, REQUESTS, SAMPLES, SERVICES, TELEMETRY
from harness.results.manifest import Condensed, FileEntry, content_digest, read_manifest

_LOGS = {
    RAW_LATENCIES: requests.LATENCY,
    SERVICES: requests.LATENCY,
    requests.GAPS_LOG: requests.GAP,
}
"""Logs of times beside the table of requests, by the names under which replicas write them."""


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
    made = _packed(folder, into, list(manifest.files), resolution_ns)
    if TELEMETRY in manifest.files and (shorter := _with_six_digits(folder / TELEMETRY)):
        with storage_errors(into / TELEMETRY):
            into.mkdir(parents=True, exist_ok=True)
            (into / TELEMETRY).write_bytes(shorter)
        made[TELEMETRY] = [TELEMETRY]
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
        "files": {name: listed[name].model_dump() for name in sorted(listed)},
        "condensed": condensed.model_dump(),
    }
    files[MANIFEST] = into / MANIFEST
    with storage_errors(into):
        into.mkdir(parents=True, exist_ok=True)
        files[MANIFEST].write_text(json.dumps(content | {"digest": content_digest(content)}, indent=2) + "\n")
    return files


def _packed(folder: Path, into: Path, names: list[str], resolution_ns: int) -> dict[str, list[str]]:
    """Pack the requests and the logs of times among these files; the names that are new, with those that they replace."""
    made: dict[str, list[str]] = {}
    for place in dict.fromkeys(name for name in map(_of_requests, names) if name is not None):
        table = requests.read(folder / place)
        if table is not None:
            name = str(place / REQUESTS)
            with storage_errors(into):
                (into / name).parent.mkdir(parents=True, exist_ok=True)
            requests.pack_table(table, into / name, resolution_ns)
            made[name] = [source for source in names if _of_requests(source) == place]
    for name in names:
        path = PurePosixPath(name)
        raw = path.with_suffix(".bin").name
        if REPLICAS in path.parts and raw in _LOGS and path.suffix in {".bin", ".parquet", packed.OLD_SUFFIX}:
            records = requests.records_of(folder / name, _LOGS[raw])
            columns = records.dtype.names or ()
            with storage_errors(into):
                (into / name).parent.mkdir(parents=True, exist_ok=True)
            target = str(path.with_suffix(".parquet"))
            packed.pack(into / target, columns, np.stack([records[one] for one in columns], axis=1), resolution_ns)
            made[target] = [name]
    return made


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
