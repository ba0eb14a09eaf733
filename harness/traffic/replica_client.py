"""The client of replicas that serve scenario http: connections that stay open, one request at a time on each.

Own code, and no coroutine a request: what is left of the CPU decides how exactly the next one is sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import Callable
from typing import cast

from harness.traffic.clients import Client
from harness.traffic.protocols import Question
from harness.traffic.records import BROKEN, UNANSWERED, Exchange

INFER = Question(output_tokens=1)
OPEN_AT_ONCE = 32
SWEEP_INTERVAL_S = 1.0
_MOST_ANSWER_BYTES = 1 << 20
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)", re.IGNORECASE)
_CLOSES = re.compile(rb"\r\nconnection:[ \t]*close", re.IGNORECASE)


class ReplicaClient(Client):
    """All connections to all replicas.

    Args:
        targets: host and port of each.
        most: connections in all, not fewer than requests in flight.
        timeout_s: after which an answer is no longer waited for.
        epoch_ns: between ``time.perf_counter_ns`` and the epoch.
        one_clock: replicas are told the intended time, which another machine's clock would make nothing of.
    """

    def __init__(
        self, targets: list[tuple[str, int]], *, most: int, timeout_s: float, epoch_ns: int, one_clock: bool
    ) -> None:
        self._targets, self._most, self._timeout_s = targets, most, timeout_s
        self._epoch_ns, self._one_clock = epoch_ns, one_clock
        self._heads = [
            f"POST /infer HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Length: 0\r\nX-Intended-Ns: ".encode()
            for host, port in targets
        ]
        self._idle: list[list[_KeptConnection]] = [[] for _ in targets]
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
        before_ns = time.perf_counter_ns() - round(self._timeout_s * 1e9)
        for connection in list(self._connections):
            if connection.exchange is not None and connection.exchange.intended_ns < before_ns:
                connection.give_up()
        self._sweeping = asyncio.get_running_loop().call_later(SWEEP_INTERVAL_S, self._sweep)


class _KeptConnection(asyncio.Protocol):
    def __init__(self, client: ReplicaClient, target: int) -> None:
        self.target = target
        self.exchange: Exchange | None = None
        self._client = client
        self._answer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def send(self, exchange: Exchange, ended: Callable[[Exchange], None]) -> None:
        self.exchange, self._ended = exchange, ended
        self._transport.write(
            self._client.request(exchange)
        )  # so short that a socket with nothing in flight takes it whole
        exchange.sent_ns = time.perf_counter_ns()

    def data_received(self, data: bytes) -> None:
        self._answer += data
        whole = _status_of_whole(self._answer)
        if whole is None and len(self._answer) <= _MOST_ANSWER_BYTES:
            return
        status, closes = whole or (BROKEN, True)
        self._answer.clear()
        exchange, self.exchange = self.exchange, None
        if closes or exchange is None:
            self.drop()
        else:
            self._client.rest(self)
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


def _status_of_whole(answer: bytearray) -> tuple[int, bool] | None:
    """Status of a complete answer and whether the server closes; None while more is to come, BROKEN when not HTTP."""
    end = answer.find(b"\r\n\r\n")
    if end < 0:
        return None
    head = bytes(answer[:end])
    length = _LENGTH.search(head)
    if not head.startswith(b"HTTP/1.") or not head[9:12].isdigit() or length is None:
        return BROKEN, True
    if len(answer) < end + 4 + int(length[1]):
        return None
    return int(head[9:12]), _CLOSES.search(head) is not None
