"""ansible-runner behind one class.

What it takes care of, each one a way in which a plain ``ansible_runner.run`` goes wrong:

- it writes environment, variables and passwords into a folder and leaves it: here every run has a
  fresh folder of mode 0700, in memory where the system has ``/dev/shm``, and removes it;
- handlers run inside the loop that reads Ansible's output, so that slow ones time the run out: here
  events are queued and the listener runs in the caller's thread;
- it replaces the process's signal handlers for good: here they are restored;
- cancelling kills Ansible's process group, and Ansible's workers, each in a session of its own,
  live on: here the run is on a leash (see ``leash``);
- it turns ssh's host key checking off: here the project's ``ansible.cfg`` decides.
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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from harness.errors import UsageError
from harness.node import leash
from harness.node.errors import NodeInterruptedError, PlaybookError
from harness.node.events import Listener, NodeEvent, translate
from harness.node.summary import RunSummary, SummaryBuilder

_SECRET_NAME = re.compile(r"passw|secret|token|credential|private_?key", re.IGNORECASE)
_BECOME_PROMPT = r"BECOME password.*:\s*?$"
_POLL_S = 0.2
_STOP_GRACE_S = 10.0


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What to run.

    Attributes:
        playbook: path, absolute or below the project.
        inventory: path of the inventory; None: the one that ``ansible.cfg`` names.
        limit: host pattern; empty: all hosts of the plays.
        tags: run only tasks with one of these tags.
        check: change nothing, say what would change.
        variables: non-secret extra variables; they can be seen in the process list.
        timeout_s: stop the run after this many seconds; None: never.
    """

    playbook: Path
    inventory: Path | None = None
    limit: str = ""
    tags: Sequence[str] = ()
    check: bool = False
    variables: Mapping[str, Any] = field(default_factory=dict)
    timeout_s: float | None = None


class NodeRunner:
    """Runs playbooks of one project.

    Args:
        project: folder with ``ansible.cfg``, playbooks and roles; Ansible runs in it.
        listener: called with every event, in the thread that called ``run``; may be slow.
        become_password: typed at sudo's question; kept in memory only.
    """

    def __init__(self, project: Path, *, listener: Listener | None = None, become_password: str | None = None) -> None:
        self._project = project.resolve()
        self._listener = listener or _ignore
        self._become_password = become_password

    def run(self, request: RunRequest) -> RunSummary:
        """Run one playbook to its end.

        A failed task is in the summary (``require_ok`` raises it). Raises UsageError for a request that
        cannot be run, PlaybookError when Ansible could not begin, NodeInterruptedError on SIGINT or SIGTERM;
        when this returns or raises, every process of the run has ended and its folder is gone.
        """
        self._check(request)
        folder = Path(tempfile.mkdtemp(prefix=f"harness-node-{os.getpid()}-", dir=_memory_folder()))
        try:
            return self._run_in(folder, request)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _check(self, request: RunRequest) -> None:
        playbook = self._project / request.playbook
        if not playbook.is_file():
            raise UsageError(f"There is no playbook {playbook}.", advice="Start the harness in its checkout.")
        if request.inventory is not None and not request.inventory.exists():
            raise UsageError(f"There is no inventory {request.inventory}.", advice="Check the path after --inventory.")
        secret = [name for name in request.variables if _SECRET_NAME.search(name)]
        if secret:
            raise UsageError(
                f"Extra variables can be seen by every process, and {', '.join(secret)} looks like a secret.",
                advice="Put it into the inventory, encrypted with ansible-vault.",
            )

    def _run_in(self, folder: Path, request: RunRequest) -> RunSummary:
        started_s = time.time()
        summary = SummaryBuilder(str(request.playbook), request.check, started_s)
        run = _Run(folder, _config(self._project, folder, request, self._become_password), request.timeout_s)
        with _stop_signals(run):
            run.start()
            try:
                for event in run.events():
                    summary.add(event)
                    self._listener(event)
            except BaseException:
                run.interrupt()  # a listener that fails leaves nothing running behind
                raise
            finally:
                exit_code = run.join()
        if run.interrupted:
            raise NodeInterruptedError(
                f"{request.playbook} was stopped by a signal; all its processes have ended.",
                advice="Run it again: it continues where it is needed.",
            )
        result = summary.build(time.time(), exit_code=exit_code, timed_out=run.timed_out)
        if exit_code != 0 and not summary.began and not result.hosts and not run.timed_out:
            raise PlaybookError(
                f"Ansible could not run {request.playbook}: {result.failures[0].error}",
                advice="Mend what it names: the inventory, the limit or the playbook.",
            )
        return result


class _Run:
    """One process of ansible-playbook, on its leash, and the thread that reads it."""

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
        """Called every poll. Never lets ansible-runner do the killing: the leash does it thoroughly."""
        late = self._deadline_s is not None and time.monotonic() > self._deadline_s
        if (self.interrupted or late) and not self._stopped:
            self._stopped = True
            self.timed_out = late and not self.interrupted
            for pid in _leash_pids(self._folder):
                os.kill(pid, signal.SIGTERM)
        return False


def _config(project: Path, folder: Path, request: RunRequest, become_password: str | None) -> Any:
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
    config.command = [*_leash_command(folder), _ansible_playbook(), *config.command[1:]]
    return config


def _path() -> str:
    """The search path with the programs beside this Python in it: the command may run outside its environment."""
    return f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"


def _leash_command(folder: Path) -> list[str]:
    return [sys.executable, "-I", "-S", leash.__file__, str(os.getpid()), str(_STOP_GRACE_S), str(folder)]


def _leash_pids(folder: Path) -> list[int]:
    """Our children that were started with this run's folder on their command line."""
    pids = []
    for pid in leash.descendants(os.getpid()):
        try:
            arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue  # ended meanwhile
        if leash.__file__.encode() in arguments and str(folder).encode() in arguments:
            pids.append(pid)
    return pids


def _ansible_playbook() -> str:
    """The one beside this Python, else the one in PATH."""
    beside = Path(sys.executable).parent / "ansible-playbook"
    found = str(beside) if beside.is_file() else shutil.which("ansible-playbook")
    if found is None:
        raise PlaybookError("There is no ansible-playbook.", advice="Run scripts/setup, which installs ansible-core.")
    return found


def _memory_folder() -> str | None:
    """A folder that lives in memory, where there is one; else the system's folder for temporary files."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK | os.X_OK) else None  # noqa: S108 - mkdtemp makes it ours


def _ignore(_event: NodeEvent) -> None:
    pass


@contextmanager
def _stop_signals(run: _Run) -> Iterator[None]:
    """SIGINT and SIGTERM end the run while this is open; afterwards they do what they did before."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(_number: int, _frame: FrameType | None) -> None:
        run.interrupt()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
