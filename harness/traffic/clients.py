"""Clients of a server: one request from its intended time to the end of its answer, with the time of every token."""

from __future__ import annotations

import asyncio
import base64
import os
import ssl
import time
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

from harness.errors import LoadError
from harness.spec.server import Protocol, ServerSpec
from harness.traffic.framing import Event, Framing, Received, WholeBody, framing_of
from harness.traffic.http_answer import AnswerHead, BrokenAnswerError, DroppedError, ForeignAnswerError
from harness.traffic.http_client import HttpConnection, head_of, request_of, speaks_tls
from harness.traffic.protocols import (
    DIALECTS,
    UNKNOWN,
    BadAnswerError,
    Carries,
    Counts,
    EventStream,
    Question,
    body_of,
    counted,
    read_whole,
)
from harness.traffic.records import BAD_ANSWER, BROKEN, CANCELLED, OK, UNANSWERED, Exchange

BEARER = "Authorization"
HIDDEN = "(key)"
_URL_SAFE = str.maketrans("+/", "-_")
_TELLING_LETTERS = 4
_MOST_SAID = 300
_BEGIN_BYTES = 80
_REDIRECTIONS = range(300, 400)
_TOO_MANY = 429
_HELD_S = 0.25
"""How long a stream may stay open after it has said that it is over; then its connection is closed, and not kept."""


class Client(ABC):
    """Sends requests, any number at a time."""

    sends_at_once = False
    """``begin`` has sent it when it returns, where there is a connection."""

    async def open(self) -> None:  # noqa: B027 - most cannot
        """Connect ahead, where that can be."""

    @abstractmethod
    def begin(self, question: Question, exchange: Exchange, ended: Callable[[Exchange], None]) -> None:
        """Send it, and call ``ended`` once it is written down what became of it; raises nothing for what the server does."""

    @abstractmethod
    async def close(self) -> None:
        """Let go of what is under way, whose ``ended`` is not called, and close all connections."""


