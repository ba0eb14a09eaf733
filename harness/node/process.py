"""One process of ansible-playbook, under its supervisor, and the thread that reads it."""

from __future__ import annotations

import json
import os
import queue
import shutil
import signal
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from harness import supervisor
from harness.node.errors import PlaybookError
from harness.node.events import NodeEvent, translate
from harness.node.request import RunRequest

_BECOME_PROMPT = r"BECOME password.*:\s*?$"
_POLL_S = 0.2
_STOP_GRACE_S = 10.0


class Run:
    """One process of ansible-playbook, under its supervisor, and the thread that reads it."""

    def __init__(self, folder: Path, config: Any, timeout_s: float | None) -> None:
        self.interrupted = False
        self.timed_out = False
        self._folder = folder
        self._config = config
        self._deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        self._queue: queue.SimpleQueue[NodeEvent | None] = queue.SimpleQueue()
        self._failure: BaseException | None = None
        self._exit_code = 0
        self._stopped = False
        self._thread = threading.Thread(target=self._read, name="ansible", daemon=True)

    def start(self) -> None:
        """Start the process and the thread that reads it."""
        self._thread.start()

    def interrupt(self) -> None:
        """End the run soon; safe to call from a signal handler."""
        self.interrupted = True

    def events(self) -> Iterator[NodeEvent]:
        """Every event, until the run has ended."""
        while True:
            event = self._queue.get()
            if event is None:
                return
            yield event

    def join(self) -> int:
        """Exit code of the process; raises what the reading thread raised."""
        self._thread.join()
        if self._failure is not None:
            raise PlaybookError(f"ansible-runner failed: {self._failure}") from self._failure
        return self._exit_code

    def _read(self) -> None:
        from ansible_runner import Runner

        try:
            runner = Runner(
                self._config,
                event_handler=self._take,
                status_handler=self._on_status,
                cancel_callback=self._watch,
            )
            runner.run()
            self._exit_code = 1 if runner.rc is None else int(runner.rc)
        except BaseException as error:  # noqa: BLE001 - a thread must hand over whatever ended it
            self._failure = error
        finally:
            self._queue.put(None)

    def _take(self, raw: dict[str, Any]) -> bool:
        event = translate(raw)
        if event is not None:
            self._queue.put(event)
        return False  # keep no copy on disk

    def _on_status(self, status: dict[str, Any], runner_config: Any) -> None:
        """The file `command` holds the whole environment; it is written just before the run begins."""
        if status["status"] == "running":
            Path(runner_config.artifact_dir, "command").unlink(missing_ok=True)

    def _watch(self) -> bool:
        """Called every poll. Never lets ansible-runner do the killing: the supervisor does it thoroughly."""
        late = self._deadline_s is not None and time.monotonic() > self._deadline_s
        if (self.interrupted or late) and not self._stopped:
            pids = _supervisor_pids(self._folder)
            self._stopped = bool(pids)  # in its first instant a supervisor cannot be told from us: look again
            self.timed_out = late and not self.interrupted
            for pid in pids:
                with suppress(ProcessLookupError):  # it has just ended by itself
                    os.kill(pid, signal.SIGTERM)
        return False


def run_config(project: Path, folder: Path, request: RunRequest, become_password: str | None) -> Any:
    """The configuration that ansible-runner takes, its command behind a supervisor. Raises PlaybookError."""
    from ansible_runner import RunnerConfig
    from ansible_runner.exceptions import AnsibleRunnerException

    settings = {"pexpect_timeout": _POLL_S, "suppress_output_file": True, "suppress_ansible_output": True}
    (folder / "env").mkdir(mode=0o700)
    (folder / "env" / "settings").write_text(json.dumps(settings), encoding="utf-8")
    options = [*(["--check"] if request.check else []), *(["--ask-become-pass"] if become_password else [])]
    config = RunnerConfig(
        private_data_dir=str(folder),
        ident=uuid.uuid4().hex,
        project_dir=str(project),
        playbook=str(project / request.playbook),
        inventory=str(request.inventory.resolve()) if request.inventory else None,
        limit=request.limit or None,
        tags=",".join(request.tags) or None,
        extravars=dict(request.variables),
        passwords={_BECOME_PROMPT: become_password} if become_password else {},
        cmdline=" ".join(options) or None,
        fact_cache_type="",
        quiet=True,
        envvars={"PATH": _path(), "ANSIBLE_NOCOLOR": "1"},
    )
    try:
        config.prepare()
    except AnsibleRunnerException as error:
        raise PlaybookError(f"ansible-runner refused {request.playbook}: {error}") from error
    if "ANSIBLE_HOST_KEY_CHECKING" not in os.environ:
        del config.env["ANSIBLE_HOST_KEY_CHECKING"]
    config.command = [*_supervisor_command(folder), _ansible_playbook(), *config.command[1:]]
    return config


def _path() -> str:
    """The search path with the programs beside this Python in it: the command may run outside its environment."""
    return f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"


def _supervisor_command(folder: Path) -> list[str]:
    how = [supervisor.PARENT, str(os.getpid()), str(_STOP_GRACE_S), str(folder)]
    return [sys.executable, "-I", "-S", supervisor.__file__, *how]


def _supervisor_pids(folder: Path) -> list[int]:
    """Our children that were started with this run's folder on their command line."""
    pids = []
    for pid in supervisor.descendants(os.getpid()):
        try:
            arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue  # ended meanwhile
        if supervisor.__file__.encode() in arguments and str(folder).encode() in arguments:
            pids.append(pid)
    return pids


def _ansible_playbook() -> str:
    """The one beside this Python, else the one in PATH."""
    beside = Path(sys.executable).parent / "ansible-playbook"
    found = str(beside) if beside.is_file() else shutil.which("ansible-playbook")
    if found is None:
        raise PlaybookError("There is no ansible-playbook.", advice="pip install 'gpu-sharing-harness[node]'")
    return found


def memory_folder() -> str | None:
    """A folder that lives in memory, where there is one; else the system's folder for temporary files."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK | os.X_OK) else None  # noqa: S108 - mkdtemp makes it ours
