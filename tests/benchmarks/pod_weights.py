"""What a pod's request of processors is worth to it while other pods compute: its share of one processor.

    python -m tests.benchmarks.pod_weights            # as root, where control groups are of version 1

Control groups are made as a kubelet makes them, with its numbers, and busy loops stand for the pods: one whose pods request
225m in all, and the replicas. There is no kubelet and no cluster.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup/cpu/pod-weights")
OTHERS_MILLI = 225
LEAST_SHARES = 2
SETTLE_S = 2.0


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replicas", default="1,8")
    parser.add_argument("--milli", default="0,10,50,100,250,1000", help="Requests of each replica; 0: none.")
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--cpu", type=int, default=0, help="On which all of them run.")
    arguments = parser.parse_args()
    for replicas in map(int, arguments.replicas.split(",")):
        for milli in map(int, arguments.milli.split(",")):
            share = measure(replicas, milli, cpu=arguments.cpu, seconds=arguments.seconds)
            print(f"{replicas} x {f'{milli}m' if milli else 'nothing'}: {share:.1%} of the processor, all together")


def measure(replicas: int, milli: int, *, cpu: int, seconds: float) -> float:
    """The share of the processor that the replicas get."""
    shares, others = shares_of(milli), shares_of(OTHERS_MILLI)
    with contextlib.ExitStack() as stack:
        pods = stack.enter_context(group(ROOT, 1024))
        idle = stack.enter_context(group(pods / "besteffort", LEAST_SHARES))
        burstable = stack.enter_context(group(pods / "burstable", others + (replicas * shares if milli else 0)))
        loops = [stack.enter_context(busy(stack.enter_context(group(burstable / "others", others)), cpu))]
        for index in range(replicas):
            place = stack.enter_context(group((burstable if milli else idle) / f"replica-{index}", shares))
            loops.append(stack.enter_context(busy(place, cpu)))
        time.sleep(SETTLE_S)
        before = [ticks(loop) for loop in loops]
        time.sleep(seconds)
        used = [ticks(loop) - past for loop, past in zip(loops, before, strict=True)]
    return sum(used[1:]) / sum(used)


def shares_of(milli: int) -> int:
    """As a kubelet makes weights of requests."""
    return max(LEAST_SHARES, milli * 1024 // 1000)


@contextlib.contextmanager
def group(path: Path, shares: int) -> Iterator[Path]:
    """A control group of this weight."""
    path.mkdir()
    try:
        (path / "cpu.shares").write_text(str(shares))
        yield path
    finally:
        deadline_s = time.monotonic() + 5
        while (path / "tasks").read_text() and time.monotonic() < deadline_s:
            time.sleep(0.01)
        path.rmdir()


@contextlib.contextmanager
def busy(place: Path, cpu: int) -> Iterator[subprocess.Popen[bytes]]:
    """A process there that only computes."""
    loop = subprocess.Popen(["taskset", "--cpu-list", str(cpu), sys.executable, "-c", "while True: pass"])
    try:
        (place / "cgroup.procs").write_text(str(loop.pid))
        yield loop
    finally:
        loop.kill()
        loop.wait()


def ticks(loop: subprocess.Popen[bytes]) -> int:
    """Of processor time that it has used."""
    fields = Path(f"/proc/{loop.pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


if __name__ == "__main__":
    main()
