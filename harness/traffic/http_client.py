"""Connections to a server over HTTP/1.1: one request at a time, and when each byte of its answer arrived.

The sockets are our own: the time of a token is the time at which the kernel had it, and neither a proxy that the environment
names nor a redirect gets in between.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
import time
from collections.abc import Callable, Mapping
from typing import Any, cast

from harness.traffic.http_answer import AnswerHead, AnswerParser, BrokenAnswerError, ForeignAnswerError

NS_PER_S = 1_000_000_000
_PIECE_BYTES = 1 << 16
_TIMESTAMPS = 35
"""SO_TIMESTAMPNS of Linux, and the kind of what it adds to the data: the socket module has no name for it."""
_STAMP = struct.Struct("qq")
_SAID_BYTES = socket.CMSG_SPACE(_STAMP.size)
HANDSHAKE_S, _PROBE_S = 10.0, 1.0
_NO_TLS = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "UNSUPPORTED_PROTOCOL"})
"""What OpenSSL calls an answer that is none of its own."""
_OF_THE_LENGTH = frozenset({"content-length", "transfer-encoding"})
"""Say how long a body is, which only who sends it knows."""

Take = Callable[[AnswerHead, list[bytes], int], None]
"""Takes pieces of an answer's body, and when the last of them arrived by ``time.perf_counter_ns``; what it raises ends the request."""


class StampedSocket(socket.socket):
    """Remembers when what was read from it had arrived, as Linux says it.

    That is before its turn to be read: where an engine sends a token to each of hundreds of streams at once, the last of
    them would wait for the reading of all others.
    """

    arrived_ns = 0
    """Of the last of it, by ``time.perf_counter_ns``; 0: nothing was read yet."""

    def __init__(self, family: int, kind: int, number: int) -> None:
        super().__init__(family, kind, number)
        self.setblocking(False)
        with contextlib.suppress(OSError):
            self.setsockopt(socket.SOL_SOCKET, _TIMESTAMPS, 1)

    def recv(self, size: int, flags: int = 0, /) -> bytes:
        """What asyncio reads with."""
        data, said, _, _ = self.recvmsg(min(size, _PIECE_BYTES), _SAID_BYTES, flags)
        self._note(said)
        return data

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        """What asyncio reads with below TLS."""
        size, said, _, _ = self.recvmsg_into([memoryview(buffer)[: nbytes or None]], _SAID_BYTES, flags)
        self._note(said)
        return size

    def hung_up(self) -> bool:
        """Whether the other end has closed it, and nothing is left to read."""
        try:
            return not super().recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def _note(self, said: list[tuple[int, int, bytes]]) -> None:
        arrived_ns = read_ns = time.perf_counter_ns()  # the kernel says nothing until it has begun to look at the clock
        for _, kind, stamp in said:
            if kind == _TIMESTAMPS:
                seconds, rest_ns = _STAMP.unpack(stamp)
                arrived_ns = seconds * NS_PER_S + rest_ns - time.time_ns() + time.perf_counter_ns()
        # Whatever happens to the system's clock: neither after it was read nor before what came before.
        self.arrived_ns = max(self.arrived_ns, min(arrived_ns, read_ns))


