"""Keeps a process tree under a supervisor: run as ``python supervisor.py PARENT_PID GRACE_S FOLDER COMMAND...``.

ansible-playbook puts each of its workers in a session of its own, so that killing its process group
leaves them, and what they run, behind. The supervisor is the parent of them all: it adopts whatever is
orphaned below it, and when it is asked to stop (SIGTERM, SIGINT) or when the process that started it
dies in any way, it ends the whole tree: SIGTERM first, SIGKILL after the grace time. Where the
starter died it also removes ``FOLDER``, so that nothing of the run is left behind.

A plain script on purpose: it imports nothing of the harness and starts in a few milliseconds.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import sys
import time
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_KILL_WAIT_S = 5.0


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")


def descendants(root_pid: int) -> list[int]:
    """Process ids below ``root_pid``, zombies left out."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            state, parent = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
        except OSError:
            continue  # ended while we looked
        if state != "Z":
            children.setdefault(int(parent), []).append(int(entry.name))
    found: list[int] = []
    waiting = [root_pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def _signal_all(pids: list[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue  # ended meanwhile, or runs as another user after sudo, which passes the signal on itself


def _reap(child_pid: int) -> int | None:
    """Collect whatever has ended; the exit code of the command if it is among them."""
    code = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code
        if pid == 0:
            return code
        if pid == child_pid:
            number = os.waitstatus_to_exitcode(status)
            code = number if number >= 0 else 128 - number


def _end_tree(child_pid: int, grace_s: float) -> None:
    """The command first, by its own handlers; then all that is left, ever harder."""
    _signal_all([child_pid], signal.SIGTERM)
    for number, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, _KILL_WAIT_S)):
        deadline_s = time.monotonic() + wait_s
        signalled: set[int] = {child_pid}
        while time.monotonic() < deadline_s:
            _reap(child_pid)
            left = descendants(os.getpid())
            if not left:
                return
            if child_pid not in left or number == signal.SIGKILL:
                _signal_all([pid for pid in left if number == signal.SIGKILL or pid not in signalled], number)
                signalled.update(left)
            time.sleep(0.05)


def main(arguments: list[str]) -> int:
    """Run the command; returns its exit code, or 143 when it was stopped."""
    parent_pid, grace_s, folder, command = int(arguments[0]), float(arguments[1]), arguments[2], arguments[3:]
    watched = {*_STOP_SIGNALS, signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent_pid:  # it died before the line above
        return 128 + signal.SIGTERM
    child_pid = os.posix_spawn(command[0], command, os.environ, setsigmask=[])
    while True:
        received = signal.sigwaitinfo(watched).si_signo
        if received in _STOP_SIGNALS:
            _end_tree(child_pid, grace_s)
            if os.getppid() != parent_pid:
                shutil.rmtree(folder, ignore_errors=True)
            return 128 + signal.SIGTERM
        code = _reap(child_pid)
        if code is not None:
            return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
