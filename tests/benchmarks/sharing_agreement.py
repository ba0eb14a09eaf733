"""Whether the harness measures what sharing costs, or itself: its throughput against processes started by hand.

    python -m tests.benchmarks.sharing_agreement --device cuda --sharing time-slicing mps --replicas 3

Two groups of processes load the same model: the replicas of the local backend, under its own MPS daemon where the
mode is mps, and as many bare torch loops, under a daemon that is started here with NVIDIA's own commands. One group
runs while the other is stopped (SIGSTOP), in the order A B B A. The throughput of the replicas is the recorder's own
metric, of the bare loops their count over the time. What a process's place in memory does to its speed lasts as long as
the process, so groups are started several times: printed are the ratio per start, its mean and a 95% t-interval.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from harness.backends.local import LocalBackend, LocalDeployment
from harness.clock import SystemClock
from harness.metrics.catalogue import select
from harness.metrics.recorder import Recorder
from harness.metrics.rows import RecordingRequest
from harness.sharing.mps import CONTROL
from harness.spec import ExperimentSpec, Limits, Sharing, Timing, WorkloadSpec
from tests.benchmarks.loop_efficiency import Bare, environment_for, mean_and_half
from tests.support.fake_metrics import RowList

STEP_S = 0.5
WINDOW_STEPS = 4
SETTLE_S = 0.5
WARM_UP = 20


def main() -> None:
    """Measure and print, mode after mode."""
    wishes = _wishes()
    for mode in wishes.sharing:
        groups = [_measure(wishes, mode) for _ in range(wishes.groups)]
        _print(mode, groups, wishes)


def _measure(wishes: argparse.Namespace, mode: Sharing) -> tuple[float, float]:
    """Requests per second of the harness's replicas and of the bare loops, over all rounds of two fresh groups."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        bare = stack.enter_context(_bare_loops(wishes, Path(folder), under_mps=mode is Sharing.MPS))
        deployment = stack.enter_context(_replicas(wishes, mode, Path(folder)))
        rounds = [_round(bare, deployment, wishes.windows, number) for number in range(wishes.rounds)]
    measured, by_hand = (float(np.mean(column)) for column in zip(*rounds, strict=True))
    return measured, by_hand


def _wishes() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--workload", default="resnet50", choices=("resnet50", "distilbert", "whisper"))
    parser.add_argument("--tiny", action="store_true", help="the small model, for a CPU")
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    parser.add_argument("--threads", type=int, help="CPU threads of each process (default: torch's own choice)")
    parser.add_argument("--execution", default="eager", choices=("eager", "compiled", "cuda-graph"))
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--sharing", type=Sharing, nargs="+", default=[Sharing.TIME_SLICING])
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--windows", type=int, default=3, help="measured in each turn, 2 s each")
    parser.add_argument("--rounds", type=int, default=2, help="of one start of both groups")
    parser.add_argument("--groups", type=int, default=5, help="starts of both groups, at least 2")
    return parser.parse_args()


@contextlib.contextmanager
def _replicas(wishes: argparse.Namespace, mode: Sharing, folder: Path) -> Iterator[LocalDeployment]:
    """The harness's replicas, serving until they are stopped for the first time."""
    options: dict[str, str | int | float | bool] = {"model_size": "tiny"} if wishes.tiny else {}
    experiment = ExperimentSpec(
        workload=WorkloadSpec(
            name="bench",
            model=wishes.workload,
            device=wishes.device,
            threads=wishes.threads,
            execution=wishes.execution,
            batch_size=wishes.batch_size,
            options=options,
            warmup_requests=WARM_UP,
        ),
        replicas=wishes.replicas,
        sharing=mode,
        repeat=1,
        timing=Timing(step_s=STEP_S),
        metrics=["throughput"],
        limits=Limits(),
    )
    backend = LocalBackend(f"sharing-agreement-{time.time_ns()}")
    deployment = backend.deploy(experiment, folder / "replicas", abort=threading.Event(), on_death=_die)
    pids = [target.pid for target in deployment.targets]
    try:
        _signal(pids, signal.SIGSTOP)
        yield deployment
    finally:
        _signal(pids, signal.SIGCONT)
        deployment.stop(timeout_s=10)