class ServerClient(Client):
    """Asks one server of the user's own. Raises LoadError where its key is not there."""

    def __init__(self, server: ServerSpec) -> None:
        self._server = server
        self._key = server_key(server)
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, question: Question, exchange: Exchange, ended: Callable[[Exchange], None]) -> None:
        """Send it; see Client."""

        async def ask() -> None:
            ended(await self.ask(question, exchange))

        task = asyncio.ensure_future(ask())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def ask(self, question: Question, exchange: Exchange) -> Exchange:
        """Send it now, read the answer and write down what became of it; never raises for what the server does."""
        limit_s = self._server.request_timeout_s
        cancels = question.cancel_after_s is not None and question.cancel_after_s < limit_s
        try:
            async with asyncio.timeout(question.cancel_after_s if cancels else limit_s):
                await self._ask(question, exchange)
        except TimeoutError:
            exchange.status, exchange.said = (
                (CANCELLED, "") if cancels else (UNANSWERED, f"no whole answer within {limit_s:g} s")
            )
        except (BadAnswerError, ForeignAnswerError) as error:
            exchange.status, exchange.said = BAD_ANSWER, str(error)
        except (OSError, BrokenAnswerError) as error:
            exchange.status, exchange.said = BROKEN, str(error)
        exchange.end_ns = exchange.end_ns or time.perf_counter_ns()
        exchange.asked_tokens = question.input_tokens
        if exchange.status == OK and exchange.input_tokens == UNKNOWN:
            exchange.input_tokens = question.input_tokens
        if exchange.said:  # a server may repeat the key that it does not take, and what it says is written down
            exchange.said = without_key(exchange.said, self._key)[:_MOST_SAID]
        return exchange

    async def close(self) -> None:
        """Let go of what is under way."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @abstractmethod
    async def _ask(self, question: Question, exchange: Exchange) -> None:
        """Send the request, and write down its answer; raises BadAnswerError, BrokenAnswerError or OSError."""


class HttpClient(ServerClient):
    """Sends requests over connections that it keeps, over TLS or not."""

    def __init__(self, server: ServerSpec, port: int, host: str, *, tls: bool = False) -> None:
        super().__init__(server)
        self._address = (host, port)
        self._tls = ssl.create_default_context() if tls else None
        headers, dialect = request_headers(server), DIALECTS.get(server.protocol)
        given = {name.lower() for name in headers}
        ours = {name: value for name, value in dialect.headers.items() if name not in given} if dialect else {}
        self._head = head_of(server.method, server.target, self._address, {**ours, **headers})
        self._success = server.success.status if server.protocol is Protocol.HTTP else OK
        self._idle: list[HttpConnection] = []
        self._probed = False

    async def close(self) -> None:
        """Let go of what is under way, and close the connections that are idle."""
        await super().close()
        while self._idle:
            self._idle.pop().close()
        await asyncio.sleep(0)  # the loop lets go of them in its next turn

    async def _ask(self, question: Question, exchange: Exchange) -> None:
        request = request_of(self._head, body_of(self._server, question))
        reply = _Reply(self._server, self._success, exchange, self._key)
        connection = await self._connection()
        try:
            exchange.sent_ns = time.perf_counter_ns()
            head = await self._answer(connection, request, reply)
        except DroppedError:
            if connection.requests == 1:
                await self._refuse_other_protocol()
                raise
            # The server had closed it while it was idle, and the request has crossed with that.
            exchange.repeated += 1
            connection = await HttpConnection.open(*self._address, self._tls)
            head = await self._answer(connection, request, reply)
        if head.status == self._success:
            reply.end(head)
            exchange.end_ns = max(reply.arrived_ns or connection.arrived_ns, exchange.sent_ns)
        else:
            exchange.status = head.status if head.status != OK else BAD_ANSWER
            exchange.said = refusal(head, reply.body(head))

    async def _answer(self, connection: HttpConnection, request: bytes, reply: _Reply) -> AnswerHead:
        """Of one request; the connection is kept or closed."""
        try:
            async with asyncio.timeout(None) as reply.limit:
                return await connection.ask(request, reply.take)
        except (TimeoutError, BrokenAnswerError):
            if reply.head is None or not reply.over:
                raise
            return reply.head  # it had said that it is over: what became of the connection after that is not part of it
        finally:
            if connection.stale:
                connection.close()
            else:
                self._idle.append(connection)

    async def _refuse_other_protocol(self) -> None:
        """Once: many a server that is for https:// alone closes the connection of whoever asks otherwise, without a word."""
        if self._tls is None and not self._probed:
            self._probed = True
            if await speaks_tls(*self._address):
                raise ForeignAnswerError("the server uses TLS: call it at https://")

    async def _connection(self) -> HttpConnection:
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
            connection.close()
        return await HttpConnection.open(*self._address, self._tls)


class _Reply:
    """One answer: the events of a stream as they arrive, the body of any other at its end."""

    def __init__(self, server: ServerSpec, success: int, exchange: Exchange, key: str) -> None:
        self._server, self._success, self._exchange, self._key = server, success, exchange, key
        self._framing: Framing | None = None
        self._begin = b""
        self.arrived_ns = 0
        """When the last event did that carries output or says the end."""
        self.head: AnswerHead | None = None
        self.limit: asyncio.Timeout | None = None
        """Of the time in which the connection ends the answer, once that is over."""
        self._stream = EventStream(server, self._without_key) if server.streams else None

    def take(self, head: AnswerHead, pieces: list[bytes], arrived_ns: int) -> None:
        """Some of its body. Raises BadAnswerError."""
        if self._framing is None:
            self._framing = self._framing_of(head, pieces[0])
            self._begin = pieces[0]
        self.head = head
        for piece in pieces:
            self._hand_over(self._framing.feed(piece, arrived_ns))
        if self.over and self.limit and self.limit.when() is None:
            self.limit.reschedule(asyncio.get_running_loop().time() + _HELD_S)

    @property
    def over(self) -> bool:
        """It has said that nothing more comes."""
        return self._stream is not None and self._stream.over

    def end(self, head: AnswerHead) -> None:
        """It is whole, and its status is that of success: write down what it says. Raises BadAnswerError."""
        if self._stream:
            framing = self._framing or self._framing_of(head, b"")
            self._hand_over(framing.end())
            begin, cut = self._without_key(self._begin)[:_BEGIN_BYTES], self._without_key(framing.cut)
            counts = self._stream.end(Received(head, framing.kind, begin, cut))
        else:
            counts = read_whole(self._server, self.body(head), head.content_type)
        write_counts(self._exchange, counts)

    def body(self, head: AnswerHead) -> bytes:
        """The whole body of an answer that is no stream."""
        (event,) = (self._framing or self._framing_of(head, b"")).end()
        self.arrived_ns = event.arrived_ns
        return self._without_key(event.data)

    def _without_key(self, data: bytes) -> bytes:
        """What is quoted of it may be cut where a key could no longer be told."""
        if not self._key:
            return data
        return without_key(data.decode(errors="surrogateescape"), self._key).encode(errors="surrogateescape")

    def _framing_of(self, head: AnswerHead, begin: bytes) -> Framing:
        streams = self._server.streams and head.status == self._success
        return framing_of(head, begin) if streams else WholeBody()

    def _hand_over(self, events: list[Event]) -> None:
        if self._stream is None:
            return
        for event in events:
            carried = self._stream.take(event)
            if carried:
                self.arrived_ns = event.arrived_ns
            if carried > Carries.END:
                self._exchange.token_ns.append(event.arrived_ns)
                if carried is Carries.OUTPUT and not self._exchange.answer_ns:
                    self._exchange.answer_ns = event.arrived_ns


