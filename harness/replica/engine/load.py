"""Who asks, and when: a closed loop of so many requests in flight, or requests at times of their own."""

from __future__ import annotations

import asyncio
import itertools
import math
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from harness.replica.engine import trace
from harness.replica.engine.asking import ABANDONED, OK, Asker, Outcome
from harness.replica.engine.ledger import Ledger
from harness.replica.engine.protocols import Question
from harness.spec.server import ServerSpec

NS_PER_S = 1_000_000_000
POLL_S = 0.05
PAUSE_AFTER_FAILURE_S = 0.1
"""A server that refuses at once shall not be asked as fast as the client can."""
FOLLOW_S = 10.0
"""How long the load goes on at its end, for the answers to what was asked before."""


def arrivals(rate: float, kind: str | None, seed: int, burstiness: float | None = None) -> Iterator[int]:
    """Nanoseconds after the start at which requests are meant to be sent; endless, the same for the same seed.

    Args:
        rate: requests per second.
        kind: constant or gamma; anything else is Poisson.
        seed: of what is random.
        burstiness: of gamma: shape of the distribution of the intervals; 1 is Poisson.
    """
    chance = random.Random(seed)  # noqa: S311 - arrivals to repeat, not a secret
    number, at_s = 0, 0.0
    while True:
        number += 1
        if kind == "constant":
            at_s = number / rate
        elif kind == "gamma" and burstiness:
            at_s += chance.gammavariate(burstiness, 1 / (rate * burstiness))
        else:
            at_s += chance.expovariate(rate)
        yield round(at_s * NS_PER_S)


