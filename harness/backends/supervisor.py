"""The parent of one replica: nothing that the replica starts survives the harness, however it dies.

Run as ``python -I -S supervisor.py LIFELINE_FD COMMAND...``; only the standard library, about 10 MB.
The harness holds the other end of the lifeline pipe. When it dies, by whatever signal, the kernel
closes that end and the guard ends every descendant of its own: being a child subreaper, it inherits
the grandchildren whose parents are gone. Should the guard itself be killed, the replica gets SIGKILL
from the kernel (PR_SET_PDEATHSIG). Exit code: the replica's, or 128 + n when signal n ended it.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")


def _start(command: list[str], lifeline: int) -> int:
    guard = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    os.setsid()
    os.close(lifeline)
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != guard:  # the guard died before the line above took effect
        os._exit(137)
    try:
        os.execvp(command[0], command)  # noqa: S606 - no shell is wanted
    except OSError as error:
        sys.stderr.write(f"cannot start {command[0]}: {error}\n")
        sys.stderr.flush()
        os._exit(127)


def _children() -> list[int]:
    """Pids of the direct children, zombies included."""
    me = str(os.getpid())
    found = []
    for entry in os.listdir("/proc"):  # noqa: PTH208 - pathlib costs more than the guard's whole start
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat", "rb") as file:  # noqa: PTH123
                # The command's name may hold spaces and brackets: fields are counted from its end.
                if file.read().rpartition(b")")[2].split()[1].decode() == me:
                    found.append(int(entry))
        except OSError:
            continue  # ended while we looked
    return found


def _end_descendants() -> None:
    """SIGKILL the direct children until none is left; killing one hands us its own."""
    while True:
        for pid in _children():
            os.kill(pid, signal.SIGKILL)
        try:
            os.wait()
        except ChildProcessError:
            return


def main() -> None:
    """Start the command, wait for its end or the harness's, and leave nothing behind."""
    lifeline = int(sys.argv[1])
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    awake, alarm = os.pipe()
    os.set_blocking(alarm, False)
    signal.set_wakeup_fd(alarm)
    asked_to_stop = False

    def forward(_signal: int, _frame: object) -> None:
        nonlocal asked_to_stop
        asked_to_stop = True

    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGTERM, forward)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's Ctrl-C reaches the harness, which drains us
    replica = _start(sys.argv[2:], lifeline)
    code = None
    while code is None:
        ready, _, _ = select.select([lifeline, awake], [], [])
        if lifeline in ready:  # end of file: the harness is gone, and with it anyone who could use the data
            _end_descendants()
            sys.exit(137)
        os.read(awake, 4096)
        if asked_to_stop:
            asked_to_stop = False
            os.kill(replica, signal.SIGTERM)
        code = _reap(replica)
    _end_descendants()
    sys.exit(code)


def _reap(replica: int) -> int | None:
    """Collect the dead; the replica's exit code when it is among them."""
    code = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code
        if pid == 0:
            return code
        if pid == replica:
            code = os.waitstatus_to_exitcode(status)
            code = 128 - code if code < 0 else code


if __name__ == "__main__":
    main()
