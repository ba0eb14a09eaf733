"""What recording costs a replica: throughput with the recorder on against off, interleaved, in one deployment.

    python -m tests.benchmarks.recording_cost --workload resnet50 --device cuda --batch-size 8 --execution cuda-graph

Windows with and without recorder and telemetry alternate in the order ABBA while the replicas keep serving.
The cost of a round is 1 - on/off; printed are the mean over the rounds and its 95% t-interval.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from harness.backends.local import LocalBackend
from harness.clock import SystemClock
from harness.metrics.catalogue import select
from harness.metrics.recorder import Recorder
from harness.metrics.rows import RecordingRequest
from harness.metrics.telemetry import Telemetry
from harness.results import layout
from harness.results.requests import LATENCY, records_of
from harness.spec import Execution, ExperimentSpec, Limits, Sharing, Timing, WorkloadSpec
from tests.benchmarks.loop_efficiency import mean_and_half
from tests.support.fake_metrics import RowList

SETTLE_S = 3.0


def main() -> None:
    """Measure and print."""
    wishes = _wishes()
    metrics = select("all")
    experiment = ExperimentSpec(
        workload=WorkloadSpec(
            name="bench",
            model=wishes.workload,
            device=wishes.device,
            threads=wishes.threads,
            batch_size=wishes.batch_size,
            execution=wishes.execution,
            options=_options(wishes),
        ),
        replicas=wishes.replicas,
        sharing=Sharing.TIME_SLICING,
        repeat=1,
        timing=Timing(step_s=wishes.step),
        metrics=[metric.name for metric in metrics],
        limits=Limits(),
    )
    with tempfile.TemporaryDirectory() as folder:
        windows = _measure(experiment, Path(folder), wishes)
        logs = [layout.replica_folder(Path(folder), index) / layout.RAW_LATENCIES for index in range(wishes.replicas)]
        starts = np.sort(np.concatenate([records_of(log, LATENCY)["start_ns"] for log in logs]))
    rates = [(on, _rate(starts, begin_s, end_s)) for on, begin_s, end_s in windows]
    _print(rates, wishes)


def _wishes() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workload", default="resnet50")
    parser.add_argument("--tiny", action="store_true", help="the small model, for a CPU")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--execution", choices=list(Execution), type=Execution, default=Execution.EAGER)
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--step", type=float, default=1.0)
    parser.add_argument("--seconds", type=float, default=5.0, help="of one window")
    parser.add_argument("--rounds", type=int, default=10)
    return parser.parse_args()


def _options(wishes: argparse.Namespace) -> dict[str, str | int | float | bool]:
    return {"model_size": "tiny"} if wishes.tiny else {}


def _measure(experiment: ExperimentSpec, folder: Path, wishes: argparse.Namespace) -> list[tuple[bool, float, float]]:
    """Windows as (recorder on, begin, end), seconds since the epoch."""
    backend = LocalBackend(f"recording-cost-{time.time_ns()}")
    deployment = backend.deploy(experiment, folder, abort=threading.Event(), on_death=lambda _death: None)
    windows = []
    try:
        time.sleep(SETTLE_S)
        for number in range(2 * wishes.rounds):
            on = number % 4 in {1, 2}
            windows.append((on, *_window(on, deployment.targets, folder / f"telemetry-{number}.csv", wishes)))
    finally:
        deployment.stop(timeout_s=10)
    return windows


def _window(on: bool, targets: list, telemetry_file: Path, wishes: argparse.Namespace) -> tuple[float, float]:
    clock = SystemClock()
    if not on:
        begin_s = clock.now_s()
        clock.wait_until(begin_s + wishes.seconds)
        return begin_s, clock.now_s()
    step_s = wishes.step
    telemetry = Telemetry(telemetry_file, interval_s=0.25, clock=clock)
    request = RecordingRequest(metrics=select("all"), step_s=step_s, window_s=4 * step_s, sink=RowList(), clock=clock)
    recorder = Recorder(targets, request)
    telemetry.start()
    # The lead-in of one window, in which the recorder works as later, is part of the measured time.
    start_s = (clock.now_s() // step_s + 4) * step_s
    begin_s = clock.now_s()
    recorder.record(start_s, max(round(wishes.seconds / step_s) - 3, 2))
    end_s = clock.now_s()
    telemetry.finish()
    return begin_s, end_s


def _rate(starts_ns: np.ndarray, begin_s: float, end_s: float) -> float:
    first, last = np.searchsorted(starts_ns, [begin_s * 1e9, end_s * 1e9])
    inside = starts_ns[first:last]
    # From first to last request inside: no rounding to whole requests at the edges.
    return float((len(inside) - 1) / (inside[-1] - inside[0]) * 1e9)


def _print(rates: list[tuple[bool, float]], wishes: argparse.Namespace) -> None:
    pairs = [rates[place : place + 2] for place in range(0, len(rates), 2)]
    costs = [1 - dict(pair)[True] / dict(pair)[False] for pair in pairs]
    mean, half = mean_and_half(costs)
    off, on = (statistics.mean(rate for was_on, rate in rates if was_on is state) for state in (False, True))
    print(
        f"recording cost: {100 * mean:+.2f}% of throughput (95% interval {100 * (mean - half):+.2f} to {100 * (mean + half):+.2f}%), "
        f"{wishes.replicas} x {wishes.workload} ({wishes.execution}, batch {wishes.batch_size}), step {wishes.step:g} s, {len(costs)} rounds of 2 x {wishes.seconds:g} s; "
        f"off {off:.1f}, on {on:.1f} requests/s"
    )


if __name__ == "__main__":
    main()
