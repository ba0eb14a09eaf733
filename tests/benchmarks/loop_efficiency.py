"""How much of a bare torch loop's throughput a replica keeps: its metrics, log and server against nothing at all.

    python -m tests.benchmarks.loop_efficiency --workload resnet50 --device cuda --seconds 5 --rounds 10

Two processes load the same model with the same settings: the real replica, and a loop that does only what
torch itself needs. Both stay loaded; in turn one is stopped (SIGSTOP) while the other runs for ``--seconds``, in
the order A B B A A B B A..., so that a drift of the machine's speed meets both alike. The replica's requests are
read from its own ``latencies.bin``, the bare loop leaves its count and the time in shared memory. A throughput is a
number of requests over the time from one completed request to another, near both ends of the measured seconds, so that slow
requests are not rounded to whole ones. Printed is the ratio of the two throughputs per round, its
median, and a 95% t-interval of its mean.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import mmap
import os
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]
SETTLE_S = 0.3
TOO_SHORT = "fewer than two requests in one turn; raise --seconds"
Slice = tuple[int, int]  # from and to, nanoseconds since the epoch


def bare_loop(counter_path: str) -> None:
    """Run in a process of its own: the model and its input, and nothing of the runner."""
    import torch

    from harness.replica import registry
    from harness.replica.settings import from_environment

    settings = from_environment(os.environ)
    workload = registry.load(settings)
    with torch.inference_mode():
        for _ in range(settings.warmup_requests):
            workload.infer()
    with open(counter_path, "r+b") as file:  # noqa: PTH123 - mmap wants a descriptor
        counter = memoryview(mmap.mmap(file.fileno(), 16)).cast("q")
    serve = bare_request(workload, settings.execution)
    now_ns = time.time_ns
    served = 0
    with torch.inference_mode():
        while True:
            serve()
            served += 1
            counter[1] = now_ns()
            counter[0] = served


def bare_request(workload: Any, execution: str) -> Callable[[], object]:
    """Return one request as the shortest code that torch allows."""
    if workload.name == "whisper":  # generation is a loop of its own; there is nothing barer to call
        return workload.infer
    model, batches = workload.model, itertools.cycle(workload.pool)
    if execution != "eager":
        forward = workload._forward
        return lambda: forward(next(batches)).argmax(-1).cpu()
    device = next(model.parameters()).device
    return lambda: model(next(batches).to(device, non_blocking=True)).argmax(-1).cpu()


class Contender:
    """A process that can be let run and stopped, and says how many requests it has served."""

    def __init__(self, command: list[str], environment: Mapping[str, str], log: Path) -> None:
        with log.open("wb") as stderr:
            self.process = subprocess.Popen(command, cwd=REPOSITORY, env=environment, stderr=stderr)
        self.log = log

    def run_for(self, duration_s: float) -> Slice:
        """Run, let it settle, measure; returns the measured time."""
        self.process.send_signal(signal.SIGCONT)
        self.settle()
        start_ns = self.mark()
        time.sleep(duration_s)
        end_ns = self.mark()
        self.process.send_signal(signal.SIGSTOP)
        if self.process.poll() is not None:
            sys.exit(f"a process ended by itself:\n{self.log.read_text()}")
        return start_ns, end_ns

    def settle(self) -> None:
        time.sleep(SETTLE_S)

    def mark(self) -> int:
        return time.time_ns()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


class Bare(Contender):
    """The bare loop; what its shared memory says at a mark is kept."""

    def __init__(self, environment: Mapping[str, str], folder: Path) -> None:
        counter_path = folder / "counter"
        counter_path.write_bytes(bytes(16))
        with counter_path.open("r+b") as file:
            self.counter = memoryview(mmap.mmap(file.fileno(), 16)).cast("q")
        self.marks: dict[int, tuple[int, int]] = {}
        command = [sys.executable, __file__, "--bare", str(counter_path)]
        super().__init__(command, environment, folder / "bare.log")

    def settle(self) -> None:
        """Wait until no request that was cut in two by the last stop can be counted."""
        served = self.counter[0]
        super().settle()
        while self.counter[0] < served + 2 and self.process.poll() is None:
            time.sleep(0.01)

    def mark(self) -> int:
        now_ns = time.time_ns()
        self.marks[now_ns] = (self.counter[0], self.counter[1])
        return now_ns

    def throughput(self, measured: Slice) -> float:
        (first, first_ns), (last, last_ns) = (self.marks[mark] for mark in measured)
        if last == first:
            sys.exit(TOO_SHORT)
        return (last - first) / (last_ns - first_ns) * 1e9

    def wait_until_ready(self) -> None:
        while self.counter[0] == 0:
            if self.process.poll() is not None:
                sys.exit(f"the bare loop ended:\n{self.log.read_text()}")
            time.sleep(0.05)


class Replica(Contender):
    """The real replica; its requests are read from its latency log."""

    def __init__(self, environment: Mapping[str, str], folder: Path) -> None:
        self.folder = folder
        command = [sys.executable, "-m", "harness.replica"]
        super().__init__(command, {**environment, "REPLICA_DIR": str(folder)}, folder / "replica.log")

    def throughput(self, measured: Slice) -> float:
        data = (self.folder / "latencies.bin").read_bytes()
        whole = data[: len(data) // 16 * 16]
        ends_ns = [
            start_ns + latency_ns
            for start_ns, latency_ns in struct.iter_unpack("<qq", whole)
            if start_ns >= measured[0] and start_ns + latency_ns <= measured[1]
        ]
        if len(ends_ns) < 2:
            sys.exit(TOO_SHORT)
        return (len(ends_ns) - 1) / (ends_ns[-1] - ends_ns[0]) * 1e9

    def wait_until_ready(self) -> None:
        while '"serving"' not in self.status():
            if self.process.poll() is not None:
                sys.exit(f"the replica ended:\n{self.log.read_text()}")
            time.sleep(0.05)

    def status(self) -> str:
        path = self.folder / "replica.json"
        return path.read_text() if path.exists() else ""


def main() -> None:
    options = parse_arguments()
    if options.bare:
        bare_loop(options.bare)
        return
    report([one for _ in range(options.pairs) for one in measure_pair(options)])


def measure_pair(options: argparse.Namespace) -> list[tuple[float, float]]:
    """Start a fresh pair of processes and measure its rounds."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        environment = environment_for(options)
        bare = Bare(environment, Path(folder))
        stack.callback(bare.end)
        bare.wait_until_ready()
        bare.process.send_signal(signal.SIGSTOP)
        replica = Replica(environment, Path(folder))
        stack.callback(replica.end)
        replica.wait_until_ready()
        replica.process.send_signal(signal.SIGSTOP)
        facts = json.loads(replica.status())
        print(
            f"{options.workload} {options.precision} {options.execution} batch {options.batch_size} "
            f"on {facts['device_name']} ({facts['device']}), torch {facts['torch']}; "
            f"{options.rounds} rounds of {options.seconds:g} s each",
            flush=True,
        )
        return measure(bare, replica, options)