def write_counts(exchange: Exchange, counts: Counts) -> None:
    """It was answered well."""
    exchange.status = OK
    exchange.input_tokens, exchange.output_tokens, exchange.source = (
        counts.input_tokens,
        counts.output_tokens,
        counts.source,
    )


def refusal(head: AnswerHead, body: bytes) -> str:
    """A status that is none of success, for people: with where it sends one, or when to come again."""
    said = f"HTTP {head.status}"
    if head.status in _REDIRECTIONS:
        said += f", which is not followed: it leads to {head.headers.get('location', 'no Location that it names')}"
    elif head.status == _TOO_MANY:
        after = head.headers.get("retry-after")
        said += ", rate limited" + (f" (Retry-After: {after})" if after else "")
    return f"{said}: {' '.join(body.decode(errors='replace').split())}"


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


class UserClient(ServerClient):
    """Sends requests through the user's client."""

    def __init__(self, server: ServerSpec, client: OwnClient) -> None:
        super().__init__(server)
        self._client = client

    async def close(self) -> None:
        """Let go of what is under way, and have the client close its connections."""
        await super().close()
        await self._client.close()

    async def _ask(self, question: Question, exchange: Exchange) -> None:
        exchange.sent_ns = time.perf_counter_ns()

        def on_token() -> None:
            exchange.token_ns.append(time.perf_counter_ns())

        try:
            said = await self._client.ask(question.prompt, question.output_tokens, on_token) or {}
        except OSError:
            raise
        except Exception as error:
            raise BadAnswerError(f"{type(error).__name__}: {error}") from error
        exchange.answer_ns = exchange.token_ns[0] if exchange.token_ns else 0
        write_counts(exchange, counted(said, len(exchange.token_ns) if self._server.streams else 0))


def server_key(server: ServerSpec) -> str:
    """The server's key; empty where it needs none. Raises LoadError where its variable is not set."""
    key = os.environ.get(server.api_key_env, "").strip() if server.api_key_env else ""
    if server.api_key_env and not key:
        raise LoadError(f"the variable {server.api_key_env}, which should hold the server's key, is not set.")
    return key


def without_key(text: str, key: str) -> str:
    """What a server said, with neither the key nor its base64, which may begin at any of three bits of what was encoded."""
    for start, before in enumerate((0, 2, 3)) if key else ():
        raw = b"\0" * start + key.encode()
        encoded = base64.b64encode(raw).decode().rstrip("=")
        inside = encoded[before : len(raw) * 8 // 6]  # but for letters that hold bits of what stands beside it
        for form in (inside, inside.translate(_URL_SAFE)):
            text = text.replace(form, HIDDEN) if len(form) >= _TELLING_LETTERS else text
    return text.replace(key or HIDDEN, HIDDEN)


def request_headers(server: ServerSpec) -> dict[str, str]:
    """The requests' headers, with the key. Raises LoadError where its variable is not set."""
    key = server_key(server)
    if not key:
        return dict(server.headers)
    return {
        **server.headers,
        server.api_key_header: f"Bearer {key}" if server.api_key_header.title() == BEARER else key,
    }
