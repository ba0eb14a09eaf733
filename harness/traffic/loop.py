"""The loop that asks: a closed loop of so many requests in flight, or each request at a time of its own, whatever became of others."""

from __future__ import annotations

import asyncio
import itertools
import select
import selectors
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from harness.traffic.arrivals import NS_PER_S
from harness.traffic.clients import Client
from harness.traffic.protocols import Question
from harness.traffic.records import ABANDONED, CANCELLED, NOT_SENT, OK, UNANSWERED, Exchange

POLL_S = 0.05
PAUSE_AFTER_FAILURE_S = 0.1
"""A server that refuses at once shall not be asked as fast as the client can."""

Due = Iterator[tuple[int, int]]


class PreciseSelector(selectors.EpollSelector):
    """Waits with the microseconds of ``select`` on the descriptor of ``epoll``, whose own timeouts are milliseconds."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """What is ready within ``timeout`` seconds."""
        if timeout is not None and timeout > 0:
            select.select((self.fileno(),), (), (), timeout)
            timeout = 0
        return super().select(timeout)


def precise_event_loop() -> asyncio.AbstractEventLoop:
    """An event loop whose timers are not late by a millisecond."""
    return asyncio.SelectorEventLoop(PreciseSelector())


class LoadLoop:
    """Asks until it is stopped, and waits for what was asked before; ``book`` takes what became of each.

    Args:
        due: nanoseconds after the start at which requests are meant to be sent, and the index of whom to ask; None: closed loop.
        most: requests in flight at the most; of the closed loop: always.
        follow_s: how long the answers to what was asked before the stop are waited for.
        goes_on: meanwhile it asks on, so that those answers take as long as any; otherwise it asks nothing more.
        left: status of what has no answer then, and of what should have been asked and found no room.
        empty_s: how long it then waits, asking nothing more, until whoever is asked has nothing of it to do; ``hurry`` ends that.
        on_depth: told the number of requests in flight.
        alive: raises when there is nobody to ask any more; called several times a second.
    """

    def __init__(
        self,
        client: Client,
        questions: Iterator[Question],
        book: Callable[[Exchange], None],
        *,
        due: Due | None,
        most: int,
        follow_s: float,
        goes_on: bool = True,
        left: int = ABANDONED,
        empty_s: float = 0.0,
        on_depth: Callable[[int], None] = lambda _depth: None,
        alive: Callable[[], None] = lambda: None,
    ) -> None:
        self._client, self._questions, self._book = client, questions, book
        self._due, self._closed_loop = due or iter(()), due is None
        self._most = most
        self._follow_ns, self._goes_on, self._left = round(follow_s * NS_PER_S), goes_on, left
        self._on_depth, self._alive = on_depth, alive
        self._empty_ns, self._hurried, self._given_up = round(empty_s * NS_PER_S), threading.Event(), 0
        self._under_way: set[Exchange] = set()
        self._next: tuple[int, int] | None = None  # to be sent, or what waits for room
        self._turns: dict[asyncio.Task[None], Exchange] = {}  # of sessions, that are not due yet or wait for room
        self._room = asyncio.Semaphore(most)
        self._failure: asyncio.Future[None]
        self._over = False
        self.abandoned = 0

    @property
    def in_flight(self) -> int:
        """Requests that have no answer yet."""
        return len(self._under_way)

    @property
    def idle(self) -> bool:
        """Whether all that it asked was answered when it ended, so that whoever was asked has nothing of it to do."""
        return not self._given_up

    def hurry(self) -> None:
        """Wait no longer than for the answers to what was asked before the stop."""
        self._hurried.set()

    def run(self, stopping: threading.Event) -> None:
        """Ask until ``stopping`` or the end of what is due. Raises what ``alive``, ``book`` and the questions raise."""
        with asyncio.Runner(loop_factory=precise_event_loop) as runner:
            runner.run(self.ask_until(stopping))

    async def ask_until(self, stopping: threading.Event) -> None:
        """``run``, in an event loop that is there already."""
        self._failure = asyncio.get_running_loop().create_future()
        await self._client.open()
        sender = asyncio.ensure_future(self._ask_always() if self._closed_loop else self._ask_on_time())
        stopped_ns = 0
        try:
            while not stopped_ns or (time.perf_counter_ns() < stopped_ns + self._follow_ns and self._waits(stopped_ns)):
                await asyncio.wait((self._failure, sender), timeout=POLL_S, return_when=asyncio.FIRST_COMPLETED)
                for task in (self._failure, sender):
                    if task.done() and not task.cancelled():
                        task.result()
                self._alive()
                if not stopped_ns and (stopping.is_set() or sender.done()):
                    stopped_ns = time.perf_counter_ns()
                    if not self._goes_on:
                        sender.cancel()
            await self._wait_until_empty(sender)
        finally:
            self._over = True
            waiting = [sender, *self._turns]
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            await self._client.close()
            self._failure.cancel()
            self._give_up(stopped_ns or time.perf_counter_ns())

    async def _wait_until_empty(self, sender: asyncio.Future[None]) -> None:
        """Ask nothing more, and wait for whatever is under way."""
        if not self._empty_ns:
            return
        self._over, end_ns = True, time.perf_counter_ns() + self._empty_ns
        for task in (
            *(() if self._closed_loop else (sender,)),
            *self._turns,
        ):  # that of the closed loop waits for a failure
            task.cancel()
        while self._under_way and time.perf_counter_ns() < end_ns and not self._hurried.is_set():
            await asyncio.wait((self._failure,), timeout=POLL_S)
            if self._failure.done():
                self._failure.result()
            self._alive()

    async def _ask_always(self) -> None:
        for _ in range(self._most):
            self._ask_next()
        await self._failure

    def _ask_next(self) -> None:
        if not self._over:
            question = next(self._questions)  # made before its time counts
            self._begin(question, Exchange(time.perf_counter_ns()), self._ask_after)

    def _ask_after(self, exchange: Exchange) -> None:
        if exchange.status in {OK, CANCELLED}:
            self._ask_next()
        else:
            asyncio.get_running_loop().call_later(PAUSE_AFTER_FAILURE_S, self._or_fail, self._ask_next)

    async def _ask_on_time(self) -> None:
        start_ns = time.perf_counter_ns()
        self._due = ((start_ns + after_ns, target) for after_ns, target in self._due)
        for due_ns, target in self._due:
            self._next = due_ns, target
            if not self._client.sends_at_once:
                await asyncio.sleep(0)  # let the one before be sent
            question = next(self._questions)  # made before its time has come
            await asyncio.sleep(max(due_ns - time.perf_counter_ns(), 0) / NS_PER_S)
            await self._room.acquire()  # what waits here is sent late, and its latency says so
            self._next = None
            self._begin(question, Exchange(due_ns, target=target), lambda _exchange: self._room.release())

    def _begin(
        self,
        question: Question,
        exchange: Exchange,
        then: Callable[[Exchange], None],
        session: tuple[int, Iterator[Question]] | None = None,
    ) -> None:
        """Send it; ``session``: of a later turn, when the first one was meant to be sent, and the turns after this one."""
        start_ns, following = session or (exchange.intended_ns, question.following)
        upcoming: list[Question] = []

        def prepare() -> None:
            upcoming.extend(itertools.islice(following, 1))

        def ended(exchange: Exchange) -> None:
            self._under_way.discard(exchange)
            self._on_depth(len(self._under_way))
            self._or_fail(self._book, exchange)
            self._given_up += exchange.status == UNANSWERED  # whoever was asked may have it to do still
            if self._over and self._empty_ns:
                return
            follows = question.goes_on and exchange.status == OK
            if follows:
                turn = upcoming.pop() if upcoming else next(following)
                self._or_fail(self._follow, turn, exchange, then, (start_ns, following))
            elif question.goes_on:
                self._or_fail(self._end_session, question, exchange)
            if not (follows and self._closed_loop):  # where a session keeps its place to its end
                self._or_fail(then, exchange)

        exchange.session, exchange.turn = question.session, question.turn
        self._under_way.add(exchange)
        self._on_depth(len(self._under_way))
        self._client.begin(question, exchange, ended)
        if question.goes_on:  # made while the answer comes, so that the next turn is not late for it
            asyncio.get_running_loop().call_soon(self._or_fail, prepare)

    def _follow(
        self,
        turn: Question,
        answered: Exchange,
        then: Callable[[Exchange], None],
        session: tuple[int, Iterator[Question]],
    ) -> None:
        """Have the next turn sent a delay after the end of the answer before it: whatever was late before, it is not later."""
        due_ns = max(answered.end_ns + round(turn.delay_s * NS_PER_S), session[0] + round(turn.offset_s * NS_PER_S))
        exchange = Exchange(due_ns, target=answered.target, session=turn.session, turn=turn.turn)

        async def ask() -> None:
            await asyncio.sleep(max(due_ns - time.perf_counter_ns(), 0) / NS_PER_S)
            if not self._closed_loop:
                await self._room.acquire()
            self._turns.pop(task)
            self._begin(turn, exchange, then, session)

        task = asyncio.ensure_future(ask())
        self._turns[task] = exchange

    def _end_session(self, question: Question, failed: Exchange) -> None:
        """Book the turns that are not sent, for the one before them has no good answer."""
        for turn in range(question.turn + 1, question.turns + 1):
            self._book(
                Exchange(
                    failed.end_ns,
                    end_ns=failed.end_ns,
                    status=NOT_SENT,
                    target=failed.target,
                    session=question.session,
                    turn=turn,
                )
            )

    def _or_fail(self, step: Callable[..., None], *arguments: Any) -> None:
        """Do it in a callback; what it raises is raised where the loop is waited for."""
        try:
            step(*arguments)
        except Exception as error:  # noqa: BLE001 - see above
            if not self._failure.done():
                self._failure.set_exception(error)

    def _waits(self, stopped_ns: int) -> bool:
        """Whether there is no answer yet to something that was to be asked before that time."""
        unsent = self._goes_on and self._next is not None and self._next[0] <= stopped_ns
        begun = itertools.chain(self._under_way, self._turns.values())
        return unsent or any(exchange.intended_ns <= stopped_ns for exchange in begun)

    def _give_up(self, stopped_ns: int) -> None:
        """Book what was asked before the stop and has no answer, and what should have been asked and found no room."""
        now_ns = time.perf_counter_ns()
        due = itertools.chain([] if self._next is None else [self._next], self._due)
        unsent = (Exchange(due_ns, target=target) for due_ns, target in due)
        late = itertools.takewhile(lambda exchange: exchange.intended_ns <= stopped_ns, unsent)
        self._given_up += len(self._under_way)
        for exchange in itertools.chain(self._under_way, self._turns.values(), late):
            if exchange.intended_ns <= stopped_ns:
                exchange.status, exchange.end_ns = self._left, now_ns
                self._book(exchange)
                self.abandoned += 1
        self._under_way.clear()
        self._turns.clear()
        self._on_depth(0)