def measure(bare: Bare, replica: Replica, options: argparse.Namespace) -> list[tuple[float, float]]:
    """Requests per second of the bare loop and of the replica, by round."""
    times = []
    for number in range(options.rounds):
        order = (bare, replica) if number % 2 == 0 else (replica, bare)
        times.append({contender: contender.run_for(options.seconds) for contender in order})
    # The log is flushed twice a second by a process that is stopped now: let it.
    replica.process.send_signal(signal.SIGCONT)
    time.sleep(1.5)
    return [(bare.throughput(one[bare]), replica.throughput(one[replica])) for one in times]


def report(rounds: list[tuple[float, float]]) -> None:
    print("round  bare req/s  replica req/s   ratio")
    for number, (bare, replica) in enumerate(rounds, 1):
        print(f"{number:5}  {bare:10.2f}  {replica:13.2f}  {replica / bare:6.4f}")
    print(f"replica / bare loop, throughput: {summary([replica / bare for bare, replica in rounds])}")


def summary(ratios: list[float]) -> str:
    mean, half = mean_and_half(ratios)
    extremes = f"lowest {min(ratios):.4f}, highest {max(ratios):.4f}"
    return f"median {statistics.median(ratios):.4f}, mean {mean:.4f} ± {half:.4f} (95%), {extremes}"


def mean_and_half(values: list[float]) -> tuple[float, float]:
    """The mean and half of its 95% t-interval; NaN for a single value."""
    from harness.analysis.statistics import t_interval  # not in the process of the bare loop

    known = t_interval(values)
    return known.mean, math.nan if known.high is None else known.high - known.mean


def environment_for(options: argparse.Namespace) -> dict[str, str]:
    own = {
        "WORKLOAD": options.workload,
        "DEVICE": options.device,
        "PRECISION": options.precision,
        "EXECUTION": options.execution,
        "BATCH_SIZE": str(options.batch_size),
        "TORCH_THREADS": str(options.threads or ""),
        "WORKLOAD_OPTIONS": options.options,
        "WARMUP_REQUESTS": "20",
        "HOST": "127.0.0.1",
        "PORT": "0",
        "PYTHONPATH": str(REPOSITORY),
    }
    return {**os.environ, **own}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--workload", default="resnet50", choices=("resnet50", "distilbert", "whisper"))
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    parser.add_argument("--precision", default="fp32", choices=("fp32", "fp16", "bf16"))
    parser.add_argument("--execution", default="eager", choices=("eager", "compiled", "cuda-graph"))
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--threads", type=int, help="CPU threads of each process (default: torch's own choice)")
    parser.add_argument("--options", default="{}", help="WORKLOAD_OPTIONS of both")
    parser.add_argument("--seconds", type=float, default=5.0, help="measured time of each process in each round")
    parser.add_argument("--rounds", type=int, default=10, help="rounds of each pair of processes")
    parser.add_argument(
        "--pairs", type=int, default=1, help="fresh pairs; the luck of one process's memory averages out"
    )
    parser.add_argument("--bare", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
