"""A server that sends exactly the bytes it is given, in the pieces it is given, on a real socket."""

import contextlib
import socket
import threading
import time
from pathlib import Path

from tests.support.processes import eventually

CLOSE, RESET, HOLD = object(), object(), object()
"""In an answer: close the connection, reset it, or leave it open and say no more."""


TAKEN_WITHIN_S = 20


class RawServer:
    """Answers the requests of its connections, in the order in which they come, with ``answers``; the last one again and again.

    An answer is a list of pieces (or one piece), each sent by itself, after PIECE_S and when the client has taken the one before.
    ``heads`` has what was asked, ``sent_ns`` when each piece was sent.
    """

    PIECE_S = 0.005

    def __init__(self, *answers, host="127.0.0.1", tls=None, speaks_first=False):
        self.answers = [answer if isinstance(answer, list) else [answer] for answer in answers]
        self.heads, self.bodies, self.sent_ns, self.connections = [], [], [], 0
        self.asked, self.answered = threading.Event(), threading.Event()
        self._tls, self._speaks_first = tls, speaks_first
        self._listening = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        self.port = self._listening.getsockname()[1]
        self._open, self._lock = [], threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for opened in (self._listening, *self._open):
            with contextlib.suppress(OSError):
                opened.shutdown(socket.SHUT_RDWR)
            opened.close()

    def _accept(self):
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            self.connections += 1
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._open.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection):
        with contextlib.suppress(OSError):
            if self._tls:
                connection = self._tls.wrap_socket(connection, server_side=True)
                self._open.append(connection)
            while self._speaks_first or self._read(connection):
                goes_on = self._answer(connection)
                self.answered.set()
                if not goes_on:
                    return
        connection.close()

    def _read(self, connection):
        """One request; False at the end of the connection."""
        data = b""
        while b"\r\n\r\n" not in data:
            if not (more := connection.recv(65536)):
                return False
            data += more
        head, _, body = data.partition(b"\r\n\r\n")
        lengths = [line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
        length = int(lengths[0].split(b":")[1]) if lengths else 0
        while len(body) < length:
            body += connection.recv(65536)
        self.heads.append(head.decode())
        self.bodies.append(body)
        self.asked.set()
        return True

    def _answer(self, connection):
        with self._lock:
            pieces = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        for number, piece in enumerate(pieces):
            if piece is CLOSE or piece is RESET:
                if piece is RESET:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                connection.close()
                return False
            if piece is HOLD:
                connection.recv(65536)
                return False
            if number:
                time.sleep(self.PIECE_S)
                eventually(lambda: not unread(connection), TAKEN_WITHIN_S)
            self.sent_ns.append(time.perf_counter_ns())
            connection.sendall(piece)
        return not self._speaks_first


def unread(connection):
    """How many bytes the other end of a connection to this machine has not taken yet, as the kernel says; 0 where it is closed."""
    table = "tcp6" if connection.family == socket.AF_INET6 else "tcp"
    ends = [f"{connection.getpeername()[1]:04X}", f"{connection.getsockname()[1]:04X}"]
    for row in Path("/proc/net", table).read_text().splitlines()[1:]:
        _, here, there, _, queues, *_ = row.split()
        if [here[-4:], there[-4:]] == ends:
            return int(queues.partition(":")[2], 16)
    return 0


def whole(body, *headers, status="200 OK"):
    """An answer of a known length."""
    lines = "".join(f"{line}\r\n" for line in headers)
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{lines}\r\n".encode() + body


def chunked(*pieces, kind="text/event-stream", end=True):
    """The pieces of a streamed answer, each a chunk."""
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    return [head, *(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces), *([b"0\r\n\r\n"] if end else [])]