def _die(death: object) -> None:
    sys.stderr.write(f"{death}\n")
    os._exit(1)


@contextlib.contextmanager
def _bare_loops(wishes: argparse.Namespace, folder: Path, *, under_mps: bool) -> Iterator[list[Bare]]:
    with contextlib.ExitStack() as stack:
        wishes.precision = "fp32"
        wishes.options = '{"model_size": "tiny"}' if wishes.tiny else "{}"
        environment = environment_for(wishes)
        if under_mps:
            environment |= stack.enter_context(_daemon_by_hand(folder / "pipes"))
        loops = []
        for number in range(wishes.replicas):
            own = folder / f"bare-{number}"
            own.mkdir()
            loops.append(Bare({**environment, "REPLICA": str(number)}, own))
            stack.callback(loops[-1].end)
        for loop in loops:
            loop.wait_until_ready()
        _signal([loop.process.pid for loop in loops], signal.SIGSTOP)
        yield loops


@contextlib.contextmanager
def _daemon_by_hand(pipes: Path) -> Iterator[dict[str, str]]:
    """An MPS daemon as NVIDIA's documentation starts one."""
    pipes.mkdir()
    own = {"CUDA_MPS_PIPE_DIRECTORY": str(pipes), "CUDA_MPS_LOG_DIRECTORY": str(pipes)}
    environment = {**os.environ, **own}
    subprocess.run([CONTROL, "-d"], env=environment, check=True)
    try:
        yield own
    finally:
        subprocess.run([CONTROL], input="quit -t 1\n", text=True, env=environment, check=True)


def _round(bare: Sequence[Bare], deployment: LocalDeployment, windows: int, number: int) -> tuple[float, float]:
    """Requests per second of the harness's replicas and of the bare loops."""
    if number % 2:
        by_hand = _run_bare(bare, windows)
        return _run_replicas(deployment, windows), by_hand
    measured = _run_replicas(deployment, windows)
    return measured, _run_bare(bare, windows)


def _run_replicas(deployment: LocalDeployment, windows: int) -> float:
    targets, sink, clock = deployment.targets, RowList(), SystemClock()
    window_s = WINDOW_STEPS * STEP_S
    _signal([target.pid for target in targets], signal.SIGCONT)
    time.sleep(SETTLE_S)
    request = RecordingRequest(metrics=select(["throughput"]), step_s=STEP_S, window_s=window_s, sink=sink, clock=clock)
    recorder = Recorder(targets, request)
    start_s = (clock.now_s() // STEP_S + 1 + WINDOW_STEPS) * STEP_S
    recorder.record(start_s, (windows - 1) * WINDOW_STEPS + 1)
    _signal([target.pid for target in targets], signal.SIGSTOP)
    values = [row.value for row in sink.series("throughput", "all")][::WINDOW_STEPS]  # windows that do not overlap
    return float(np.mean([value for value in values if value is not None]))


def _run_bare(bare: Sequence[Bare], windows: int) -> float:
    _signal([loop.process.pid for loop in bare], signal.SIGCONT)
    time.sleep(SETTLE_S)
    begins = [loop.mark() for loop in bare]
    time.sleep(windows * WINDOW_STEPS * STEP_S)
    ends = [loop.mark() for loop in bare]
    _signal([loop.process.pid for loop in bare], signal.SIGSTOP)
    return sum(loop.throughput((begin, end)) for loop, begin, end in zip(bare, begins, ends, strict=True))


def _signal(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        os.kill(pid, number)


def _print(mode: Sharing, groups: Sequence[tuple[float, float]], wishes: argparse.Namespace) -> None:
    ratios = [measured / by_hand for measured, by_hand in groups]
    mean, half = mean_and_half(ratios)
    measured, by_hand = (float(np.mean(column)) for column in zip(*groups, strict=True))
    print(
        f"{mode.value}, {wishes.replicas} x {wishes.workload} ({wishes.execution}, batch {wishes.batch_size}): harness {measured:.1f}, by hand {by_hand:.1f} requests/s; "
        f"ratio {mean:.4f} ± {half:.4f} (95%, {len(ratios)} starts of {wishes.rounds} rounds: "
        f"{', '.join(f'{ratio:.3f}' for ratio in ratios)})",
        flush=True,
    )


if __name__ == "__main__":
    main()
