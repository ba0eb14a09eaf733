"""Clients of an HTTP server: connections that stay open, one request at a time on each.

Own code and not an HTTP library's, because a request costs it 30 microseconds instead of 300, and what is left of
the CPU decides how exactly the next one is sent.
"""

from __future__ import annotations

import contextlib
import errno
import re
import select
import socket
from collections.abc import Callable
from dataclasses import dataclass

from harness.traffic.requests_log import FAILED

_RECEIVE_BYTES = 1 << 16
_MOST_ANSWER_BYTES = 1 << 20
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)", re.IGNORECASE)
_CLOSES = re.compile(rb"\r\nconnection:[ \t]*close", re.IGNORECASE)


@dataclass(slots=True)
class Sent:
    """A request on its way.

    Attributes:
        target: index of the server.
        intended_ns: when it should have been sent, nanoseconds since the epoch.
        sent_ns: when it was, likewise; 0: not yet.
    """

    target: int
    intended_ns: int
    sent_ns: int = 0


class Client:
    """One connection."""

    def __init__(self, address: tuple[str, int], target: int) -> None:
        self.target = target
        self.request: Sent | None = None
        self.connected = False
        self.idle = False
        self.answer = bytearray()
        self.socket = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET)
        self.socket.setblocking(False)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        code = self.socket.connect_ex(address)
        if code not in {0, errno.EINPROGRESS}:
            self.socket.close()
            raise OSError(code, "cannot connect")


class Clients:
    """All connections to all targets.

    Args:
        targets: host and port of each server.
        most: connections in all; a request beyond them waits for one to be free.
        now_ns: nanoseconds since the epoch.
        answered: called for each request that ended, with its HTTP status or FAILED.
        one_clock: servers are told the intended time, which another machine's clock would make nothing of.
    """

    def __init__(
        self,
        targets: list[tuple[str, int]],
        *,
        most: int,
        now_ns: Callable[[], int],
        answered: Callable[[Sent, int], None],
        one_clock: bool = True,
    ) -> None:
        self._targets = targets
        self._most = most
        self._now_ns = now_ns
        self._answered = answered
        self._one_clock = one_clock
        self._heads = [_head(host, port) for host, port in targets]
        self._idle: list[list[Client]] = [[] for _ in targets]
        self._by_fd: dict[int, Client] = {}
        self._poll = select.epoll()

    @property
    def fd(self) -> int:
        """Ready to read when ``handle`` has something to do."""
        return self._poll.fileno()

    @property
    def busy(self) -> list[Client]:
        """Connections with a request on them."""
        return [client for client in self._by_fd.values() if client.request is not None]

    @property
    def opened(self) -> int:
        """Connections that are open."""
        return len(self._by_fd)

    def open(self, count: int) -> None:
        """Have ``count`` connections ready, shared evenly by the targets."""
        for number in range(min(count, self._most)):
            with contextlib.suppress(OSError):  # said when a request needs it
                self._rest(self._connect(number % len(self._targets)))

    def send(self, request: Sent) -> bool:
        """Send now; False when every connection is taken."""
        idle = self._idle[request.target]
        if not idle and len(self._by_fd) >= self._most and not self._close_an_idle_one():
            return False
        try:
            client = idle.pop() if idle else self._connect(request.target)
        except OSError:
            request.sent_ns = self._now_ns()
            self._answered(request, FAILED)
            return True
        client.idle = False
        client.request = request
        if client.connected:
            self._write(client)
        return True

    def handle(self) -> None:
        """Take what has arrived."""
        for fd, _ in self._poll.poll(0):
            client = self._by_fd.get(fd)
            if client is None:
                continue
            if not client.connected:
                self._on_connected(client)
            else:
                self._receive(client)

    def give_up(self, client: Client) -> None:
        """Close a connection whose request is no longer waited for."""
        client.request = None
        self._close(client)

    def close(self) -> None:
        """Close every connection."""
        for client in list(self._by_fd.values()):
            self._close(client)
        self._poll.close()

    def _rest(self, client: Client) -> None:
        if not client.idle:
            client.idle = True
            self._idle[client.target].append(client)

    def _connect(self, target: int) -> Client:
        client = Client(self._targets[target], target)
        self._by_fd[client.socket.fileno()] = client
        self._poll.register(client.socket, select.EPOLLOUT)
        return client

    def _on_connected(self, client: Client) -> None:
        if client.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._fail(client)
            return
        client.connected = True
        self._poll.modify(client.socket, select.EPOLLIN)
        if client.request is not None:
            self._write(client)

    def _write(self, client: Client) -> None:
        request = client.request
        assert request is not None  # noqa: S101 - the callers' promise
        try:
            # So short that a socket with nothing in flight takes it whole.
            client.socket.send(
                b"%s%d\r\n\r\n" % (self._heads[client.target], request.intended_ns if self._one_clock else 0)
            )
            request.sent_ns = self._now_ns()
        except OSError:
            self._fail(client)

    def _receive(self, client: Client) -> None:
        try:
            data = client.socket.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        client.answer += data
        if not data or len(client.answer) > _MOST_ANSWER_BYTES:
            self._fail(client)
            return
        ended = _status_of_whole(client.answer)
        if ended is None:
            return
        status, closes = ended
        request, client.request = client.request, None
        client.answer.clear()
        if status == FAILED or closes:
            self._close(client)
        else:
            self._rest(client)
        if request is not None:
            self._answered(request, status)

    def _fail(self, client: Client) -> None:
        request, client.request = client.request, None
        self._close(client)
        if request is not None:
            request.sent_ns = request.sent_ns or self._now_ns()
            self._answered(request, FAILED)

    def _close(self, client: Client) -> None:
        del self._by_fd[client.socket.fileno()]
        if client.idle:
            self._idle[client.target].remove(client)
        client.socket.close()

    def _close_an_idle_one(self) -> bool:
        """Make room for another target's client."""
        for idle in self._idle:
            if idle:
                self._close(idle[0])
                return True
        return False


def _head(host: str, port: int) -> bytes:
    return f"POST /infer HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Length: 0\r\nX-Intended-Ns: ".encode()


def _status_of_whole(answer: bytearray) -> tuple[int, bool] | None:
    """Status of a complete answer and whether the server closes; None while more is to come, FAILED when not HTTP."""
    end = answer.find(b"\r\n\r\n")
    if end < 0:
        return None
    head = bytes(answer[:end])
    length = _LENGTH.search(head)
    if not head.startswith(b"HTTP/1.") or not head[9:12].isdigit() or length is None:
        return FAILED, True
    if len(answer) < end + 4 + int(length[1]):
        return None
    return int(head[9:12]), _CLOSES.search(head) is not None
