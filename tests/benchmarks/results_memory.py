"""Does turning a recording into a result set take memory that grows with its length?

    python tests/benchmarks/results_memory.py

Records, finalises and verifies the same experiment for 1 h and for 4 h (1 s step, 8 replicas), each in a process
of its own, and prints the peak resident memory and the seconds of each.
"""

from __future__ import annotations

import multiprocessing
import resource
import tempfile
import time
from pathlib import Path

from harness.results.verification import verify_experiment
from harness.results.writers import finalise
from tests.unit.results.synthetic import START_S, Shape, experiment_spec, write_attempt


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(hours: float) -> None:
    shape = Shape(record_s=hours * 3600, step_s=1)
    spec = experiment_spec("whisper", 8, 1, shape)
    with tempfile.TemporaryDirectory() as name:
        attempt, final = Path(name) / "attempt", Path(name) / spec.experiment_id
        times_s = [time.monotonic()]
        manifest = write_attempt(attempt, spec, shape, START_S)
        peaks = [peak_mib()]
        times_s.append(time.monotonic())
        finalise(attempt, final, manifest)
        peaks.append(peak_mib())
        times_s.append(time.monotonic())
        assert verify_experiment(final).ok
        peaks.append(peak_mib())
        times_s.append(time.monotonic())
    for step, peak, begun_s, ended_s in zip(
        ("record", "finalise", "verify"), peaks, times_s, times_s[1:], strict=False
    ):
        print(f"{hours:g} h  {step:9s} peak {peak:6.0f} MiB  {ended_s - begun_s:6.1f} s")


if __name__ == "__main__":
    for hours in (1, 4):
        process = multiprocessing.get_context("spawn").Process(target=measure, args=(hours,))
        process.start()
        process.join()
