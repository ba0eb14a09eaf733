"""What the crash tests start in a process of its own, to kill it."""

from __future__ import annotations

import hashlib
from pathlib import Path

from harness.results.files import atomic_write
from harness.results.manifest import Manifest
from harness.results.writers import ExperimentWriter, finalise
from tests.unit.results.synthetic import METRICS, START_S, row_of_everything


def rewrite_for_ever(path: Path) -> None:
    """Replace the file again and again by contents that carry their own hash."""
    generation = 0
    while True:
        generation += 1
        body = f"{generation}\n".encode() * 20_000
        atomic_write(path, hashlib.sha256(body).hexdigest().encode() + b"\n" + body, replace=True)


def record_for_ever(folder: Path) -> None:
    """Write rows as fast as the disk takes them, and say on disk how many ticks were handed over."""
    with (
        ExperimentWriter(folder, workload="resnet50", replicas=1, metrics=METRICS, start_s=START_S, step_s=1) as writer,
        (folder / "ticks").open("wb", buffering=0) as ticks,
    ):
        index = 0
        while True:
            writer.write(row_of_everything(START_S + index))
            ticks.write(b".")
            index += 1


def finalise_once(attempt: Path, final: Path, manifest: Manifest, begun: Path) -> None:
    """Finalise, as the runner does, and say when it begins."""
    begun.touch()
    finalise(attempt, final, manifest)
