"""ansible-runner behind one class.

What it takes care of, each one a way in which a plain ``ansible_runner.run`` goes wrong:

- it writes environment, variables and passwords into a folder and leaves it: here every run has a
  fresh folder of mode 0700, in memory where the system has ``/dev/shm``, and removes it;
- handlers run inside the loop that reads Ansible's output, so that slow ones time the run out: here
  events are queued and the listener runs in the caller's thread;
- it replaces the process's signal handlers for good: here they are restored;
- cancelling kills Ansible's process group, and Ansible's workers, each in a session of its own,
  live on: here the run is under a supervisor (see ``supervisor``);
- it turns ssh's host key checking off: here the project's ``ansible.cfg`` decides.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from harness.errors import UsageError
from harness.node.errors import NodeInterruptedError, PlaybookError
from harness.node.events import Listener, NodeEvent
from harness.node.process import Run, memory_folder, run_config
from harness.node.request import RunRequest
from harness.node.summary import RunSummary, SummaryBuilder

__all__ = ["NodeRunner", "RunRequest"]

_SECRET_NAME = re.compile(r"passw|secret|token|credential|private_?key", re.IGNORECASE)


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
        folder = Path(tempfile.mkdtemp(prefix=f"harness-node-{os.getpid()}-", dir=memory_folder()))
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
        run = Run(folder, run_config(self._project, folder, request, self._become_password), request.timeout_s)
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


def _ignore(_event: NodeEvent) -> None:
    pass


@contextmanager
def _stop_signals(run: Run) -> Iterator[None]:
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
