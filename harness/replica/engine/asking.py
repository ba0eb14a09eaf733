"""One request from its intended time to the end of its answer, with the time of every token."""

from __future__ import annotations

import asyncio
import ssl
import time
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from harness.replica.engine.http_client import BrokenAnswerError, Connection, head_of
from harness.replica.engine.process import HOST
from harness.replica.engine.protocols import UNKNOWN, Answer, BadAnswerError, EventStream, Question, body_of, read_whole
from harness.replica.engine.settings import request_headers, server_key, without_key
from harness.replica.errors import WorkloadError
from harness.replica.registry import find_factory
from harness.spec.server import Protocol, ServerSpec

BROKEN = 0
"""No connection, or it broke."""
UNANSWERED = -1
"""No whole answer in time."""
BAD_ANSWER = -2
"""The answer is not what the protocol says, or does not meet the success condition."""
ABANDONED = -3
"""No whole answer yet when the load ended: what would have become of it is not known."""
OK = 200
_MOST_SAID = 300


@dataclass(slots=True, eq=False)
class Outcome:
    """What became of a request; times are of ``time.perf_counter_ns``.

    Attributes:
        status: OK; else HTTP's, BROKEN, UNANSWERED, BAD_ANSWER or ABANDONED.
        token_ns: when each piece of text arrived; empty without a stream.
        said: why it failed, for people.
    """

    intended_ns: int
    sent_ns: int = 0
    end_ns: int = 0
    status: int = BROKEN
    token_ns: list[int] = field(default_factory=list)
    input_tokens: int = UNKNOWN
    output_tokens: int = UNKNOWN
    said: str = ""

    @property
    def latency_ns(self) -> int:
        """From the intended time to the end."""
        return self.end_ns - self.intended_ns

    @property
    def ttft_ns(self) -> int:
        """From the intended time to the first token; UNKNOWN without one."""
        return self.token_ns[0] - self.intended_ns if self.token_ns else UNKNOWN

    def take(self, answer: Answer) -> None:
        """It was answered well."""
        self.status = OK
        self.input_tokens, self.output_tokens = answer.input_tokens, answer.output_tokens

    @property
    def gaps_ns(self) -> list[int]:
        """Between one token and the next."""
        return [later - earlier for earlier, later in zip(self.token_ns, self.token_ns[1:], strict=False)]


class Asker(ABC):
    """Sends requests to one server.

    Args:
        engine: what to ask.
    """

    def __init__(self, engine: ServerSpec) -> None:
        self._engine = engine
        self._key = server_key(engine)

    async def ask(self, question: Question, outcome: Outcome) -> Outcome:
        """Send it now, read the answer and write down what became of it; never raises for what the server does."""
        try:
            async with asyncio.timeout(self._engine.request_timeout_s):
                await self._exchange(question, outcome)
        except TimeoutError:
            outcome.status, outcome.said = UNANSWERED, f"no whole answer within {self._engine.request_timeout_s:g} s"
        except BadAnswerError as error:
            outcome.status, outcome.said = BAD_ANSWER, str(error)
        except (OSError, BrokenAnswerError) as error:
            outcome.status, outcome.said = BROKEN, str(error)
        outcome.end_ns = time.perf_counter_ns()
        if outcome.status == OK and outcome.input_tokens == UNKNOWN:
            outcome.input_tokens = question.input_tokens
        if outcome.said:  # a server may repeat the key that it does not take, and what it says is written down
            outcome.said = without_key(outcome.said, self._key)[:_MOST_SAID]
        return outcome

    @abstractmethod
    async def close(self) -> None:
        """Close the connections that are idle."""

    @abstractmethod
    async def _exchange(self, question: Question, outcome: Outcome) -> None:
        """Send the request, and write down its answer; raises BadAnswerError, BrokenAnswerError or OSError."""


