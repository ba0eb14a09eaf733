"""Who asks, and when: a closed loop of so many requests in flight, or requests at times of their own."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping

from harness.replica.engine.asking import OK, Asker, Outcome
from harness.replica.engine.ledger import Ledger
from harness.replica.engine.protocols import Question
from harness.replica.engine.settings import Engine

NS_PER_S = 1_000_000_000
POLL_S = 0.05
PAUSE_AFTER_FAILURE_S = 0.1
"""A server that refuses at once shall not be asked as fast as the client can."""


def arrivals(rate: float, kind: str | None, seed: int) -> Iterator[int]:
    """Nanoseconds after the start at which requests are meant to be sent; endless, the same for the same seed.

    Args:
        rate: requests per second.
        kind: constant; anything else is Poisson.
        seed: of Poisson arrivals.
    """
    chance = random.Random(seed)  # noqa: S311 - arrivals to repeat, not a secret
    number, at_s = 0, 0.0
    while True:
        number += 1
        at_s = number / rate if kind == "constant" else at_s + chance.expovariate(rate)
        yield round(at_s * NS_PER_S)


class Load:
    """The requests of one replica to its server; a frontend of the replica.

    Args:
        engine: the load is part of it.
        asker: sends the requests.
        questions: endless.
        ledger: takes what became of them.
        seed: of the arrivals.
        on_depth: told the number of requests in flight.
        alive: raises when the server has ended; asked several times a second.
    """

    def __init__(
        self,
        engine: Engine,
        asker: Asker,
        questions: Iterator[Question],
        ledger: Ledger,
        *,
        seed: int,
        on_depth: Callable[[int], None],
        alive: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._asker = asker
        self._questions = questions
        self._ledger = ledger
        self._seed = seed
        self._on_depth = on_depth
        self._alive = alive
        self._in_flight = 0
        self._abandoned = 0

    def run(self, stopping: threading.Event) -> None:
        """Ask until ``stopping``; what is in flight then is abandoned and not counted. Raises WorkloadError or OSError."""
        asyncio.run(self._run(stopping))

    def facts(self) -> Mapping[str, object]:
        """How far it has come, for ``replica.json``."""
        return {
            "in_flight": self._in_flight,
            "abandoned": self._abandoned,
            "failures": dict(self._ledger.failures),
            "first_failure": self._ledger.first_failure,
        }

    def close(self) -> None:
        """Write the logs to their end. Raises OSError."""
        self._ledger.close()

    async def _run(self, stopping: threading.Event) -> None:
        clients = (
            [self._closed() for _ in range(self._engine.concurrency or 1)] if not self._engine.rate else [self._open()]
        )
        tasks = [asyncio.ensure_future(client) for client in clients]
        try:
            while not stopping.is_set():
                done, _ = await asyncio.wait(tasks, timeout=POLL_S, return_when=asyncio.FIRST_EXCEPTION)
                for task in done:
                    task.result()
                self._alive()
        finally:
            self._abandoned = self._in_flight
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._asker.close()

    async def _closed(self) -> None:
        while True:
            outcome = await self._ask(time.perf_counter_ns())
            if outcome.status != OK:
                await asyncio.sleep(PAUSE_AFTER_FAILURE_S)

    async def _open(self) -> None:
        assert self._engine.rate is not None  # noqa: S101 - the caller's promise
        room = asyncio.Semaphore(self._engine.max_in_flight)
        start_ns = time.perf_counter_ns()
        async with asyncio.TaskGroup() as group:
            for after_ns in arrivals(self._engine.rate, self._engine.arrivals, self._seed):
                await _sleep_until(start_ns + after_ns)
                await room.acquire()  # what waits here is sent late, and its latency says so
                group.create_task(self._ask_and(start_ns + after_ns, room.release))

    async def _ask_and(self, intended_ns: int, then: Callable[[], None]) -> None:
        try:
            await self._ask(intended_ns)
        finally:
            then()

    async def _ask(self, intended_ns: int) -> Outcome:
        self._count(1)
        try:
            outcome = await self._asker.ask(next(self._questions), intended_ns)
        finally:
            self._count(-1)
        self._ledger.book(outcome)
        return outcome

    def _count(self, change: int) -> None:
        self._in_flight += change
        self._on_depth(self._in_flight)


async def _sleep_until(at_ns: int) -> None:
    """Return at ``at_ns`` of ``time.perf_counter_ns``; at once when it is over."""
    wait_ns = at_ns - time.perf_counter_ns()
    if wait_ns > 0:
        await asyncio.sleep(wait_ns / NS_PER_S)
