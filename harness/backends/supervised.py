"""Processes that cannot outlive the harness: every one has a guard as its parent.

Should somebody kill the guards, too, the next harness finds what is left by the mark of its campaign.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from harness import supervisor

CAMPAIGN_VARIABLE = "HARNESS_CAMPAIGN_ID"
"""In the environment of every process of a campaign: its id."""
TERMINATE_S = 3.0
END_S = 10.0
"""What a supervisor takes to end everything below it, and more."""


class Lifeline:
    """A pipe whose one end only this process holds: its end is the guards' signal that we are gone."""

    def __init__(self) -> None:
        self._read_end, self._write_end = os.pipe()

    def start(self, command: Sequence[str], *, log: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Start ``command`` under a guard; it ends when the lifeline is cut.

        Args:
            command: program and arguments.
            log: takes its output; must not exist.
            environment: beside this process's own.

        Raises:
            OSError: it cannot be started.
        """
        log.parent.mkdir(exist_ok=True)
        guard = [sys.executable, "-I", "-S", supervisor.__file__, supervisor.LIFELINE, str(self._read_end), *command]
        with log.open("wb") as output:
            return subprocess.Popen(
                guard,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
                pass_fds=(self._read_end,),
                start_new_session=True,
            )

    def end(self, process: subprocess.Popen[bytes]) -> int:
        """Have a guard end what is below it; the exit code."""
        process.terminate()
        return await_end(process)

    def cut(self) -> None:
        """End whatever still runs on it. Idempotent."""
        if self._write_end >= 0:
            os.close(self._write_end)
            os.close(self._read_end)
            self._write_end = -1


def await_end(process: subprocess.Popen[bytes], timeout_s: float = END_S) -> int:
    """The exit code of a supervisor that was asked to end; one that does not, as it was stopped, is killed with all below it."""
    try:
        return process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        for pid in [process.pid, *supervisor.descendants(process.pid)]:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        return process.wait()


def end_strays(campaign_id: str) -> list[str]:
    """End every process that carries ``campaign_id``, this one and its children excepted.

    Call only while holding the campaign's lock: then no living harness owns any of them.

    Returns:
        A sentence for each process ended.
    """
    mine = {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}
    strays = [
        process for process in psutil.process_iter() if process.pid not in mine and _carries(process, campaign_id)
    ]
    sentences = []
    for process in strays:
        sentences.append(f"ended stray process {process.pid} of an earlier run.")
        try:
            process.kill()
        except psutil.NoSuchProcess:
            sentences.pop()
    psutil.wait_procs(strays, timeout=TERMINATE_S)
    return sentences


def _carries(process: psutil.Process, campaign_id: str) -> bool:
    try:
        return process.environ().get(CAMPAIGN_VARIABLE) == campaign_id
    except (psutil.AccessDenied, psutil.NoSuchProcess, psutil.ZombieProcess, OSError):
        return False  # of another user, or gone: not ours to end
