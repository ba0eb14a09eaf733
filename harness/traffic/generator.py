"""The load generator of scenario http, a process of its own, so that it shares no interpreter with who answers.

``python -m harness.traffic.generator PLAN [PARENT]``: runs the plan in that file, for the process of that id.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

from harness.spec.model import StrictModel
from harness.traffic.arrivals import NS_PER_S, of_targets
from harness.traffic.clients import Client
from harness.traffic.http_answer import AnswerParser, BrokenAnswerError
from harness.traffic.loop import Due, LoadLoop
from harness.traffic.protocols import Question
from harness.traffic.records import BROKEN, GENERATED_FIELDS, UNANSWERED, Exchange, RecordLog

PR_SET_PDEATHSIG, PR_SET_TIMERSLACK = 1, 29
LAST_ANSWERS_S = 1.0
INFER = Question(output_tokens=1)
OPEN_AT_ONCE = 32
SWEEP_INTERVAL_S = 1.0


class LoadPlan(StrictModel):
    """What one generator does; a JSON object of the same fields on disk.

    Attributes:
        targets: host and port of each server.
        first, stride: number of the replica that serves at the first target, and from there to the next one's.
        rate: requests per second that each is sent.
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

    def shard(self, index: int, of: int, *, log: str) -> LoadPlan:
        """The part of one of several generators: each sends to servers of its own, at the same rate to each."""
        targets, clients = self.targets[index::of], max(1, self.max_clients // of)
        own = {"targets": targets, "max_clients": clients, "first": index, "stride": of, "log": log}
        return self.model_copy(update={**own, "seed": self.seed + index})


class ReplicaClient(Client):
    """Asks replicas that serve: connections that stay open, one request at a time on each.

    Own code, and no coroutine a request: what is left of the CPU decides how exactly the next one is sent. ``epoch_ns`` is
    between ``time.perf_counter_ns`` and the epoch; replicas are told the intended time where theirs is the same clock.
    """

    sends_at_once = True

    def __init__(self, plan: LoadPlan, epoch_ns: int) -> None:
        self._targets, self._most, self._timeout_s = plan.targets, plan.max_clients, plan.timeout_s
        self._epoch_ns, self._one_clock = epoch_ns, plan.one_clock
        self._heads = [
            f"POST /infer HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Length: 0\r\nX-Intended-Ns: ".encode()
            for host, port in plan.targets
        ]
        self._idle: list[list[_KeptConnection]] = [[] for _ in plan.targets]
        self._connections: set[_KeptConnection] = set()
        self._connecting: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Have some connections ready, shared evenly by the replicas."""
        for number in range(min(OPEN_AT_ONCE, self._most)):
            with contextlib.suppress(OSError):  # said when a request needs it
                self.rest(await self._connect(number % len(self._targets)))
        self._sweep()

    def begin(self, question: Question, exchange: Exchange, ended: Callable[[Exchange], None]) -> None:
        """Send now; see Client. A replica makes its inputs itself, so that the question says nothing."""
        del question
        idle = self._idle[exchange.target]
        if idle:
            idle.pop().send(exchange, ended)
            return
        if len(self._connections) + len(self._connecting) >= self._most:
            spare = next((other for other in self._idle if other), None)
            if spare:
                spare.pop().drop()  # make room for another replica's
        task = asyncio.ensure_future(self._connect_and_send(exchange, ended))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    def request(self, exchange: Exchange) -> bytes:
        """What is sent."""
        intended_ns = self._epoch_ns + exchange.intended_ns if self._one_clock else 0
        return b"%s%d\r\n\r\n" % (self._heads[exchange.target], intended_ns)

    def rest(self, connection: _KeptConnection) -> None:
        """It is free for another request."""
        self._idle[connection.target].append(connection)

    def forget(self, connection: _KeptConnection) -> None:
        """It is closed."""
        self._connections.discard(connection)
        with contextlib.suppress(ValueError):
            self._idle[connection.target].remove(connection)

    async def close(self) -> None:
        """Close every connection."""
        self._sweeping.cancel()
        for task in self._connecting:
            task.cancel()
        await asyncio.gather(*self._connecting, return_exceptions=True)
        for connection in list(self._connections):
            connection.drop()
        await asyncio.sleep(0)

    async def _connect_and_send(self, exchange: Exchange, ended: Callable[[Exchange], None]) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                connection = await self._connect(exchange.target)
        except OSError as error:
            exchange.sent_ns = exchange.end_ns = time.perf_counter_ns()
            exchange.status = UNANSWERED if isinstance(error, TimeoutError) else BROKEN
            ended(exchange)
        else:
            connection.send(exchange, ended)

    async def _connect(self, target: int) -> _KeptConnection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(lambda: _KeptConnection(self, target), *self._targets[target])
        self._connections.add(connection)
        return connection

    def _sweep(self) -> None:
        """Give up what has waited for an answer too long; once a second."""
        before_ns = time.perf_counter_ns() - round(self._timeout_s * NS_PER_S)
        for connection in list(self._connections):
            if connection.exchange is not None and connection.exchange.intended_ns < before_ns:
                connection.give_up()
        self._sweeping = asyncio.get_running_loop().call_later(SWEEP_INTERVAL_S, self._sweep)


class _KeptConnection(asyncio.Protocol):
    def __init__(self, client: ReplicaClient, target: int) -> None:
        self.target = target
        self.exchange: Exchange | None = None
        self._client = client
        self._answer = AnswerParser()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def send(self, exchange: Exchange, ended: Callable[[Exchange], None]) -> None:
        self.exchange, self._ended = exchange, ended
        self._answer.begin()
        self._transport.write(
            self._client.request(exchange)
        )  # so short that a socket with nothing in flight takes it whole
        exchange.sent_ns = time.perf_counter_ns()

    def data_received(self, data: bytes) -> None:
        status, keeps_open = BROKEN, False
        try:
            self._answer.feed(data)
        except BrokenAnswerError:
            pass
        else:
            if (head := self._answer.head) is None or not self._answer.complete:
                return
            status, keeps_open = head.status, self._answer.keeps_open
        exchange, self.exchange = self.exchange, None
        if keeps_open and exchange is not None:
            self._client.rest(self)
        else:
            self.drop()
        self._end(exchange, status)

    def connection_lost(self, _error: Exception | None) -> None:
        self._client.forget(self)
        self._end(self.exchange, BROKEN)

    def give_up(self) -> None:
        """Close it, and wait for its answer no longer."""
        exchange = self.exchange
        self.drop()
        self._end(exchange, UNANSWERED)

    def drop(self) -> None:
        """Close it; what is on it is nobody's any more."""
        self.exchange = None
        self._client.forget(self)
        self._transport.abort()

    def _end(self, exchange: Exchange | None, status: int) -> None:
        if exchange is not None:
            exchange.status, exchange.end_ns = status, time.perf_counter_ns()
            self._ended(exchange)


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
    loop = LoadLoop(
        ReplicaClient(plan, epoch_ns),
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
        plan = LoadPlan.model_validate_json(Path(arguments[0]).read_bytes())
    except (IndexError, OSError, ValueError) as error:
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
