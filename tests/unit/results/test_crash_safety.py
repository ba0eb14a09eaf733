"""SIGKILL at any moment: no file that was replaced is ever torn, nothing that was handed over is lost."""

from __future__ import annotations

import hashlib
import multiprocessing
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from harness.results.layout import metric_files
from harness.results.tables import read_cells
from harness.results.verification import verify_experiment
from harness.results.writers import finalise
from tests.unit.results import victims
from tests.unit.results.synthetic import METRICS, START_S, Shape, experiment_spec, write_attempt

KILLS = 40


@pytest.fixture(scope="module")
def forked() -> multiprocessing.context.ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.unit.results.victims", "pyarrow.parquet", "pyarrow.csv"])
    return context


@contextmanager
def running(
    context: multiprocessing.context.ForkServerContext, target: Callable[..., None], *arguments: object
) -> Iterator[None]:
    """Start the victim; SIGKILL it at the end of the block, unless it has ended by itself."""
    process = context.Process(target=target, args=arguments)
    process.start()
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            if process.is_alive():
                process.kill()
        process.join()
        process.close()


def identity(path: Path) -> tuple[int, int]:
    """Changes when the file is replaced; (0, 0) when there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return 0, 0
    return found.st_ino, found.st_mtime_ns


def wait_for(path: Path, other_than: tuple[int, int] = (0, 0)) -> None:
    deadline_s = time.monotonic() + 60
    while identity(path) in {other_than, (0, 0)}:
        assert time.monotonic() < deadline_s, f"{path} was never written"
        time.sleep(0.001)


def test_a_replaced_file_is_always_whole(forked: multiprocessing.context.ForkServerContext, tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    generations = set()
    for _ in range(KILLS):
        before = identity(path)
        with running(forked, victims.rewrite_for_ever, path):
            wait_for(path, other_than=before)
            time.sleep(random.uniform(0, 0.02))
        claimed, _, body = path.read_bytes().partition(b"\n")
        assert hashlib.sha256(body).hexdigest().encode() == claimed
        generations.add(body[:8])
    assert len(generations) > 1, "the writer never got to write a second version: the test proves nothing"


def test_a_killed_recording_keeps_every_row_handed_over(
    forked: multiprocessing.context.ForkServerContext, tmp_path: Path
) -> None:
    for kill in range(10):
        folder = tmp_path / str(kill)
        with running(forked, victims.record_for_ever, folder):
            wait_for(folder / "ticks")
            time.sleep(random.uniform(0.005, 0.05))
        ticks = (folder / "ticks").stat().st_size
        files = metric_files(folder)
        assert set(files) == set(METRICS)
        cut = 0
        for metric, file in files.items():
            whole, newline, rest = file.read_bytes().rpartition(b"\n")
            cut += bool(rest)
            file.write_bytes(whole + newline)
            times_s = [time_s for _, time_s, _, _ in read_cells(file, metric)]
            assert len(times_s) in {ticks, ticks + 1}
            assert not (rest and len(times_s) > ticks)
            assert times_s == [START_S + index for index in range(len(times_s))]
        # The kernel may end a write where a page does: the row that was being written, which nobody was told of.
        assert cut <= 1


def test_an_experiment_is_whole_or_absent_and_can_be_finalised_again(
    forked: multiprocessing.context.ForkServerContext, tmp_path: Path
) -> None:
    shape = Shape(record_s=30)
    spec = experiment_spec("resnet50", 1, 1, shape)
    calm = write_attempt(tmp_path / "calm", spec, shape, START_S)
    begun_s = time.monotonic()
    finalise(tmp_path / "calm", tmp_path / spec.experiment_id, calm)
    usual_s = time.monotonic() - begun_s
    absent = 0
    for kill in range(25):
        attempt, final = tmp_path / f"attempt-{kill}", tmp_path / str(kill) / spec.experiment_id
        final.parent.mkdir()
        manifest = write_attempt(attempt, spec, shape, START_S)
        begun = tmp_path / f"begun-{kill}"
        with running(forked, victims.finalise_once, attempt, final, manifest, begun):
            wait_for(begun)
            time.sleep(random.uniform(0, usual_s))
        if not final.exists():
            absent += 1
            finalise(attempt, final, manifest)
        outcome = verify_experiment(final)
        assert outcome.ok, outcome.problems
        assert not outcome.notes
        assert not attempt.exists()
    assert absent, "no kill came before the rename: the test proves nothing"
