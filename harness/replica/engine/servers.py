"""The server that a replica asks: its own process, one in the next container of its pod, or one that runs already."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

from harness.replica.engine.readiness import HOST, PROC, Readiness, listening, open_files, takes_connections
from harness.replica.errors import CannotBeMetError, WorkloadError
from harness.replica.status import mps_limits
from harness.spec.replica import ReplicaSpec
from harness.spec.server import ServerSpec

LOG_NAME = "server.log"
POLL_S = 0.1
LAST_LINES = 5
PORTS = range(16_384, 30_720)
"""Below what Linux hands to outgoing connections, and below Kubernetes' node ports."""
LAST_BYTES = 4096
LAST_WORDS_S = 10.0
_CUDA_CONTEXT = "/dev/nvidia-uvm"
"""Whoever has a CUDA context has mapped it; NVML, cuInit and ``torch.cuda.is_available()`` open it and map nothing of it."""
_PAUSE = "1"
"""The process that holds a pod together, often another user's."""
_UUID = re.compile(r"(GPU|MIG)-[0-9a-f-]+")


class RunningServer:
    """One that somebody else started: it is only asked, at http(s)://host:port."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.host, self.tls = parts.hostname or HOST, parts.scheme == "https"
        self.port = parts.port or (443 if self.tls else 80)
        self._url = url

    def facts(self) -> dict[str, object]:
        """For ``replica.json``."""
        return {"server_url": self._url}

    def wait_until_up(self) -> None:
        """Return when it can be asked; whoever started the replica sets the time limit. Raises WorkloadError when it has ended."""

    def require_alive(self) -> None:
        """Raise WorkloadError when its process has ended, where that is ours to see."""

    def stop(self) -> str:
        """End it, where it is ours to end; how that went."""
        return "left running"


class SidecarServer(RunningServer):
    """One in the next container, which the pod starts and ends; whoever watches the pod notices when it ends by itself."""

    def __init__(self, server: ServerSpec) -> None:
        super().__init__(f"http://{HOST}:{server.pod_port}")
        self._readiness = Readiness(server.ready, self.port)

    def facts(self) -> dict[str, object]:
        """For ``replica.json``."""
        return {"server_port": self.port, **observed(self.port)}

    def wait_until_up(self) -> None:
        """Return when the condition of ``ready`` holds."""
        while not self._readiness.holds():
            time.sleep(POLL_S)

    def stop(self) -> str:
        """Nothing: it ends with its pod."""
        return "left to its pod"


class ServerProcess(RunningServer):
    """The command of a replica of that index, whose output is ``server.log`` in ``folder``; without one it is mixed with the replica's.

    Raises CannotBeMetError: its port is taken, or there is no such program.
    """

    host, tls = HOST, False

    def __init__(self, spec: ReplicaSpec, engine: ServerSpec, replica: int, folder: Path | None) -> None:
        self._engine = engine
        self._claim = contextlib.ExitStack()
        self.port = self._claim.enter_context(claimed_port()) if engine.port is None else engine.port + replica
        self.log = folder / LOG_NAME if folder else None
        if engine.port is not None and takes_connections(self.port):
            raise CannotBeMetError(f"port {self.port} is in use by another program; choose another `port`, or none.")
        words = {"port": self.port, "replica": replica, "replicas": spec.replicas or 1}
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
        """Return when the condition of ``ready`` holds."""
        readiness = Readiness(self._engine.ready, self.port, new_lines=self._new_lines, session=self._process.pid)
        while not readiness.holds():
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
    """A port that nothing listens on and that the kernel gives to nobody unasked, claimed for the block.

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


def observed(port: int, proc: Path = PROC) -> dict[str, object]:
    """What the processes of the pod show of the GPU, for ``replica.json``.

    ``device``: cuda where one of them has a CUDA context, cpu where all can be seen and none has; empty: it cannot be told.
    ``mps_pipe_directory`` and ``mps_limits``: what the server was given; None: it cannot be told. ``device_uuid``: likewise, or empty.
    """
    sockets = {place.file for place in listening(proc) if place.port == port}
    given: Mapping[str, str] | None = None
    computes = hidden = False
    for process in proc.glob("[0-9]*"):
        if process.name in {_PAUSE, str(os.getpid())}:
            continue
        try:
            computes |= _CUDA_CONTEXT in (process / "maps").read_text(errors="replace")
            if given is None and not sockets.isdisjoint(open_files(process)):
                given = _environment_of(process)
        except PermissionError:
            hidden = True
        except OSError:
            continue  # it has ended
    uuid = (given or {}).get("NVIDIA_VISIBLE_DEVICES", "")
    return {
        "device": "cuda" if computes else "" if hidden or given is None else "cpu",
        "device_uuid": uuid if _UUID.fullmatch(uuid) else "",
        "mps_pipe_directory": None if given is None else given.get("CUDA_MPS_PIPE_DIRECTORY", ""),
        "mps_limits": None if given is None else mps_limits(given),
    }


def _environment_of(process: Path) -> dict[str, str]:
    entries = (process / "environ").read_text(errors="replace").split("\0")
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)
