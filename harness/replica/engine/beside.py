"""A server in the next container of the replica's pod: asked on the pod's own loopback, seen through the processes that a pod shares."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path

from harness.replica.engine.process import HOST, POLL_S, answers_200, takes_connections
from harness.replica.status import mps_limits
from harness.spec.server import ServerSpec

PROC = Path("/proc")
_CUDA_CONTEXT = "/dev/nvidia-uvm"
"""Whoever has a CUDA context has mapped it; NVML, cuInit and ``torch.cuda.is_available()`` open it and map nothing of it."""
_PAUSE = "1"
"""The process that holds a pod together, often another user's."""
_LISTENS = "0A"
_UUID = re.compile(r"(GPU|MIG)-[0-9a-f-]+")


class ServerBeside:
    """One that the pod starts and ends; whoever watches the pod notices when it ends by itself.

    Args:
        engine: what to ask.
    """

    host, tls = HOST, False

    def __init__(self, engine: ServerSpec) -> None:
        self.port = engine.pod_port
        self._path = engine.ready.path

    def facts(self) -> dict[str, object]:
        """For ``replica.json``."""
        return {"server_port": self.port, **observed(self.port)}

    def wait_until_up(self) -> None:
        """Return when the condition of ``ready`` holds; whoever started the pod sets the time limit."""
        while not self._is_up():
            time.sleep(POLL_S)

    def require_alive(self) -> None:
        """Nothing: its exit code is the pod's to tell."""

    def stop(self) -> str:
        """Nothing: it ends with its pod."""
        return "left to its pod"

    def _is_up(self) -> bool:
        return answers_200(f"http://{HOST}:{self.port}{self._path}") if self._path else takes_connections(self.port)


def observed(port: int, proc: Path = PROC) -> dict[str, object]:
    """What the processes of the pod show of the GPU, for ``replica.json``.

    ``device``: cuda where one of them has a CUDA context, cpu where all can be seen and none has; empty: it cannot be told.
    ``mps_pipe_directory`` and ``mps_limits``: what the server was given; None: it cannot be told. ``device_uuid``: likewise, or empty.

    Args:
        port: that the server listens on.
        proc: where processes are seen.
    """
    sockets = _listening(port, proc)
    given: Mapping[str, str] | None = None
    computes = hidden = False
    for process in proc.glob("[0-9]*"):
        if process.name in {_PAUSE, str(os.getpid())}:
            continue
        try:
            computes |= _CUDA_CONTEXT in (process / "maps").read_text(errors="replace")
            if given is None and not sockets.isdisjoint(_files(process)):
                given = _environment(process)
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


def _listening(port: int, proc: Path) -> set[str]:
    """The sockets that take connections at a port, as a process's files name them."""
    found = set()
    for table in ("tcp", "tcp6"):
        try:
            lines = (proc / "net" / table).read_text().splitlines()[1:]
        except OSError:
            continue  # there is no IPv6
        for line in lines:
            _, local, _, state, *rest = line.split()
            if state == _LISTENS and int(local.rpartition(":")[2], 16) == port:
                found.add(f"socket:[{rest[5]}]")
    return found


def _files(process: Path) -> list[str]:
    found = []
    for each in (process / "fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # a connection that was closed meanwhile
            found.append(str(each.readlink()))
    return found


def _environment(process: Path) -> dict[str, str]:
    entries = (process / "environ").read_text(errors="replace").split("\0")
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)