def ramped(due: Iterator[int], rate: float, to: float, *, begin_s: float, within_s: float) -> Iterator[int]:
    """Arrivals of a rate, moved so that it changes evenly to another one.

    Args:
        due: of the rate, nanoseconds.
        rate: requests per second.
        to: what it becomes.
        begin_s: seconds until it begins to change.
        within_s: seconds that this takes.
    """
    for due_ns in due:
        further = rate * (due_ns / NS_PER_S - begin_s)  # so many requests after the beginning of the change
        above = further - within_s * (rate + to) / 2
        if further <= 0:
            yield due_ns
        elif above >= 0:
            yield round((begin_s + within_s + above / to) * NS_PER_S)
        else:  # where the area below the line of the rate is as much
            after_s = 2 * further / (rate + math.sqrt(rate**2 + 2 * further * (to - rate) / within_s))
            yield round((begin_s + after_s) * NS_PER_S)


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
        beside: entered while it runs; None: nothing is.
        settle_s: after so many seconds of it the recording begins.
        record_s: how long that lasts.
    """

    def __init__(
        self,
        engine: ServerSpec,
        asker: Asker,
        questions: Iterator[Question],
        ledger: Ledger,
        *,
        seed: int,
        on_depth: Callable[[int], None],
        alive: Callable[[], None],
        beside: AbstractContextManager[None] | None = None,
        settle_s: float = 0.0,
        record_s: float = 0.0,
    ) -> None:
        self._engine = engine
        self._asker = asker
        self._questions = questions
        self._ledger = ledger
        self._seed = seed
        self._on_depth = on_depth
        self._alive = alive
        self._beside = beside or nullcontext()
        self._settle_s, self._record_s = settle_s, record_s
        self._under_way: set[Outcome] = set()
        self._due: Iterator[int] = iter(())
        self._due_ns: int | None = None  # the next to be sent, or what waits for room
        self._abandoned = 0

    def run(self, stopping: threading.Event) -> None:
        """Ask until ``stopping``, and on until what was asked before is answered, FOLLOW_S at most.

        The load stays what it was, so that those answers take as long as any. What is under way then is abandoned, and booked so.

        Raises:
            WorkloadError: the server has ended.
            OSError: a log cannot be written.
        """
        with self._beside:
            asyncio.run(self._run(stopping))

    def facts(self) -> Mapping[str, object]:
        """How far it has come, for ``replica.json``."""
        return {
            "in_flight": len(self._under_way),
            "abandoned": self._abandoned,
            "failures": dict(self._ledger.failures),
            "first_failure": self._ledger.first_failure,
        }

    def close(self) -> None:
        """Write the logs to their end. Raises OSError."""
        self._ledger.close()

    async def _run(self, stopping: threading.Event) -> None:
        due = self._arrivals()
        clients = [self._open(due)] if due else [self._closed() for _ in range(self._engine.concurrency or 1)]
        tasks = [asyncio.ensure_future(client) for client in clients]
        follow_until_ns = stopped_ns = 0
        try:
            while not stopped_ns or (time.perf_counter_ns() < follow_until_ns and self._is_waiting(stopped_ns)):
                if not stopped_ns and stopping.is_set():
                    stopped_ns = time.perf_counter_ns()
                    follow_until_ns = stopped_ns + round(FOLLOW_S * NS_PER_S)
                done, _ = await asyncio.wait(tasks, timeout=POLL_S, return_when=asyncio.FIRST_EXCEPTION)
                for task in done:
                    task.result()
                self._alive()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._abandon(stopped_ns or time.perf_counter_ns())
            await self._asker.close()

    def _is_waiting(self, before_ns: int) -> bool:
        """Whether there is no answer yet to something that was to be asked before that time."""
        return any(outcome.intended_ns <= before_ns for outcome in self._under_way) or (
            self._due_ns is not None and self._due_ns <= before_ns
        )

    def _abandon(self, stopped_ns: int) -> None:
        """Book what was asked before the stop and has no answer, and what should have been asked and found no room."""
        now_ns = time.perf_counter_ns()
        due = itertools.chain([] if self._due_ns is None else [self._due_ns], self._due)
        unsent = map(Outcome, itertools.takewhile(lambda due_ns: due_ns <= stopped_ns, due))
        asked = (outcome for outcome in self._under_way if outcome.intended_ns <= stopped_ns)
        for outcome in itertools.chain(asked, unsent):
            outcome.status, outcome.end_ns = ABANDONED, now_ns
            self._ledger.book(outcome)
            self._abandoned += 1
        self._under_way.clear()
        self._on_depth(0)

    async def _closed(self) -> None:
        while True:
            question = next(self._questions)  # made before its time counts
            outcome = await self._ask(question, self._begin(time.perf_counter_ns()))
            if outcome.status != OK:
                await asyncio.sleep(PAUSE_AFTER_FAILURE_S)

    def _arrivals(self) -> Iterator[int] | None:
        """Nanoseconds after the start at which requests are meant to be sent; None in the closed loop."""
        engine = self._engine
        if engine.trace is not None:
            return trace.arrivals(trace.read(Path(engine.trace.file), engine.trace.factor))
        if engine.rate is None:
            return None
        due = arrivals(engine.rate, engine.arrivals, self._seed, engine.burstiness)
        if engine.ramp_to is None:
            return due
        return ramped(due, engine.rate, engine.ramp_to, begin_s=self._settle_s, within_s=self._record_s)

    async def _open(self, due: Iterator[int]) -> None:
        room = asyncio.Semaphore(self._engine.max_in_flight)
        start_ns = time.perf_counter_ns()
        self._due = (start_ns + after_ns for after_ns in due)
        async with asyncio.TaskGroup() as group:
            for due_ns in self._due:
                self._due_ns = due_ns
                await asyncio.sleep(0)  # let the one before be sent
                question = next(self._questions)  # made before its time has come
                await _sleep_until(due_ns)
                await room.acquire()  # what waits here is sent late, and its latency says so
                asked = group.create_task(self._ask(question, self._begin(due_ns)))
                asked.add_done_callback(lambda _: room.release())

    def _begin(self, intended_ns: int) -> Outcome:
        outcome = Outcome(intended_ns)
        self._under_way.add(outcome)
        self._on_depth(len(self._under_way))
        return outcome

    async def _ask(self, question: Question, outcome: Outcome) -> Outcome:
        await self._asker.ask(question, outcome)
        self._under_way.remove(outcome)
        self._on_depth(len(self._under_way))
        self._ledger.book(outcome)
        return outcome


async def _sleep_until(at_ns: int) -> None:
    """Return at ``at_ns`` of ``time.perf_counter_ns``; at once when it is over."""
    wait_ns = at_ns - time.perf_counter_ns()
    if wait_ns > 0:
        await asyncio.sleep(wait_ns / NS_PER_S)
