"""How punctual the recorder's ticks are: 8 real replica processes, every metric, at a step of 100 ms and of 1 s.

    python -m tests.benchmarks.recorder_tick [--replicas 8] [--steps 0.1 1] [--seconds 60]

The bar: at p99 a tick begins at most 20 ms after its schedule. Printed besides: how long a tick's work takes (from its
schedule to its last row in the CSVs), and the recorder's own CPU share.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

from harness.clock import SystemClock
from harness.metrics.catalogue import select
from harness.metrics.recorder import Recorder, ReplicaTarget
from harness.metrics.rows import RecordingRequest
from harness.results.writers import ExperimentWriter
from tests.support.replicas import running_replicas

BAR_S = 0.020


class BusyService:
    """A replica that answers every 5 ms: half of it waiting, as for a GPU, half of a tenth of it computing."""

    name = "busy"

    def infer(self) -> int:
        end_s = time.perf_counter() + 0.0002
        while time.perf_counter() < end_s:
            pass
        time.sleep(0.0048)
        return 1


def make(_settings: object) -> BusyService:
    return BusyService()


class TimedWriter:
    """The writer of results, with the time at which each tick's rows were written."""

    def __init__(self, writer: ExperimentWriter, clock: SystemClock) -> None:
        self.writer, self.clock = writer, clock
        self.work_s: list[float] = []

    def write(self, rows: object) -> None:
        every = list(rows)  # type: ignore[call-overload]
        self.writer.write(every)
        self.work_s.append(self.clock.now_s() - every[0].timestamp_s)


def measure(targets: list[ReplicaTarget], step_s: float, seconds: float, folder: Path) -> bool:
    clock, metrics = SystemClock(), select("all")
    start_s = (int(clock.now_s() / step_s) + 6) * step_s
    names = [metric.name for metric in metrics]
    with ExperimentWriter(
        folder / f"step-{step_s:g}",
        workload="busy",
        replicas=len(targets),
        metrics=names,
        start_s=start_s,
        step_s=step_s,
    ) as writer:
        sink = TimedWriter(writer, clock)
        request = RecordingRequest(metrics=metrics, step_s=step_s, window_s=4 * step_s, sink=sink, clock=clock)
        recorder = Recorder(targets, request)
        cpu_s, begun_s = time.process_time(), time.monotonic()
        summary = recorder.record(start_s, round(seconds / step_s) + 1)
        cpu = (time.process_time() - cpu_s) / (time.monotonic() - begun_s)
    late = summary.lateness
    p50, p99 = np.quantile(sink.work_s, [0.5, 0.99])
    missing = sum(metric.missing for metric in summary.metrics.values())
    met = late.p99_s <= BAR_S and not late.missed
    print(
        f"step {step_s:g} s, {len(targets)} replicas, {late.ticks} ticks: late p50 {late.p50_s * 1e3:.2f} ms, "
        f"p99 {late.p99_s * 1e3:.2f} ms, max {late.max_s * 1e3:.2f} ms, missed {late.missed}; "
        f"done p50 {p50 * 1e3:.1f} ms, p99 {p99 * 1e3:.1f} ms; recorder {cpu:.1%} of a CPU; {missing} values missing; "
        f"bar 20 ms at p99: {'met' if met else 'MISSED'}"
    )
    return met


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", type=int, default=8)
    parser.add_argument("--steps", type=float, nargs="+", default=[0.1, 1.0])
    parser.add_argument("--seconds", type=float, default=60)
    options = parser.parse_args()
    workload = "tests.benchmarks.recorder_tick:make"
    with (
        tempfile.TemporaryDirectory() as folder,
        running_replicas(workload, options.replicas, Path(folder), before=()) as targets,
    ):
        met = [measure(targets, step_s, options.seconds, Path(folder)) for step_s in options.steps]
    return 0 if all(met) else 1


if __name__ == "__main__":
    raise SystemExit(main())
