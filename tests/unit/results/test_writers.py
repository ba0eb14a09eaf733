from __future__ import annotations

import os
import resource
import subprocess
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from harness.errors import ConflictError, StorageError
from harness.metrics.rows import MetricRow
from harness.results.files import atomic_write
from harness.results.layout import from_iso, iso, metric_files
from harness.results.manifest import Manifest
from harness.results.tables import read_cells
from harness.results.verification import verify_experiment
from harness.results.writers import ExperimentWriter, finalise
from tests.unit.results.synthetic import METRICS, START_S, Shape, experiment_spec, row_of_everything, write_attempt


def writer_in(folder: Path) -> ExperimentWriter:
    return ExperimentWriter(folder, workload="resnet50", replicas=3, metrics=METRICS, start_s=START_S, step_s=1)


@contextmanager
def file_size_limit(limit_bytes: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs takes root; the file size limit is tested for everyone")
    path = tmp_path / "disk"
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", path], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.strip()}")
    yield path
    subprocess.run(["umount", path], check=True)


def test_files_carry_the_names_and_columns_of_the_format(tmp_path: Path) -> None:
    with writer_in(tmp_path / "new") as writer:
        writer.write([MetricRow("latency_p95", "replica-1", START_S + 2, 0.1 + 0.2)])
        writer.write([MetricRow("latency_p95", "all", START_S + 3, None, "the replica\ndied, it says")])
    names = sorted(path.name for path in (tmp_path / "new").iterdir())
    assert names == sorted(f"resnet50_r3_{metric}_20260921T141320Z.csv" for metric in METRICS)
    text = (tmp_path / "new" / "resnet50_r3_latency_p95_20260921T141320Z.csv").read_text()
    assert text.splitlines() == [
        "timestamp,elapsed_s,series,value,reason",
        "2026-09-21T14:13:22.000Z,2.0,replica-1,0.30000000000000004,",
        '2026-09-21T14:13:23.000Z,3.0,all,,"the replica died, it says"',
    ]


def test_rows_come_back_as_they_went_in(tmp_path: Path) -> None:
    rows = [
        MetricRow("throughput", "all", START_S + 0.1, 1 / 3),
        MetricRow("throughput", "all", START_S + 0.2, None, 'said "no", twice'),
        MetricRow("throughput", "all", START_S + 0.3, 0.0),
    ]
    with writer_in(tmp_path) as writer:
        writer.write(rows)
    back = list(read_cells(metric_files(tmp_path)["throughput"], "throughput"))
    assert [(series, value, reason) for series, _, value, reason in back] == [
        (row.series, row.value, row.reason) for row in rows
    ]
    assert [time_s for _, time_s, _, _ in back] == pytest.approx([row.timestamp_s for row in rows], abs=5e-4)


def test_time_round_trips_to_the_millisecond() -> None:
    for time_s in (0.0, 1_790_000_000.0, 1_790_000_000.1, 1_790_000_000.9996, 4_000_000_000.123):
        assert abs(from_iso(iso(time_s)) - time_s) <= 0.0005001
    assert iso(1_790_000_000.9996) == "2026-09-21T14:13:21.000Z"


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    with writer_in(tmp_path) as writer:
        writer.write([MetricRow("throughput", "all", START_S, 1.0)])
    before = metric_files(tmp_path)["throughput"].read_bytes()
    with pytest.raises(ConflictError, match="never overwritten"):
        writer_in(tmp_path)
    assert metric_files(tmp_path)["throughput"].read_bytes() == before


def test_atomic_write_refuses_to_overwrite_unless_told(tmp_path: Path) -> None:
    path = tmp_path / "campaign.json"
    atomic_write(path, "one")
    with pytest.raises(ConflictError, match="exists already"):
        atomic_write(path, "two")
    assert path.read_text() == "one"
    atomic_write(path, b"three", replace=True)
    assert path.read_text() == "three"
    assert [child.name for child in tmp_path.iterdir()] == ["campaign.json"]


