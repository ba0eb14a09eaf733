"""Whether replicas that are forked measure what new processes measure, and what a start takes.

    python -m tests.benchmarks.forked_starts --device cuda --sharing exclusive time-slicing mps --replicas 3

Starts of either kind in random order. Printed for each mode: the ratio of the mean throughputs with its 95% interval
(Welch), the ratio of the variances between starts with the p of an F test, and the seconds until all replicas had served.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from harness.analysis.statistics import ratio
from harness.analysis.statistics.distributions import f_tail
from harness.backends.local import LocalBackend
from harness.clock import SystemClock
from harness.metrics.catalogue import select
from harness.metrics.recorder import Recorder
from harness.metrics.rows import RecordingRequest
from harness.spec import ExperimentSpec, Limits, Sharing, Timing, WorkloadSpec
from tests.support.fake_metrics import RowList

STEP_S = 0.5
WINDOW_STEPS = 4
SETTLE_S = 0.5
KINDS = ("fresh", "forked")


def main() -> None:
    """Measure and print, mode after mode."""
    wishes = _wishes()
    for mode in wishes.sharing:
        replicas = 1 if mode is Sharing.EXCLUSIVE else wishes.replicas
        kinds = list(KINDS) * wishes.starts
        random.Random(wishes.seed).shuffle(kinds)
        backend = LocalBackend(f"forked-starts-{time.time_ns()}")
        try:
            starts = []
            for kind in kinds:
                starts.append((kind, *_start(wishes, mode, replicas, kind, backend)))
                print(mode.value, *starts[-1], file=sys.stderr, flush=True)
        finally:
            backend.close()
        _print(mode, replicas, starts)


def _wishes() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--workload", default="resnet50")
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    parser.add_argument(
        "--fields", type=json.loads, default={}, help="of the workload, as JSON, such as execution, batch_size"
    )
    parser.add_argument("--sharing", type=Sharing, nargs="+", default=[Sharing.TIME_SLICING])
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--starts", type=int, default=20, help="of each kind, at least 2")
    parser.add_argument("--windows", type=int, default=2, help="measured after each start, 2 s each")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def _start(
    wishes: argparse.Namespace, mode: Sharing, replicas: int, kind: str, backend: LocalBackend
) -> tuple[float, float]:
    """Requests per second of a fresh group of replicas, and the seconds until all had served."""
    experiment = ExperimentSpec(
        workload=WorkloadSpec(name="bench", model=wishes.workload, device=wishes.device, **wishes.fields),
        replicas=replicas,
        sharing=mode,
        repeat=1,
        timing=Timing(step_s=STEP_S, start=kind),
        metrics=["throughput"],
        limits=Limits(),
    )
    with tempfile.TemporaryDirectory() as folder:
        begun_s = time.perf_counter()
        deployment = backend.deploy(experiment, Path(folder), abort=threading.Event(), on_death=print)
        ready_s = time.perf_counter() - begun_s
        try:
            time.sleep(SETTLE_S)
            sink, clock = RowList(), SystemClock()
            request = RecordingRequest(
                metrics=select(["throughput"]), step_s=STEP_S, window_s=WINDOW_STEPS * STEP_S, sink=sink, clock=clock
            )
            start_s = (clock.now_s() // STEP_S + 1 + WINDOW_STEPS) * STEP_S
            Recorder(deployment.targets, request).record(start_s, (wishes.windows - 1) * WINDOW_STEPS + 1)
        finally:
            deployment.stop(timeout_s=10)
    values = [row.value for row in sink.series("throughput", "all")][::WINDOW_STEPS]  # windows that do not overlap
    return float(np.mean([value for value in values if value is not None])), ready_s


def _print(mode: Sharing, replicas: int, starts: Sequence[tuple[str, float, float]]) -> None:
    fresh, forked = ([rate for of, rate, _ in starts if of == kind] for kind in KINDS)
    ready = {kind: float(np.median([seconds for of, _, seconds in starts if of == kind])) for kind in KINDS}
    estimate = ratio(forked, fresh)
    spread = np.var(np.log(forked), ddof=1) / np.var(np.log(fresh), ddof=1)
    tail = f_tail(len(forked) - 1, len(fresh) - 1, float(spread))
    print(
        f"{mode.value}, {replicas} replicas, {len(fresh)} starts of each kind: throughput forked / fresh {estimate.mean:.4f} "
        f"({estimate.low:.4f} to {estimate.high:.4f}), variances {spread:.2f} (F test, p = {2 * min(tail, 1 - tail):.2f}); "
        f"until all had served {ready['fresh']:.2f} s fresh, {ready['forked']:.2f} s forked (medians)",
        flush=True,
    )


if __name__ == "__main__":
    main()
