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
from harness.traffic.http_client import BrokenAnswerError, HttpConnection, head_of
from harness.traffic.protocols import UNKNOWN, BadAnswerError, EventStream, Question, body_of, counted, read_whole
from harness.traffic.records import BAD_ANSWER, BROKEN, OK, UNANSWERED, Exchange

BEARER = "Authorization"
HIDDEN = "(key)"
_URL_SAFE = str.maketrans("+/", "-_")
_TELLING_LETTERS = 4
_MOST_SAID = 300


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
        try:
            async with asyncio.timeout(self._server.request_timeout_s):
                await self._ask(question, exchange)
        except TimeoutError:
            exchange.status, exchange.said = UNANSWERED, f"no whole answer within {self._server.request_timeout_s:g} s"
        except BadAnswerError as error:
            exchange.status, exchange.said = BAD_ANSWER, str(error)
        except (OSError, BrokenAnswerError) as error:
            exchange.status, exchange.said = BROKEN, str(error)
        exchange.end_ns = time.perf_counter_ns()
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
        self._head = head_of(server.method, server.target, self._address, request_headers(server))
        self._success = server.success.status if server.protocol is Protocol.HTTP else OK
        self._idle: list[HttpConnection] = []

    async def close(self) -> None:
        """Let go of what is under way, and close the connections that are idle."""
        await super().close()
        while self._idle:
            self._idle.pop().close()
        await asyncio.sleep(0)  # the loop lets go of them in its next turn

    async def _ask(self, question: Question, exchange: Exchange) -> None:
        body = body_of(self._server, question)
        connection = await self._connection()
        try:
            exchange.sent_ns = time.perf_counter_ns()
            await connection.send(self._head, body)
            await self._read(connection, exchange)
        finally:
            if connection.reusable:
                self._idle.append(connection)
            else:
                connection.close()

    async def _connection(self) -> HttpConnection:
        while self._idle:
            connection = self._idle.pop()
            if not connection.stale:
                return connection
            connection.close()
        return await HttpConnection.open(*self._address, self._tls)

    async def _read(self, connection: HttpConnection, exchange: Exchange) -> None:
        status, pieces = await connection.receive()
        if status == self._success and self._server.streams:
            stream = EventStream()
            async for piece in pieces:
                arrived_ns = connection.arrived_ns
                exchange.token_ns += [arrived_ns for _ in stream.feed(piece)]
            counts = stream.end()
        else:
            body = b"".join([piece async for piece in pieces])
            if self._key:
                body = without_key(body.decode(errors="surrogateescape"), self._key).encode(errors="surrogateescape")
            if status != self._success:
                exchange.status = status if status != OK else BAD_ANSWER
                exchange.said = f"HTTP {status}: {' '.join(body.decode(errors='replace').split())}"
                return
            counts = read_whole(self._server, body)
        exchange.status, (exchange.input_tokens, exchange.output_tokens) = OK, counts


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
        exchange.input_tokens, exchange.output_tokens = counted(
            {"prompt_tokens": said.get("input_tokens"), "completion_tokens": said.get("output_tokens")}
        )
        if exchange.output_tokens == UNKNOWN and self._server.streams:
            exchange.output_tokens = len(exchange.token_ns)
        exchange.status = OK


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