class HttpAsker(Asker):
    """Sends requests over connections that it keeps.

    Args:
        engine: what to ask.
        port: of the server.
        host: of the server.
        tls: it is spoken to over TLS.
    """

    def __init__(self, engine: ServerSpec, port: int, host: str = HOST, *, tls: bool = False) -> None:
        super().__init__(engine)
        self._address = (host, port)
        self._tls = ssl.create_default_context() if tls else None
        self._head = head_of(engine.method, engine.target, self._address, request_headers(engine))
        self._success = engine.success.status if engine.protocol is Protocol.HTTP else OK
        self._idle: list[Connection] = []

    async def close(self) -> None:
        """Close the connections that are idle."""
        while self._idle:
            self._idle.pop().close()
        await asyncio.sleep(0)  # the loop lets go of them in its next turn

    async def _exchange(self, question: Question, outcome: Outcome) -> None:
        body = body_of(self._engine, question)
        connection = await self._connection()
        try:
            outcome.sent_ns = time.perf_counter_ns()
            await connection.send(self._head, body)
            await self._read(connection, outcome)
        finally:
            if connection.reusable:
                self._idle.append(connection)
            else:
                connection.close()

    async def _connection(self) -> Connection:
        while self._idle:
            connection = self._idle.pop()
            if not connection.stale:
                return connection
            connection.close()
        return await Connection.open(*self._address, self._tls)

    async def _read(self, connection: Connection, outcome: Outcome) -> None:
        status, pieces = await connection.receive()
        if status == self._success and self._engine.streams:
            stream = EventStream()
            async for piece in pieces:
                arrived_ns = connection.arrived_ns
                outcome.token_ns += [arrived_ns for _ in stream.feed(piece)]
            answer = stream.end()
        else:
            body = b"".join([piece async for piece in pieces])
            if self._key:
                body = without_key(body.decode(errors="surrogateescape"), self._key).encode(errors="surrogateescape")
            if status != self._success:
                outcome.status = status if status != OK else BAD_ANSWER
                outcome.said = f"HTTP {status}: {' '.join(body.decode(errors='replace').split())}"
                return
            answer = read_whole(self._engine, body)
        outcome.take(answer)


class OwnClient(typing.Protocol):
    """A client of the user's own, for a protocol that is not built in, as ``module:factory`` makes it.

    One for the whole load, whose requests overlap on one event loop, and one for each request before it.
    """

    async def ask(self, prompt: str, output_tokens: int, on_token: Callable[[], None]) -> Mapping[str, int] | None:
        """Send one request and return when its whole answer is there.

        ``on_token`` is called when a piece of the answer arrives, where it comes piece by piece. Returned are the counts
        that the server gives, ``input_tokens`` and ``output_tokens``, or None. OSError: the connection broke; any other
        exception: the answer is not what it should be, and its text says why.
        """
        ...

    async def close(self) -> None:
        """Close its connections."""
        ...


class OwnAsker(Asker):
    """Sends requests through the user's client; arguments as of Asker. Raises WorkloadError where there is no such client."""

    def __init__(self, engine: ServerSpec, port: int, host: str = HOST, *, tls: bool = False) -> None:
        super().__init__(engine)
        factory: Callable[..., OwnClient] = find_factory(engine.client or "", "`server.client`")  # type: ignore[assignment]
        try:
            self._client = factory(host=host, port=port, tls=tls, model=engine.model, headers=request_headers(engine))
        except Exception as error:
            said = without_key(f"{type(error).__name__}: {error}", self._key)
            raise WorkloadError(f"the client {engine.client} cannot be made: {said}") from error
        if not all(callable(getattr(self._client, name, None)) for name in ("ask", "close")):
            raise WorkloadError(f"{engine.client} returned a {type(self._client).__name__} without ask() and close().")

    async def close(self) -> None:
        """Have the client close its connections."""
        await self._client.close()

    async def _exchange(self, question: Question, outcome: Outcome) -> None:
        outcome.sent_ns = time.perf_counter_ns()

        def on_token() -> None:
            outcome.token_ns.append(time.perf_counter_ns())

        try:
            counts = await self._client.ask(question.prompt, question.output_tokens, on_token) or {}
        except OSError:
            raise
        except Exception as error:
            raise BadAnswerError(f"{type(error).__name__}: {error}") from error
        answer = Answer(finished=True, output_tokens=len(outcome.token_ns) if self._engine.streams else UNKNOWN)
        answer.take_usage(
            {"prompt_tokens": counts.get("input_tokens"), "completion_tokens": counts.get("output_tokens")}
        )
        outcome.take(answer)