class HttpConnection(asyncio.Protocol):
    """One connection, for one request at a time.

    An answer is parsed where it is received, without a task that would have to be woken for each piece of it.
    """

    def __init__(self, socket: StampedSocket) -> None:
        self.requests = 0
        """Sent over it."""
        self.stale = False
        """It is closed, or is about to be: nothing more can be asked over it."""
        self._socket = socket
        self._transport: asyncio.Transport
        self._parser = AnswerParser()
        self._take: Take
        self._whole: asyncio.Future[AnswerHead] | None = None

    @staticmethod
    async def open(host: str, port: int, tls: ssl.SSLContext | None = None) -> HttpConnection:
        """Connect; ``tls``: what to trust, None: without TLS. Raises OSError, or ForeignAnswerError where its TLS is not ours."""
        loop = asyncio.get_running_loop()
        connected = await _connected(loop, host, port)
        try:
            _, connection = await loop.create_connection(
                lambda: HttpConnection(connected),
                sock=connected,
                ssl=tls,
                server_hostname=host if tls else None,
                ssl_handshake_timeout=HANDSHAKE_S if tls else None,
            )
        except ssl.SSLError as error:
            raise tls_error(error, host, port) from error
        except ConnectionAbortedError as error:
            silent = f"no TLS with {authority(host, port)} within {HANDSHAKE_S:g} s, as of a server that is for http:// alone"
            raise ConnectionAbortedError(silent) from error
        return connection

    async def ask(self, request: bytes, take: Take) -> AnswerHead:
        """Send a request now and return when its answer is whole, all of which ``take`` was given.

        Raises OSError, BrokenAnswerError, or what ``take`` raises.
        """
        self._parser.begin()
        self._take = take
        self.requests += 1
        self._whole = asyncio.get_running_loop().create_future()
        if self.stale:
            self.connection_lost(None)
        self._transport.write(request)
        try:
            return await self._whole
        finally:
            self._whole = None
            self.stale |= not self._parser.keeps_open or not self._parser.complete or self._unsent

    @property
    def usable(self) -> bool:
        """Something can be asked over it: neither has it been said that it ends, nor has it just ended, as llama.cpp's do after a stream."""
        return not self.stale and not self._socket.hung_up()

    @property
    def arrived_ns(self) -> int:
        """When the last of what was read arrived; of ``time.perf_counter_ns``."""
        return self._socket.arrived_ns

    def close(self) -> None:
        """Close at once."""
        self.stale = True
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Of asyncio's protocols; so are the others."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Parse it, and hand on what is of the body."""
        waiting = self._whole
        if waiting is None or waiting.done():
            self.close()  # nothing was asked
            return
        parser = self._parser
        try:
            pieces = parser.feed(data)
            if pieces and parser.head is not None:
                self._take(parser.head, pieces, self._socket.arrived_ns)
        except Exception as error:  # noqa: BLE001 - raised where the answer is waited for
            waiting.set_exception(error)
            return
        if parser.complete and parser.head is not None:
            waiting.set_result(parser.head)

    def connection_lost(self, error: Exception | None) -> None:
        """It is closed, by whomever."""
        self.stale = True
        waiting, parser = self._whole, self._parser
        if waiting is None or waiting.done():
            return
        try:
            parser.end()
        except BrokenAnswerError as broken:
            broken.__cause__ = error
            waiting.set_exception(broken)
        else:
            waiting.set_result(cast("AnswerHead", parser.head))

    @property
    def _unsent(self) -> bool:
        """The server answered before it had read the whole request."""
        return self._transport.get_write_buffer_size() > 0


async def speaks_tls(host: str, port: int) -> bool:
    """Whether a server that answers nothing does answer a TLS handshake, whoever vouches for it."""
    anybody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anybody.check_hostname, anybody.verify_mode = False, ssl.CERT_NONE
    try:
        async with asyncio.timeout(_PROBE_S):
            (await HttpConnection.open(host, port, anybody)).close()
    except (OSError, BrokenAnswerError):
        return False
    return True


async def _connected(loop: asyncio.AbstractEventLoop, host: str, port: int) -> StampedSocket:
    """Try each address of the host in turn. Raises OSError."""
    refused = OSError(f"{host} has no address")
    for family, kind, number, _, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        connected = StampedSocket(family, kind, number)
        try:
            await loop.sock_connect(connected, address)
        except OSError as error:
            connected.close()
            refused = error
        except BaseException:
            connected.close()
            raise
        else:
            return connected
    if isinstance(refused, ConnectionRefusedError):
        raise ConnectionRefusedError(f"nothing listens on {authority(host, port)}") from refused
    raise refused


def tls_error(error: ssl.SSLError, host: str, port: int) -> ForeignAnswerError | OSError:
    """What a failed handshake means."""
    where = authority(host, port)
    if isinstance(error, ssl.SSLCertVerificationError):
        said = error.verify_message.rstrip(".")
        return ForeignAnswerError(
            f"the certificate of {where} is not trusted: {said}; name its authority's file in SSL_CERT_FILE"
        )
    if error.reason in _NO_TLS:
        return ForeignAnswerError(f"the server at {where} does not use TLS: call it at http://")
    return OSError(f"no TLS with {where}: {error.reason or error}")


def authority(host: str, port: int) -> str:
    """As in an address; IPv6 in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def head_of(method: str, target: str, address: tuple[str, int], headers: Mapping[str, str]) -> bytes:
    """A request up to its length; headers given replace ours, whatever their case. Raises ValueError for one that would end early."""
    ours = {
        "Host": authority(*address),
        "Content-Type": "application/json",
        "Accept": "*/*",
        "Accept-Encoding": "identity",
    }
    theirs = {name: value for name, value in headers.items() if name.lower() not in _OF_THE_LENGTH}
    given = {name.lower() for name in theirs}
    lines = {**{name: value for name, value in ours.items() if name.lower() not in given}, **theirs}
    if any("\r" in text or "\n" in text for pair in lines.items() for text in pair):
        raise ValueError("a header of the requests holds a line break")
    return "".join(
        [f"{method} {target} HTTP/1.1\r\n", *(f"{name}: {value}\r\n" for name, value in lines.items())]
    ).encode()


def request_of(head: bytes, body: bytes) -> bytes:
    """All that is sent."""
    return b"%sContent-Length: %d\r\n\r\n%s" % (head, len(body), body)
