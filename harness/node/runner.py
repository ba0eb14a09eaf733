"""ansible-runner behind one class, which mends what goes wrong with a plain ``ansible_runner.run``.

- It leaves a folder with environment, variables and passwords: here it is in memory where there is ``/dev/shm``, and removed.
- Its handlers run in the loop that reads Ansible's output: here the listener runs in the caller's thread, and may be slow.
- It replaces the process's signal handlers for good: here they are restored.
- Cancelling lets Ansible's workers live on, each in a session of its own: here the run is under a supervisor.
- It turns ssh's host key checking off: here the project's ``ansible.cfg`` decides.
"""

from __future__ import annotations

import json
import os
import queue
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from harness import supervisor
from harness.data import data_path
from harness.errors import NodeInterruptedError, PlaybookError, UsageError
from harness.host import handled_signals
from harness.node.events import Listener, NodeEvent, RunSummary, SummaryBuilder, TaskEnded, translate

_MARK = "site.yml"
_VARIABLES_PLAYBOOK = Path("playbooks/expected.yml")
_SECRET_NAME = re.compile(r"passw|secret|token|credential|private_?key", re.IGNORECASE)
_BECOME_PROMPT = r"BECOME password.*:\s*?$"
_POLL_S = 0.2
_STOP_GRACE_S = 10.0


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What to run: a playbook below the project, for an inventory (None: ``ansible.cfg`` names it), with variables that anybody may see."""

    playbook: Path
    inventory: Path | None = None
    limit: str = ""
    tags: Sequence[str] = ()
    check: bool = False
    variables: Mapping[str, Any] = field(default_factory=dict)
    timeout_s: float | None = None


class NodeRunner:
    """Runs playbooks of one project; ``listener`` is called in the caller's thread, the password is kept in memory only."""

    def __init__(self, project: Path, *, listener: Listener | None = None, become_password: str | None = None) -> None:
        self._project = project.resolve()
        self._listener = listener or (lambda _event: None)
        self._become_password = become_password

    def run(self, request: RunRequest) -> RunSummary:
        """Run one playbook to its end; then every process of the run has ended and its folder is gone.

        A failed task is in the summary. Raises UsageError, PlaybookError (Ansible could not begin) and NodeInterruptedError.
        """
        _refuse_what_cannot_run(self._project, request)
        in_memory = "/dev/shm" if os.access("/dev/shm", os.W_OK | os.X_OK) else None  # noqa: S108 - mkdtemp makes it ours
        folder = Path(tempfile.mkdtemp(prefix=f"harness-node-{os.getpid()}-", dir=in_memory))
        try:
            return self._run_in(folder, request)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _run_in(self, folder: Path, request: RunRequest) -> RunSummary:
        summary = SummaryBuilder(str(request.playbook), request.check, time.time())
        process = _AnsibleProcess(folder, self._config(folder, request), request.timeout_s)

        def stop(_number: int, _frame: FrameType | None) -> None:
            process.interrupted = True

        with handled_signals((signal.SIGINT, signal.SIGTERM), stop):
            process.thread.start()
            try:
                while (event := process.events.get()) is not None:
                    summary.add(event)
                    self._listener(event)
            except BaseException:
                process.interrupted = True  # a listener that fails leaves nothing running behind
                raise
            finally:
                exit_code = process.join()
        if process.interrupted:
            raise NodeInterruptedError(
                f"{request.playbook} was stopped by a signal; all its processes have ended.",
                advice="Run it again: it continues where it is needed.",
            )
        result = summary.build(time.time(), exit_code=exit_code, timed_out=process.timed_out)
        if exit_code != 0 and not summary.began and not result.hosts and not process.timed_out:
            raise PlaybookError(
                f"Ansible could not run {request.playbook}: {result.failures[0].error}",
                advice="Fix what it names: the inventory, the limit or the playbook.",
            )
        return result

    def _config(self, folder: Path, request: RunRequest) -> Any:
        """The configuration that ansible-runner takes, its command behind a supervisor. Raises PlaybookError."""
        from ansible_runner import RunnerConfig
        from ansible_runner.exceptions import AnsibleRunnerException

        settings = {"pexpect_timeout": _POLL_S, "suppress_output_file": True, "suppress_ansible_output": True}
        (folder / "env").mkdir(mode=0o700)
        (folder / "env" / "settings").write_text(json.dumps(settings), encoding="utf-8")
        password = self._become_password
        options = [*(["--check"] if request.check else []), *(["--ask-become-pass"] if password else [])]
        config = RunnerConfig(
            private_data_dir=str(folder),
            ident=uuid.uuid4().hex,
            project_dir=str(self._project),
            playbook=str(self._project / request.playbook),
            inventory=str(request.inventory.resolve()) if request.inventory else None,
            limit=request.limit or None,
            tags=",".join(request.tags) or None,
            extravars=dict(request.variables),
            passwords={_BECOME_PROMPT: password} if password else {},
            cmdline=" ".join(options) or None,
            fact_cache_type="",
            quiet=True,
            envvars={"PATH": path_with_ours(), "ANSIBLE_NOCOLOR": "1"},
        )
        try:
            config.prepare()
        except AnsibleRunnerException as error:
            raise PlaybookError(f"ansible-runner refused {request.playbook}: {error}") from error
        if "ANSIBLE_HOST_KEY_CHECKING" not in os.environ:
            del config.env["ANSIBLE_HOST_KEY_CHECKING"]
        program = shutil.which("ansible-playbook", path=path_with_ours())
        if program is None:
            raise PlaybookError("There is no ansible-playbook.", advice="pip install 'gpu-sharing-harness[node]'")
        under = [supervisor.__file__, supervisor.PARENT, str(os.getpid()), str(_STOP_GRACE_S), str(folder)]
        config.command = [sys.executable, "-I", "-S", *under, program, *config.command[1:]]
        return config


