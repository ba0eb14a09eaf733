"""HTTP/1.1 over connections that stay open: one request, and its answer's body in the pieces in which it arrives.

Own code and not a library's: the base installation has no asynchronous client, and the time of a token is the time at
which its piece is read.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import SupportsIndex

NS_PER_S = 1_000_000_000
_PIECE_BYTES = 1 << 16
_MOST_LINE_BYTES = 1 << 16
_TIMESTAMPS = 35
"""SO_TIMESTAMPNS of Linux, and the kind of what it adds to the data: the socket module has no name for it."""
_STAMP = struct.Struct("qq")
_SAID_BYTES = socket.CMSG_SPACE(_STAMP.size)


class BrokenAnswerError(Exception):
    """The answer is no HTTP, or ended too early."""


class StampedSocket(socket.socket):
    """Remembers when what was read from it had arrived, as Linux says it.

    That is before its turn to be read: where an engine sends a token to each of hundreds of streams at once, the last of
    them would wait for the reading of all others.
    """

    arrived_ns = 0
    """Of the last of it, by ``time.perf_counter_ns``; 0: nothing was read in this way, as over TLS."""

    def __init__(self, family: int, kind: int, number: int) -> None:
        super().__init__(family, kind, number)
        self.setblocking(False)
        with contextlib.suppress(OSError):
            self.setsockopt(socket.SOL_SOCKET, _TIMESTAMPS, 1)

    def recv(self, size: int, flags: int = 0, /) -> bytes:
        """What asyncio reads with."""
        data, said, _, _ = self.recvmsg(size, _SAID_BYTES, flags)
        arrived_ns = read_ns = time.perf_counter_ns()  # it says nothing until it has begun to look at the clock
        for _, kind, stamp in said:
            if kind == _TIMESTAMPS:
                seconds, rest_ns = _STAMP.unpack(stamp)
                arrived_ns = seconds * NS_PER_S + rest_ns - time.time_ns() + time.perf_counter_ns()
        # Whatever happens to the system's clock: neither after it was read nor before what came before.
        self.arrived_ns = max(self.arrived_ns, min(arrived_ns, read_ns))
        return data


class StampedReader(asyncio.StreamReader):
    """Remembers when something arrived; where the socket cannot say it, when the loop received it."""

    arrived_ns = 0
    socket: StampedSocket | None = None

    def feed_data(self, data: Iterable[SupportsIndex]) -> None:
        """Take what the loop has received."""
        self.arrived_ns = (self.socket and self.socket.arrived_ns) or time.perf_counter_ns()
        super().feed_data(data)


class HttpConnection:
    """One connection, for one request at a time."""

    def __init__(self, reader: StampedReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.reusable = False
        """The last answer was read to its end, and the server keeps the connection open."""

    @staticmethod
    async def open(host: str, port: int, tls: ssl.SSLContext | None = None) -> HttpConnection:
        """Connect; ``tls``: what to trust, None: without TLS. Raises OSError."""
        loop = asyncio.get_running_loop()
        reader = StampedReader(limit=_MOST_LINE_BYTES, loop=loop)
        reader.socket = await _connected(loop, host, port)
        transport, protocol = await loop.create_connection(
            lambda: asyncio.StreamReaderProtocol(reader),
            sock=reader.socket,
            ssl=tls,
            server_hostname=host if tls else None,
        )
        return HttpConnection(reader, asyncio.StreamWriter(transport, protocol, reader, loop))

    @property
    def arrived_ns(self) -> int:
        """When the last of what there is to read arrived; of ``time.perf_counter_ns``."""
        return self._reader.arrived_ns

    @property
    def stale(self) -> bool:
        """The server closed it while it was idle."""
        return self._reader.at_eof()

    async def send(self, head: bytes, body: bytes) -> None:
        """Write one request. Raises OSError."""
        self.reusable = False
        self._writer.write(b"%sContent-Length: %d\r\n\r\n%s" % (head, len(body), body))
        await self._writer.drain()

    async def receive(self) -> tuple[int, AsyncIterator[bytes]]:
        """Status of the answer, and the pieces of its body. Raises OSError or BrokenAnswerError, here or in a piece."""
        line = await self._line()
        version, _, rest = line.partition(" ")
        if not version.startswith("HTTP/1.") or not rest[:3].isdigit():
            raise BrokenAnswerError(f"the answer is no HTTP: {line[:60]!r}")
        headers: dict[str, str] = {}
        while line := await self._line():
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip().lower()
        keep = "close" not in headers.get("connection", "") and version != "HTTP/1.0"
        if "chunked" in headers.get("transfer-encoding", ""):
            return int(rest[:3]), self._chunks(keep=keep)
        length = headers.get("content-length", "")
        return int(rest[:3]), self._plain(int(length), keep=keep) if length.isdigit() else self._until_closed()

    def close(self) -> None:
        """Close at once."""
        with contextlib.suppress(OSError, RuntimeError):
            self._writer.close()

    async def _line(self) -> str:
        try:
            line = await self._reader.readuntil(b"\n")
        except asyncio.IncompleteReadError as error:
            raise BrokenAnswerError("the connection closed before the answer was whole") from error
        except asyncio.LimitOverrunError as error:
            raise BrokenAnswerError("a line of the answer is too long") from error
        return line.rstrip(b"\r\n").decode("latin-1")

    async def _chunks(self, *, keep: bool) -> AsyncIterator[bytes]:
        while True:
            line = await self._line()
            try:
                size = int(line.split(";")[0], 16)
            except ValueError as error:
                raise BrokenAnswerError("the answer's chunks are broken") from error
            if size == 0:
                while await self._line():
                    pass
                self.reusable = keep
                return
            try:
                piece = await self._reader.readexactly(size + 2)
            except asyncio.IncompleteReadError as error:
                raise BrokenAnswerError("the connection closed before the answer was whole") from error
            yield piece[:-2]

    async def _plain(self, length: int, *, keep: bool) -> AsyncIterator[bytes]:
        while length:
            piece = await self._reader.read(min(length, _PIECE_BYTES))
            if not piece:
                raise BrokenAnswerError("the connection closed before the answer was whole")
            length -= len(piece)
            yield piece
        self.reusable = keep

    async def _until_closed(self) -> AsyncIterator[bytes]:
        while piece := await self._reader.read(_PIECE_BYTES):
            yield piece


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
    raise refused


def head_of(method: str, target: str, address: tuple[str, int], headers: Mapping[str, str]) -> bytes:
    """A request up to its length. Raises ValueError for a header that would end early."""
    host = f"[{address[0]}]" if ":" in address[0] else address[0]
    lines = {"Host": f"{host}:{address[1]}", "Content-Type": "application/json", "Accept": "*/*", **headers}
    if any("\r" in text or "\n" in text for pair in lines.items() for text in pair):
        raise ValueError("a header of the requests holds a line break")
    return "".join(
        [f"{method} {target} HTTP/1.1\r\n", *(f"{name}: {value}\r\n" for name, value in lines.items())]
    ).encode()
