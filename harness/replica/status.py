"""``replica.json``: what this replica is and how far it has come, for whoever started it."""

from __future__ import annotations

import json
import os
import re
import stat
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from harness.host import describe_host
from harness.replica.settings import Settings

FILE_NAME = "replica.json"


def _preloaded() -> dict[str, object]:
    """Which of the libraries that were to be loaded before all others were; nothing where there were none."""
    wanted = re.split("[ :]+", os.environ.get("LD_PRELOAD", "").strip())
    if wanted == [""]:
        return {}
    maps = Path("/proc/self/maps").read_text(errors="replace")
    return {"preloaded": [name for name in wanted if str(Path(name).resolve()) in maps]}


def mps_limits(environment: Mapping[str, str]) -> dict[str, str]:
    """Those variables of a process by which it limits itself as a client of MPS."""
    names = ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT")
    return {name: environment[name] for name in names if name in environment}


def closed_pipe(environment: Mapping[str, str]) -> str:
    """Why this process cannot reach the MPS daemon whose pipes it was given; empty: it can, or was given none."""
    folder = Path(environment.get("CUDA_MPS_PIPE_DIRECTORY", ""))
    if not folder.name:
        return ""
    for path, needed in ((folder, os.R_OK | os.X_OK), (folder / "control", os.W_OK)):
        try:
            facts = path.stat()
        except FileNotFoundError:
            return f"there is no {folder}" if path is folder else ""  # a daemon that starts has none yet
        except OSError as error:
            return f"{path} cannot be looked at by user {os.getuid()} ({error.strerror})"
        if not os.access(path, needed):
            return f"{path} is {stat.filemode(facts.st_mode)} of user {facts.st_uid}, and this is user {os.getuid()}"
    return ""


class ReplicaStatus:
    """The replica's phase and facts; every change is written by one rename, so that no reader sees half of it.

    Phases: starting, loading, warming, serving, finished (it had a time to run, or its load is over), waiting (for the next load),
    draining, stopped; or failed, with the error.
    """

    def __init__(self, settings: Settings) -> None:
        self._path = settings.replica_dir / FILE_NAME if settings.replica_dir else None
        self._lock = threading.RLock()
        self._facts: dict[str, object] = {
            "pid": os.getpid(),
            "replica": settings.replica,
            "port": None,
            "workload": settings.workload,
            "device": "",
            "device_name": "",
            **({"cpus": sorted(os.sched_getaffinity(0))} if settings.cpus else {}),
            "mps_pipe_directory": os.environ.get("CUDA_MPS_PIPE_DIRECTORY", ""),
            "mps_limits": mps_limits(os.environ),
            "mps_pipe_closed": closed_pipe(os.environ),
            **_preloaded(),
            "precision": settings.precision,
            "execution": settings.execution,
            "batch_size": settings.batch_size,
            "parameters": None,
            "torch": None,
            "cuda": None,
            "started_at": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "phase": "starting",
            "abandoned_requests": 0,
            "error": "",
            "host": describe_host(),
        }

    def move(self, folder: Path) -> None:
        """Write into another folder from now on."""
        with self._lock:
            self._path = folder / FILE_NAME

    @property
    def phase(self) -> str:
        """How far the replica has come."""
        return str(self._facts["phase"])

    def fact(self, name: str) -> str:
        """Return one fact as text; empty when it is not known."""
        value = self._facts.get(name)
        return "" if value is None else str(value)

    def render(self, **more: object) -> bytes:
        """Return all facts as the file has them, and ``more``."""
        with self._lock:
            return json.dumps(self._facts | more, indent=1).encode() + b"\n"

    def update(self, **facts: object) -> None:
        """Change facts and write the file. Raises OSError."""
        with self._lock:
            self._facts.update(facts)
            if self._path is None:
                return
            temporary = self._path.with_name(f".{FILE_NAME}.{os.getpid()}")
            temporary.write_bytes(self.render())
            temporary.replace(self._path)
