"""The load generator: an open loop that sends each request at its time, whatever became of the earlier ones.

A process of its own, so that it shares no interpreter with the server; one thread. The wait for the next send is
a ``select`` with microseconds on the descriptor of ``epoll``, whose own timeouts are milliseconds.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import select
import signal
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import FrameType

from harness.traffic.arrivals import ARRIVALS, NS_PER_S
from harness.traffic.clients import Clients, Sent
from harness.traffic.requests_log import UNANSWERED, RequestsLog

PR_SET_PDEATHSIG, PR_SET_TIMERSLACK = 1, 29
OPEN_AT_ONCE = 32
START_AFTER_NS = 100_000_000
LAST_ANSWERS_S = 1.0
SWEEP_INTERVAL_S = 1.0
LONGEST_WAIT_S = 0.05
SPARE_NS = 1_000_000

Clock = Callable[[], int]


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """What one generator does; a JSON object of the same fields on disk.

    Attributes:
        targets: host and port of each server.
        first, stride: number of the replica that serves at the first target, and from there to the next one's.
        rate: requests per second that each is sent.
        log: file for the records; must not exist.
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

    def number(self, target: int) -> int:
        """Of the replica that serves at a target."""
        return self.first + self.stride * target

    def to_json(self) -> str:
        """The file's text."""
        return json.dumps(asdict(self), indent=1) + "\n"

    @staticmethod
    def read(path: Path) -> LoadPlan:
        """Read what ``to_json`` wrote. Raises OSError, ValueError, TypeError."""
        return LoadPlan.parse(path.read_text(encoding="utf-8"))

    @staticmethod
    def parse(text: str) -> LoadPlan:
        """The same from its text. Raises ValueError, TypeError."""
        values = json.loads(text)
        return LoadPlan(**values | {"targets": [(host, int(port)) for host, port in values["targets"]]})

    def shard(self, index: int, of: int, *, log: str) -> LoadPlan:
        """The part of one of several generators: each sends to servers of its own, at the same rate to each."""
        clients = max(1, self.max_clients // of)
        return replace(
            self,
            targets=self.targets[index::of],
            first=index,
            stride=of,
            seed=self.seed + index,
            max_clients=clients,
            log=log,
        )


@dataclass(slots=True)
class Generator:
    """One run of a plan.

    Attributes:
        stopping: set to send no more; answers are waited for a second longer.
    """

    plan: LoadPlan
    stopping: bool = False
    _late: deque[Sent] = field(default_factory=deque)

    def run(self) -> None:
        """Send until the plan's end or ``stopping``. Raises OSError when the log cannot be written."""
        epoch_ns = time.time_ns() - time.perf_counter_ns()

        def now_ns() -> int:
            return epoch_ns + time.perf_counter_ns()

        log = RequestsLog(Path(self.plan.log))

        def answered(request: Sent, status: int) -> None:
            log.append(self.plan.number(request.target), request.intended_ns, request.sent_ns, now_ns(), status)

        clients = Clients(
            self.plan.targets,
            most=self.plan.max_clients,
            now_ns=now_ns,
            answered=answered,
            one_clock=self.plan.one_clock,
        )
        try:
            clients.open(OPEN_AT_ONCE)
            self._send_all(clients, log, now_ns)
            self._await_last(clients, now_ns)
        finally:
            for client in clients.busy:
                assert client.request is not None  # noqa: S101 - that is what busy means
                self._unanswered(client.request, log, now_ns())
            for request in self._late:
                self._unanswered(request, log, now_ns())
            clients.close()
            log.close()

    def _send_all(self, clients: Clients, log: RequestsLog, now_ns: Clock) -> None:
        """The loop that has to be on time."""
        plan, late, fd = self.plan, self._late, clients.fd
        start_ns = now_ns() + START_AFTER_NS
        end_ns = start_ns + round(plan.duration_s * NS_PER_S) if plan.duration_s is not None else None
        sweep_ns = start_ns
        for offset_ns, target in ARRIVALS[plan.arrivals](plan.rate, len(plan.targets), plan.seed):
            due_ns = start_ns + offset_ns
            if end_ns is not None and due_ns >= end_ns:
                return
            while (left_ns := due_ns - now_ns()) > 0 and not self.stopping:
                if left_ns > SPARE_NS and (log.full or now_ns() > sweep_ns):
                    log.flush()
                    self._sweep(clients, log, now_ns())
                    sweep_ns = now_ns() + round(SWEEP_INTERVAL_S * NS_PER_S)
                    continue
                if select.select((fd,), (), (), min(left_ns / NS_PER_S, LONGEST_WAIT_S))[0]:
                    clients.handle()
                    while late and clients.send(late[0]):
                        late.popleft()
            if self.stopping:
                return
            request = Sent(target, due_ns)
            if late or not clients.send(request):
                late.append(request)
                clients.handle()
                while late and clients.send(late[0]):
                    late.popleft()

    def _await_last(self, clients: Clients, now_ns: Clock) -> None:
        deadline_ns = now_ns() + round(LAST_ANSWERS_S * NS_PER_S)
        while clients.busy and now_ns() < deadline_ns:
            if select.select((clients.fd,), (), (), LONGEST_WAIT_S)[0]:
                clients.handle()

    def _sweep(self, clients: Clients, log: RequestsLog, now_ns: int) -> None:
        """Give up what has waited for an answer too long."""
        for client in clients.busy:
            request = client.request
            if request is not None and now_ns - request.intended_ns > self.plan.timeout_s * NS_PER_S:
                self._unanswered(request, log, now_ns)
                clients.give_up(client)

    def _unanswered(self, request: Sent, log: RequestsLog, now_ns: int) -> None:
        number = self.plan.number(request.target)
        log.append(number, request.intended_ns, request.sent_ns or now_ns, now_ns, UNANSWERED)


def main(arguments: list[str]) -> int:
    """Run the plan in the file that is named, for the process whose id follows; 0 after its end or SIGTERM, 2 when it cannot be read."""
    try:
        plan = LoadPlan.read(Path(arguments[0]))
    except (IndexError, OSError, ValueError, TypeError, KeyError) as error:
        sys.stderr.write(f"load: no plan to run: {error}\n")
        return 2
    generator = Generator(plan)

    def stop(_number: int, _frame: FrameType | None) -> None:
        generator.stopping = True

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    # The kernel may otherwise end every wait 50 microseconds late.
    prctl = ctypes.CDLL(None).prctl
    prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)  # nobody would end it any more
    generator.stopping = bool(arguments[1:]) and str(os.getppid()) != arguments[1]
    gc.disable()  # nothing here makes cycles, and a collection would be a late request
    try:
        generator.run()
    except OSError as error:
        sys.stderr.write(f"load: {error}\n")
        return 1
    return 0
