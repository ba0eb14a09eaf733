"""The load generator of scenario http, a process of its own, so that it shares no interpreter with who answers.

``python -m harness.traffic.generator PLAN [PARENT]``: runs the plan in that file, for the process of that id.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import json
import os
import signal
import sys
import threading
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from harness.traffic.arrivals import NS_PER_S, of_targets
from harness.traffic.loop import Due, LoadLoop
from harness.traffic.records import GENERATED_FIELDS, UNANSWERED, Exchange, RecordLog
from harness.traffic.replica_client import INFER, ReplicaClient

PR_SET_PDEATHSIG, PR_SET_TIMERSLACK = 1, 29
LAST_ANSWERS_S = 1.0


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """What one generator does; a JSON object of the same fields on disk.

    Attributes:
        targets: host and port of each server.
        first, stride: number of the replica that serves at the first target, and from there to the next one's.
        rate: requests per second that each is sent.
        log: file for the records.
        arrivals: poisson or constant.
        seed: of the arrivals.
        max_clients: connections in all.
        one_clock: the servers are on this machine, so that the intended time means something to them.
        timeout_s: after which an answer is no longer waited for.
        duration_s: seconds to send; None: until SIGTERM.
    """

    targets: list[tuple[str, int]]
    rate: float
    log: str
    arrivals: str = "poisson"
    seed: int = 0
    max_clients: int = 512
    one_clock: bool = True
    timeout_s: float = 60.0
    duration_s: float | None = None
    first: int = 0
    stride: int = 1

    def to_json(self) -> str:
        """The file's text."""
        return json.dumps(asdict(self), indent=1) + "\n"

    @staticmethod
    def parse(text: str) -> LoadPlan:
        """What ``to_json`` wrote. Raises ValueError, TypeError, KeyError."""
        values = json.loads(text)
        return LoadPlan(**values | {"targets": [(host, int(port)) for host, port in values["targets"]]})

    def shard(self, index: int, of: int, *, log: str) -> LoadPlan:
        """The part of one of several generators: each sends to servers of its own, at the same rate to each."""
        targets, clients = self.targets[index::of], max(1, self.max_clients // of)
        return replace(
            self, targets=targets, max_clients=clients, first=index, stride=of, seed=self.seed + index, log=log
        )


def send(plan: LoadPlan, stopping: threading.Event) -> None:
    """Send until the plan's end or ``stopping``. Raises OSError when the log cannot be written."""
    epoch_ns = time.time_ns() - time.perf_counter_ns()
    log = RecordLog(Path(plan.log), fields=len(GENERATED_FIELDS))

    def book(exchange: Exchange) -> None:
        replica, intended_ns = plan.first + plan.stride * exchange.target, epoch_ns + exchange.intended_ns
        log.append(replica, intended_ns, exchange.send_error_ns, exchange.latency_ns, exchange.status)

    due = of_targets(plan.rate, plan.arrivals, len(plan.targets), plan.seed)
    if plan.duration_s is not None:
        due = _until(plan.duration_s, due, stopping)
    client = ReplicaClient(
        plan.targets, most=plan.max_clients, timeout_s=plan.timeout_s, epoch_ns=epoch_ns, one_clock=plan.one_clock
    )
    loop = LoadLoop(
        client,
        itertools.repeat(INFER),
        book,
        due=due,
        most=plan.max_clients,
        follow_s=LAST_ANSWERS_S,
        goes_on=False,
        left=UNANSWERED,
    )
    try:
        loop.run(stopping)
    finally:
        log.close()


def _until(end_s: float, due: Due, stopping: threading.Event) -> Due:
    """What is due before the end, counted from when the first is taken; then whatever still waits for a connection is sent no more."""
    timer = threading.Timer(end_s, stopping.set)
    timer.daemon = True
    timer.start()
    yield from itertools.takewhile(lambda arrival: arrival[0] < end_s * NS_PER_S, due)


def main(arguments: list[str]) -> int:
    """The exit code: 0 after the plan's end or SIGTERM, 2 when it cannot be read, 1 when the log cannot be written."""
    try:
        plan = LoadPlan.parse(Path(arguments[0]).read_text(encoding="utf-8"))
    except (IndexError, OSError, ValueError, TypeError, KeyError) as error:
        sys.stderr.write(f"load: no plan to run: {error}\n")
        return 2
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    # The kernel may otherwise end every wait 50 microseconds late.
    prctl = ctypes.CDLL(None).prctl
    prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)  # nobody would end it any more
    if arguments[1:] and str(os.getppid()) != arguments[1]:
        stopping.set()
    gc.collect()
    gc.freeze()  # a collection that walks all modules would be a late request
    try:
        send(plan, stopping)
    except OSError as error:
        sys.stderr.write(f"load: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
