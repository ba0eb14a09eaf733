"""How much the recorder grows: 24 h at a step of 1 s with 8 replicas, fed from a generator, on a simulated clock.

    python -m tests.benchmarks.recorder_memory [--hours 24] [--replicas 8]

The bar: less than 50 MB added. Real are the windows, the arithmetic, the rows, the summary and the CSV writer; only
the readings come from a generator, and no second is slept. Takes a few minutes.
"""

from __future__ import annotations

import argparse
import gc
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil

from harness.metrics.catalogue import select
from harness.metrics.recorder import Recorder, ReplicaTarget
from harness.metrics.rows import RecordingRequest
from harness.metrics.scrape import ReplicaSample
from harness.replica.custom_metrics import BUCKET_BOUNDS_NS
from harness.results.writers import ExperimentWriter
from tests.support.fake_metrics import FakeGpus, fake_sources, replica_sample
from tests.support.simulated_clock import SimulatedClock

BAR_BYTES = 50e6
START_S = 1_800_000_000.0
BOUNDS = np.array([*(bound_ns / 1e9 for bound_ns in BUCKET_BOUNDS_NS), np.inf])
# 100 requests a second around 5 ms, spread over a dozen buckets.
SHARES = np.exp(-(((np.log(np.minimum(BOUNDS, 60)) - np.log(0.005)) / 0.3) ** 2))
PER_SECOND = np.cumsum(100 * SHARES / SHARES.sum())


def served(replica: int, scrape: int) -> ReplicaSample:
    seconds = scrape + 10 + replica
    head = [100.0 * seconds, 0.5 * seconds, 100.0 * seconds]
    return replica_sample(np.concatenate([head, np.rint(PER_SECOND * seconds)]), BOUNDS)


def rss_bytes() -> int:
    gc.collect()
    return psutil.Process().memory_info().rss


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=24)
    parser.add_argument("--replicas", type=int, default=8)
    options = parser.parse_args()
    rows, metrics = round(options.hours * 3600) + 1, select("all")
    targets = [ReplicaTarget(index, 1000 + index, "http://127.0.0.1:1/metrics") for index in range(options.replicas)]
    seen: list[tuple[int, int]] = []

    def on_tick(done: int, _total: int) -> None:
        # The first minute fills windows and buffers; what follows is what a long recording adds.
        if done == 60 or done % 3600 == 0:
            seen.append((done, rss_bytes()))

    with tempfile.TemporaryDirectory() as folder:
        writer = ExperimentWriter(
            Path(folder),
            workload="generated",
            replicas=options.replicas,
            metrics=[metric.name for metric in metrics],
            start_s=START_S,
            step_s=1.0,
        )
        request = RecordingRequest(
            metrics=metrics,
            step_s=1.0,
            window_s=4.0,
            sink=writer,
            clock=SimulatedClock(START_S - 10),
            on_tick=on_tick,
        )
        recorder = Recorder(targets, request, sources=fake_sources(options.replicas, served, gpus=FakeGpus(1)))
        before, begun_s = rss_bytes(), time.monotonic()
        with writer:
            summary = recorder.record(START_S, rows)
        after, seconds = rss_bytes(), time.monotonic() - begun_s
        written = sum(path.stat().st_size for path in Path(folder).iterdir())
    peak = max(size for _, size in [*seen, (rows, after)])
    added, grown = peak - before, after - seen[0][1]
    values = sum(metric.values for metric in summary.metrics.values())
    print(
        f"{options.hours:g} h at 1 s with {options.replicas} replicas: {values:,} values in {seconds:.0f} s "
        f"({seconds / rows * 1e3:.2f} ms a tick), {written / 1e6:.0f} MB of CSV; memory {before / 1e6:.1f} MB before, "
        f"peak +{added / 1e6:.2f} MB, after the first minute {grown / 1e6:+.2f} MB; "
        f"bar 50 MB: {'met' if added < BAR_BYTES else 'MISSED'}"
    )
    return 0 if added < BAR_BYTES else 1


if __name__ == "__main__":
    raise SystemExit(main())
