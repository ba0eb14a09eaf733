"""What shows that a server is up, and what is seen instead while it is not."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import struct
import sys
import time
import typing
from collections.abc import Callable, Iterator
from pathlib import Path

from harness.replica.errors import WorkloadError
from harness.spec.server import ReadySpec
from harness.traffic.http_answer import BrokenAnswerError, ForeignAnswerError
from harness.traffic.http_client import authority
from harness.traffic.http_page import fetch

HOST = "127.0.0.1"
ASK_TIMEOUT_S = 2.0
SETTLED_S = 5.0
"""So long an answer that loading does not change is believed to be its last word."""
LOOK_S = 1.0
PROC = Path("/proc")
_OK = 200
_LAST_WORDS = frozenset({*range(300, 400), 401, 403, 405, 501})
"""Not 400 and 404, which servers give while they load."""
_LISTENS = "0A"
_ANYWHERE = frozenset({"0.0.0.0", "::"})  # noqa: S104 - looked for, not bound
_SESSION_FIELD = 3
"""Of /proc/PID/stat, behind the name."""


class Listening(typing.NamedTuple):
    """A socket that takes connections; ``file``: as a process's files name it."""

    address: str
    port: int
    file: str


class Readiness:
    """Looks whether the condition of ``ready`` holds, and says in the replica's log what it sees instead when that changes.

    Args:
        new_lines: what the server has printed since the last call.
        session: of the server's processes, where they are ours to see.
    """

    def __init__(
        self, ready: ReadySpec, port: int, *, new_lines: Callable[[], list[str]] = list, session: int | None = None
    ) -> None:
        self._ready, self._port, self._new_lines, self._session = ready, port, new_lines, session
        self._seen = ""
        self._since_s = self._looked_s = 0.0
        self._elsewhere: list[Listening] = []

    def holds(self) -> bool:
        """Whether it does. Raises WorkloadError where it never will."""
        if self._ready.log:
            if any(re.search(self._ready.log, line) for line in self._new_lines()):
                return True
            self._note(f"no line of its output matches {self._ready.log!r}", final=False)
        elif self._ready.path:
            return self._answers(self._ready.path)
        elif takes_connections(self._port):
            return True
        else:
            self._note_refusal()
        return False

    def _answers(self, path: str) -> bool:
        try:
            head, _ = fetch(f"http://{HOST}:{self._port}{path}", {}, timeout_s=ASK_TIMEOUT_S)
        except ConnectionRefusedError:
            self._note_refusal()
        except TimeoutError:
            self._note(f"GET {path} was not answered within {ASK_TIMEOUT_S:g} s", final=False)
        except ForeignAnswerError as error:
            raise WorkloadError(f"`server.ready`: GET {path}: {error}.") from error
        except (OSError, BrokenAnswerError) as error:
            self._note(f"GET {path}: {error}", final=False)
        else:
            if head.status == _OK:
                return True
            where = head.headers.get("location")
            to = f" with a redirect to {where}, which is not followed" if where else ""
            self._note(f"GET {path} answered {head.status}{to}", final=head.status in _LAST_WORDS)
        return False

    def _note_refusal(self) -> None:
        now_s = time.monotonic()
        if now_s >= self._looked_s + LOOK_S:
            self._looked_s = now_s
            self._elsewhere = self._where_it_listens()
        places = ", ".join(sorted({_shown(place, self._port) for place in self._elsewhere}))
        at_our_port = any(place.port == self._port for place in self._elsewhere)
        seen = f"nothing listens on {authority(HOST, self._port)}"
        self._note(seen + (f" (the server listens on {places})" if places else ""), final=at_our_port)

    def _where_it_listens(self) -> list[Listening]:
        """Instead: its processes' sockets; where they are not ours to see, as in a pod, whatever has that port of another address."""
        if self._session is None:
            return [place for place in listening() if place.port == self._port and place.address not in _ANYWHERE]
        files = _files_of_session(self._session)
        return [place for place in listening() if place.file in files]

    def _note(self, seen: str, *, final: bool) -> None:
        now_s = time.monotonic()
        if seen != self._seen:
            self._seen, self._since_s = seen, now_s
            sys.stderr.write(f"replica: the server is not ready: {seen}\n")
            sys.stderr.flush()
        elif final and now_s >= self._since_s + SETTLED_S:
            raise WorkloadError(f"`server.ready` is not met, and waiting will not change that: {seen}.")


def takes_connections(port: int) -> bool:
    """Whether something listens on a port of this machine, or pod."""
    try:
        socket.create_connection((HOST, port), timeout=ASK_TIMEOUT_S).close()
    except OSError:
        return False
    return True


def answers_200(url: str) -> bool:
    """Whether a GET of it is answered with 200."""
    try:
        return fetch(url, {}, timeout_s=ASK_TIMEOUT_S)[0].status == _OK
    except (OSError, BrokenAnswerError):
        return False


def listening(proc: Path = PROC) -> Iterator[Listening]:
    """The sockets of this machine, or pod, that take connections."""
    for table in ("tcp", "tcp6"):
        try:
            lines = (proc / "net" / table).read_text().splitlines()[1:]
        except OSError:
            continue  # there is no IPv6
        for line in lines:
            _, local, _, state, *rest = line.split()
            if state == _LISTENS:
                address, _, port = local.rpartition(":")
                yield Listening(_address(address), int(port, 16), f"socket:[{rest[5]}]")


def open_files(process: Path) -> list[str]:
    """What the links of a process's files say. Raises OSError."""
    files = []
    for link in (process / "fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # a connection that was closed meanwhile
            files.append(str(link.readlink()))
    return files


def _files_of_session(session: int) -> set[str]:
    files: set[str] = set()
    for process in PROC.glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            fields = (process / "stat").read_text(errors="replace").rpartition(")")[2].split()
            if int(fields[_SESSION_FIELD]) == session and process.name != str(os.getpid()):
                files.update(open_files(process))
    return files


def _address(text: str) -> str:
    """Of /proc/net: words of 32 bits in the machine's own order."""
    words = (int(text[at : at + 8], 16) for at in range(0, len(text), 8))
    packed = b"".join(struct.pack("=I", word) for word in words)
    return socket.inet_ntop(socket.AF_INET if len(packed) == 4 else socket.AF_INET6, packed)


def _shown(place: Listening, port: int) -> str:
    """The address alone where it is the port that was expected."""
    return place.address if place.port == port else authority(place.address, place.port)
