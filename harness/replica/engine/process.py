"""The server's process: started with a port of its own, watched until it is up, ended by SIGTERM."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

from harness.replica.errors import CannotBeMetError, WorkloadError
from harness.spec.replica import ReplicaSpec
from harness.spec.server import ServerSpec

HOST = "127.0.0.1"
LOG_NAME = "server.log"
POLL_S = 0.1
ASK_TIMEOUT_S = 2.0
LAST_LINES = 5
PORTS = range(16_384, 30_720)
"""Below what Linux hands to outgoing connections, and below Kubernetes' node ports."""
LAST_BYTES = 4096
LAST_WORDS_S = 10.0


class RunningServer:
    """One that somebody else started, with what ``ServerProcess`` has: it is only asked.

    Args:
        url: http://host:port or https://host:port.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.host, self.tls = parts.hostname or HOST, parts.scheme == "https"
        self.port = parts.port or (443 if self.tls else 80)
        self._url = url

    def facts(self) -> dict[str, object]:
        """For ``replica.json``."""
        return {"server_url": self._url}

    def wait_until_up(self) -> None:
        """Nothing: a real request shows it."""

    def require_alive(self) -> None:
        """Nothing: its process is not ours to see."""

    def stop(self) -> str:
        """Nothing: how it goes on."""
        return "left running"


class ServerProcess:
    """The running command.

    Args:
        spec: what is the server's alone of the environment, and how long its log may become.
        engine: what to start.
        replica: index of the replica that it belongs to.
        folder: takes its output as ``server.log``; None: the output is mixed with the replica's.

    Raises:
        CannotBeMetError: its port is taken, or there is no such program.
    """

    host, tls = HOST, False

    def __init__(self, spec: ReplicaSpec, engine: ServerSpec, replica: int, folder: Path | None) -> None:
        self._engine = engine
        self._claim = contextlib.ExitStack()
        self.port = self._claim.enter_context(claimed_port()) if engine.port is None else engine.port + replica
        self.log = folder / LOG_NAME if folder else None
        if engine.port is not None and takes_connections(self.port):
            raise CannotBeMetError(f"port {self.port} is in use by another program; choose another `port`, or none.")
        words = {"port": self.port, "replica": replica}
        command = [_filled(word, words) for word in engine.command]
        self._logger: subprocess.Popen[bytes] | None = None
        self._line = ""
        self._heard_bytes = 0
        with contextlib.ExitStack() as ours:
            output: IO[bytes] | None = ours.enter_context(self.log.open("wb")) if self.log else None
            if output and spec.logger:
                self._logger = subprocess.Popen(spec.logger, stdin=subprocess.PIPE, stdout=output)
                output = self._logger.stdin and ours.enter_context(self._logger.stdin)
            try:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT if output else None,
                    env=_environment(spec, engine, words),
                    start_new_session=True,
                )
            except OSError as error:
                self._claim.close()
                raise CannotBeMetError(
                    f"the server's command {command[0]!r} cannot be started: {error.strerror}."
                ) from error

    def facts(self) -> dict[str, object]:
        """For ``replica.json``."""
        command = list(self._engine.command)
        return {"server_pid": self._process.pid, "server_port": self.port, "server_command": command}

    def wait_until_up(self) -> None:
        """Return when the condition of ``ready`` holds; whoever started the replica sets the time limit.

        Raises:
            WorkloadError: the process ended.
        """
        while not self._is_up():
            self.require_alive()
            time.sleep(POLL_S)
        self.require_alive()  # something else may have answered on its port

    def require_alive(self) -> None:
        """Raise WorkloadError when the process has ended."""
        code = self._process.poll()
        if code is None:
            return
        self._finish_log()
        how = f"ended with {code}" if code >= 0 else f"was ended by {signal.Signals(-code).name}"
        hint = " A command that puts itself into the background cannot be measured: keep it in the foreground." * (
            code == 0
        )
        raise WorkloadError(f"the server {how}; its last lines: {self.last_lines() or 'it printed nothing'}.{hint}")

    def stop(self) -> str:
        """Ask it to end, and kill what does not; how it ended: ``stopped``, ``killed`` or ``ended by itself``."""
        how = "ended by itself" if self._process.poll() is not None else "stopped"
        self._process.terminate()
        try:
            self._process.wait(self._engine.stop_timeout_s)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)  # it leads a session and group of its own
            self._process.wait()
            how = "killed"
        self._claim.close()
        self._finish_log()
        return how

    def last_lines(self) -> str:
        """The end of its output in one line."""
        if self.log is None:
            return ""
        with self.log.open("rb") as file:
            file.seek(max(self.log.stat().st_size - LAST_BYTES, 0))
            lines = file.read().decode(errors="replace").splitlines()
        return " | ".join([line.strip() for line in lines if line.strip()][-LAST_LINES:])

    def _is_up(self) -> bool:
        ready = self._engine.ready
        if ready.log:
            return any(re.search(ready.log, line) for line in self._new_lines())
        if ready.path:
            return answers_200(f"http://{HOST}:{self.port}{ready.path}")
        return takes_connections(self.port)

    def _new_lines(self) -> list[str]:
        """What it printed since the last call, in lines; the last one may go on in the next call."""
        if self.log is None:
            return []
        with self.log.open("rb") as file:
            file.seek(self._heard_bytes)
            data = file.read()
        self._heard_bytes += len(data)
        lines = (self._line + data.decode(errors="replace")).split("\n")
        self._line = lines[-1][-LAST_BYTES:]
        return lines

    def _finish_log(self) -> None:
        """Once it has ended: let its last words reach the file, unless something that it left behind goes on printing."""
        if self._logger:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._logger.wait(LAST_WORDS_S)


def _filled(text: str, words: Mapping[str, int]) -> str:
    for name, value in words.items():
        text = text.replace(f"{{{name}}}", str(value))
    return text


def _environment(spec: ReplicaSpec, engine: ServerSpec, words: Mapping[str, int]) -> dict[str, str]:
    """The harness's own environment with the server's variables: none of the replica's settings."""
    given = {name: value for name, value in os.environ.items() if name not in spec.restore}
    given |= {name: value for name, value in spec.restore.items() if value is not None}
    return given | {name: _filled(value, words) for name, value in engine.env.items()}


@contextlib.contextmanager
def claimed_port(host: str = HOST) -> Iterator[int]:
    """A port that nobody listens on and that the kernel gives to nobody unasked, claimed for the block.

    No other claim is given it meanwhile, whichever process makes one: a server takes seconds until it listens. A claim is an
    abstract socket, which ends with its process and is as far seen as a port, in the network namespace.
    """
    while True:
        port = random.choice(PORTS)  # noqa: S311 - no secret
        with socket.socket(socket.AF_UNIX) as claim:
            try:
                claim.bind(f"\0gpu-sharing-harness-port-{port}")
                socket.create_server((host, port)).close()
            except OSError:
                continue
            yield port
        return


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
        with urllib.request.urlopen(url, timeout=ASK_TIMEOUT_S) as answer:  # noqa: S310 - http, of this machine
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError, ValueError):
        return False
