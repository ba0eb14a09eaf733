"""Replicas forked from one process that has imported their workload: a start without the seconds that importing torch takes."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

IMPORT_S = 120.0


class ForkedGuard:
    """The guard of a forked replica, as subprocess.Popen would show it; who forked it tells its exit code."""

    def __init__(self, answer: socket.socket) -> None:
        self._answer = answer
        self._lock = threading.Lock()
        self._code: int | None = None
        line = answer.recv(64)
        if not line:
            answer.close()
            raise OSError("the process that forks replicas has ended")
        pid, _, rest = line.decode().partition("\n")
        self.pid = int(pid)
        self._code = int(rest) if rest else None

    def poll(self) -> int | None:
        """The exit code; None: it runs."""
        with suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, once it has ended. Raises subprocess.TimeoutExpired."""
        with self._lock:
            if self._code is None:
                if not select.select([self._answer], [], [], timeout)[0]:
                    raise subprocess.TimeoutExpired(f"replica's guard {self.pid}", timeout or 0.0)
                # Nothing: whoever forked it was killed, and what it knew is lost.
                self._code = int(self._answer.recv(64) or -signal.SIGKILL)
                self._answer.close()
            return self._code

    def terminate(self) -> None:
        """Ask it to end what is below it."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)


class ForkServer:
    """The process that forks the replicas of one workload; it ends with this object, or with this process."""

    def __init__(self, workload: str, environment: Mapping[str, str]) -> None:
        self._control, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "harness.replica.fork_server", str(theirs.fileno()), workload],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # a replica that is started afresh says the same
                env={**os.environ, **environment},
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        self._ready: bool | None = None

    @property
    def ready(self) -> bool:
        """Whether it has imported the workload; waited for once. False: it cannot, and a replica's own start says why."""
        if self._ready is None:
            self._ready = bool(select.select([self._control], [], [], IMPORT_S)[0]) and bool(self._control.recv(16))
        return self._ready and self._process.poll() is None

    def start(self, lifeline: int, *, log: Path, environment: Mapping[str, str]) -> ForkedGuard:
        """Fork a replica, below a guard that ends when the other end of ``lifeline`` is closed. Raises OSError."""
        log.parent.mkdir(exist_ok=True)
        ours, theirs = socket.socketpair()
        folder = os.open(".", os.O_RDONLY)
        try:
            with theirs, log.open("wb") as output, os.fdopen(os.memfd_create("environment"), "w+b") as settings:
                settings.write(json.dumps({**os.environ, **environment}).encode())
                settings.seek(0)
                descriptors = [settings.fileno(), lifeline, output.fileno(), folder, theirs.fileno()]
                socket.send_fds(self._control, [b"\n"], descriptors)
        finally:
            os.close(folder)
        return ForkedGuard(ours)

    def close(self) -> None:
        """End it. Idempotent."""
        self._control.close()
        self._process.wait()
