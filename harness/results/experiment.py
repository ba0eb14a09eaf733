"""An attempt becomes an experiment: tables, hashes, the manifest last, then one rename."""

from __future__ import annotations

import os
from pathlib import Path

from harness.errors import ConflictError
from harness.metrics.catalogue import CATALOGUE
from harness.results import requests
from harness.results.files import (
    atomic_write,
    count_lines,
    sha256_of,
    storage_error,
    storage_errors,
    sync_file,
    sync_folder,
)
from harness.results.layout import (
    MANIFEST,
    REQUESTS,
    SAMPLES,
    WIDE,
    metric_file_name,
    workload_folders,
)
from harness.results.manifest import FileEntry, Manifest
from harness.results.tables import Grid, fill_absent, write_samples, write_wide

_TEMPORARY = ".tmp"


def finalise(attempt: Path, final: Path, manifest: Manifest) -> Manifest:
    """Turn a recorded attempt into the experiment's folder.

    Can be called again on the same attempt when it was killed in the middle: what is made here is made anew.

    Args:
        attempt: folder with the metric CSVs (those that are absent are made), logs and ``replicas/replica-<i>/latencies.bin``.
        final: the experiment's folder; must not exist, on the same file system.
        manifest: everything but ``files`` and ``digest``, which are filled in here.

    Returns:
        The manifest as written.

    Raises:
        ConflictError: ``final`` exists; nothing was touched.
        StorageError: the disk refuses; the attempt stays where it is.
    """
    if final.exists():
        raise _taken(final)
    spec = manifest.experiment
    grid = Grid(manifest.start_s, spec.timing.step_s, manifest.rows)
    paths = {
        metric: attempt / metric_file_name(spec.workload.name, spec.replicas, metric, manifest.start_s)
        for metric in spec.metrics
    }
    _remove_leftovers(attempt)
    absent_series = {name: metric.level.absent_series for name, metric in CATALOGUE.items()}
    units = {name: metric.unit for name, metric in CATALOGUE.items()}
    fill_absent(paths, grid, manifest.absent_metrics, absent_series)
    rows = _make_tables_of_requests(attempt)
    with storage_errors(attempt):
        wide, samples = attempt / (WIDE + _TEMPORARY), attempt / (SAMPLES + _TEMPORARY)
        rows[WIDE] = write_wide(attempt, wide, grid, manifest.provenance.host.cpus)
        wide.replace(attempt / WIDE)
        rows[SAMPLES] = write_samples(attempt, samples, units)
        samples.replace(attempt / SAMPLES)
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
                temporary = target.with_name(target.name + _TEMPORARY)
                requests.write(folder, temporary)
                temporary.replace(target)
            for log in logs:
                log.unlink()
            if target.is_file():
                rows[str(target.relative_to(attempt))] = requests.count(target)
    return rows


def _remove_leftovers(attempt: Path) -> None:
    with storage_errors(attempt):
        for path in attempt.rglob(f"*{_TEMPORARY}"):
            path.unlink()


def _entries(attempt: Path, rows: dict[str, int]) -> dict[str, FileEntry]:
    entries = {}
    for path in sorted(attempt.rglob("*")):
        name = str(path.relative_to(attempt))
        if not path.is_file() or name == MANIFEST:
            continue
        count = count_lines(path) - 1 if path.suffix == ".csv" else rows.get(name)
        entries[name] = FileEntry(sha256=sha256_of(path), bytes=path.stat().st_size, rows=count)
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
    except FileExistsError as error:
        raise _taken(final) from error
    except OSError as error:
        if final.exists() and attempt.exists():
            raise _taken(final) from error
        raise storage_error(error, final) from error


def _taken(final: Path) -> ConflictError:
    return ConflictError(
        f"{final} exists already and results are never overwritten.",
        advice="Another harness finished the same experiment: keep one of the two folders.",
    )