def resolve(
    project: Path, names: Sequence[str], *, inventory: Path | None = None, limit: str = ""
) -> dict[str, dict[str, Any]]:
    """What variables come to on each node, resolved by Ansible, which talks to no machine: host -> name -> value. Raises NodeError."""
    values: dict[str, dict[str, Any]] = {}

    def take(event: NodeEvent) -> None:
        if isinstance(event, TaskEnded) and isinstance(event.message, dict):
            values[event.host] = event.message

    variables = {"expected_variables": list(names)}
    request = RunRequest(_VARIABLES_PLAYBOOK, inventory=inventory, limit=limit, variables=variables)
    NodeRunner(project, listener=take).run(request).require_ok()
    if not values:
        raise PlaybookError(
            f"The inventory has no node{f' that matches {limit}' if limit else ''}.",
            advice="Name the machine under `control_plane` or `workers` in the inventory.",
        )
    return values


def find_project() -> Path:
    """Folder with ``site.yml``: named by HARNESS_PROJECT, else here or above, else the harness's own. Raises UsageError."""
    named = os.environ.get("HARNESS_PROJECT")
    here = Path.cwd()
    candidates = [Path(named)] if named else [here, *here.parents, data_path(_MARK).parent]
    for folder in candidates:
        if (folder / _MARK).is_file() and (folder / "roles").is_dir():
            return folder
    raise UsageError(
        f"There are no playbooks in {candidates[0]}.",
        advice="Run this in the project's checkout, or name it in the variable HARNESS_PROJECT.",
    )


def path_with_ours() -> str:
    """The search path with the programs beside this Python in it: the command may run outside its environment."""
    return f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"


def _refuse_what_cannot_run(project: Path, request: RunRequest) -> None:
    if not (project / request.playbook).is_file():
        raise UsageError(
            f"There is no playbook {project / request.playbook}.", advice="Start the harness in its checkout."
        )
    if request.inventory is not None and not request.inventory.exists():
        raise UsageError(f"There is no inventory {request.inventory}.", advice="Check the path after --inventory.")
    secret = [name for name in request.variables if _SECRET_NAME.search(name)]
    if secret:
        raise UsageError(
            f"Extra variables can be seen by every process, and {', '.join(secret)} looks like a secret.",
            advice="Put it into the inventory, encrypted with ansible-vault.",
        )


class _AnsibleProcess:
    """One run under its supervisor, and the thread that reads it: ``events`` until None; set ``interrupted`` to end it soon."""

    def __init__(self, folder: Path, config: Any, timeout_s: float | None) -> None:
        self.interrupted = self.timed_out = self._stopped = False
        self.events: queue.SimpleQueue[NodeEvent | None] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._read, name="ansible", daemon=True)
        self._folder, self._config = folder, config
        self._deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        self._failure: BaseException | None = None
        self._exit_code = 0

    def join(self) -> int:
        """Exit code of the process; raises what the reading thread raised."""
        self.thread.join()
        if self._failure is not None:
            raise PlaybookError(f"ansible-runner failed: {self._failure}") from self._failure
        return self._exit_code

    def _read(self) -> None:
        from ansible_runner import Runner

        try:
            handlers = {"event_handler": self._take, "status_handler": _remove_command_file}
            runner = Runner(self._config, cancel_callback=self._watch, **handlers)
            runner.run()
            self._exit_code = 1 if runner.rc is None else int(runner.rc)
        except BaseException as error:  # noqa: BLE001 - a thread must hand over whatever ended it
            self._failure = error
        finally:
            self.events.put(None)

    def _take(self, raw: dict[str, Any]) -> bool:
        event = translate(raw)
        if event is not None:
            self.events.put(event)
        return False  # keep no copy on disk

    def _watch(self) -> bool:
        """Called every poll. Never lets ansible-runner do the killing: the supervisor does it thoroughly."""
        late = self._deadline_s is not None and time.monotonic() > self._deadline_s
        if (self.interrupted or late) and not self._stopped:
            pids = self._supervisor_pids()
            self._stopped = bool(pids)  # in its first instant a supervisor cannot be told from us: look again
            self.timed_out = late and not self.interrupted
            for pid in pids:
                with suppress(ProcessLookupError):  # it has just ended by itself
                    os.kill(pid, signal.SIGTERM)
        return False

    def _supervisor_pids(self) -> list[int]:
        """Our children that were started with this run's folder on their command line."""
        pids = []
        for pid in supervisor.descendants(os.getpid()):
            with suppress(OSError):  # ended meanwhile
                arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                if {supervisor.__file__.encode(), str(self._folder).encode()} <= set(arguments):
                    pids.append(pid)
        return pids


def _remove_command_file(status: dict[str, Any], runner_config: Any) -> None:
    """The file `command` holds the whole environment; it is written just before the run begins."""
    if status["status"] == "running":
        Path(runner_config.artifact_dir, "command").unlink(missing_ok=True)