def test_a_full_disk_says_so_and_loses_nothing(small_disk: Path) -> None:
    check_full_disk(small_disk / "attempt", match="No space left on device.*Free some space")


def test_a_file_size_limit_says_so_and_loses_nothing(tmp_path: Path) -> None:
    with file_size_limit(5_000):
        check_full_disk(tmp_path / "attempt", match="File too large.*ulimit")


def check_full_disk(folder: Path, *, match: str) -> None:
    written = 0
    with writer_in(folder) as writer, pytest.raises(StorageError, match=match) as caught:  # noqa: PT012 - the first ticks must succeed
        while written < 100_000:
            writer.write(row_of_everything(START_S + written))
            written += 1
    assert str(folder) in str(caught.value)
    assert written > 10
    for metric, file in metric_files(folder).items():
        rows = list(read_cells(file, metric))  # every line parses: the torn one was cut off
        assert len(rows) in {written, written + 1}


def test_a_full_disk_leaves_the_old_file_and_no_leftovers(small_disk: Path) -> None:
    path = small_disk / "state.json"
    atomic_write(path, "old")
    with pytest.raises(StorageError, match="No space left"):
        atomic_write(path, b"x" * 1_000_000, replace=True)
    assert path.read_text() == "old"
    assert [child.name for child in small_disk.iterdir()] == ["state.json"]


def test_an_unwritable_folder_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"Not a directory.*choose another folder"):
        writer_in(tmp_path / "file" / "attempt")


def test_memory_does_not_grow_with_the_recording(tmp_path: Path) -> None:
    with writer_in(tmp_path) as writer:
        for index in range(10):
            writer.write(row_of_everything(START_S + index))
        tracemalloc.start()
        before, _ = tracemalloc.get_traced_memory()
        for index in range(10, 4_000):
            writer.write(row_of_everything(START_S + index))
        _, peak = tracemalloc.get_traced_memory()
        # What other threads of the tests allocate meanwhile is not the writer's.
        kept = tracemalloc.take_snapshot().filter_traces(
            (tracemalloc.Filter(inclusive=True, filename_pattern="*/harness/*"),)
        )
        tracemalloc.stop()
    written_bytes = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert sum(line.size for line in kept.statistics("lineno")) < 20_000
    assert peak - before < 400_000 < written_bytes / 5


def new_attempt(folder: Path) -> tuple[Path, Manifest]:
    shape = Shape(record_s=10)
    spec = experiment_spec("whisper", 1, 1, shape)
    return folder / "attempt", write_attempt(folder / "attempt", spec, shape, START_S)


def test_a_disk_that_fills_up_while_finalising_keeps_the_attempt(small_disk: Path) -> None:
    disk = small_disk
    attempt, manifest = new_attempt(disk)
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as stream, suppress(OSError):
        while stream.write(b"x" * 4096):
            pass
    before = {file: file.read_bytes() for file in metric_files(attempt).values()}
    with pytest.raises(StorageError, match="No space left on device"):
        finalise(attempt, disk / manifest.experiment_id, manifest)
    assert {path: path.read_bytes() for path in before} == before
    assert not (disk / manifest.experiment_id).exists()
    ballast.unlink()
    finalise(attempt, disk / manifest.experiment_id, manifest)
    assert verify_experiment(disk / manifest.experiment_id).ok


def test_a_file_size_limit_while_finalising_keeps_the_attempt(tmp_path: Path) -> None:
    attempt, manifest = new_attempt(tmp_path)
    with file_size_limit(1_000), pytest.raises(StorageError, match="File too large"):
        finalise(attempt, tmp_path / manifest.experiment_id, manifest)
    finalise(attempt, tmp_path / manifest.experiment_id, manifest)
    assert verify_experiment(tmp_path / manifest.experiment_id).ok
