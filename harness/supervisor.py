"""The parent of a process tree that must not outlive whoever started it.

Run as ``python -I -S supervisor.py MODE ...``; a plain script on purpose: it imports nothing of the harness and little of
the standard library, and starts in a few milliseconds. It is a child subreaper: whatever is orphaned below it becomes its
child, also what made a session of its own. Exit code: the command's, or 128 + n when signal n ended it.

``lifeline FD COMMAND...``: for a replica. The starter holds the other end of a pipe; when it dies, by whatever signal, the
kernel closes that end and the whole tree gets SIGKILL. SIGTERM is passed on to the command, which drains. When the command
has ended, so has everything below it. Should the supervisor itself be killed, the command gets SIGKILL from the kernel.
What the command prints goes to the supervisor's stdout, up to 64 MiB: then a line says how much was left out, and the end follows.

``parent PID GRACE_S FOLDER COMMAND...``: for ansible-playbook, which puts each of its workers in a session of its own. When
it is asked to stop (SIGTERM, SIGINT) or its parent dies, it ends the tree: SIGTERM first, SIGKILL after the grace time. Where
the parent died it also removes ``FOLDER``, so that nothing of the run is left behind.

``log``: for a server in a replica. Passes its input on to its output, up to the same limit, until all who write have ended.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import time

TYPE_CHECKING = False  # of typing, which would have to be imported
if TYPE_CHECKING:
    from collections.abc import Callable

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
# Not the parent's own signal: a killed parent dies thread by thread, and is still there when the first of them is gone.
_PARENT_DIED = signal.SIGUSR1
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, _PARENT_DIED)
_KILL_WAIT_S = 5.0
_POLL_S = 0.02
MOST_LOG_BYTES = 64 << 20
_TAIL_BYTES = 64 << 10
LIFELINE, PARENT, LOG = "lifeline", "parent", "log"


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")


def descendants(root_pid: int) -> list[int]:
    """Process ids below ``root_pid``, zombies left out."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):  # noqa: PTH208 - pathlib costs more than the supervisor's whole start
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat", "rb") as file:  # noqa: PTH123
                # The command's name may hold spaces and brackets: fields are counted from its end.
                state, parent = file.read().rpartition(b")")[2].split()[:2]
        except OSError:
            continue  # ended while we looked
        if state != b"Z":
            children.setdefault(int(parent), []).append(int(entry))
    pids = [root_pid]
    for pid in pids:  # it grows meanwhile
        pids += children.get(pid, [])
    return pids[1:]


def _signal_all(pids: list[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue  # ended meanwhile, or runs as another user after sudo, which passes the signal on itself


def _reap(child_pid: int) -> int | None:
    """Collect whatever has ended; the exit code of the command if it is among them."""
    code = None
    try:
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == child_pid:
                number = os.waitstatus_to_exitcode(ended[1])
                code = number if number >= 0 else 128 - number
    except ChildProcessError:
        pass  # none is left
    return code


def _kill_tree(child_pid: int) -> None:
    """SIGKILL all that is left, and what it hands us by ending; what may not be killed is left after a while."""
    deadline_s = time.monotonic() + _KILL_WAIT_S
    while (left := descendants(os.getpid())) and time.monotonic() < deadline_s:
        _signal_all(left, signal.SIGKILL)
        time.sleep(_POLL_S)
        _reap(child_pid)
    _reap(child_pid)


def _end_tree(child_pid: int, grace_s: float) -> None:
    """The command first, by its own handlers; then all that is left, ever harder."""
    _signal_all([child_pid], signal.SIGTERM)
    deadline_s = time.monotonic() + grace_s
    signalled: set[int] = {child_pid}
    while (left := descendants(os.getpid())) and time.monotonic() < deadline_s:
        if child_pid not in left:
            _signal_all([pid for pid in left if pid not in signalled], signal.SIGTERM)
            signalled.update(left)
        time.sleep(_POLL_S)
        _reap(child_pid)
    _kill_tree(child_pid)


class CappedLog:
    """Passes on what a pipe brings, up to ``most_bytes``, and keeps the end of what is more."""

    def __init__(self, source: int, target: int, most_bytes: int = MOST_LOG_BYTES) -> None:
        self.source, self._target, self._left = source, target, most_bytes
        self._dropped, self._tail = 0, b""

    def copy(self) -> bool:
        """Pass on what is there; False at the end of the pipe, or where nothing comes without waiting."""
        try:
            data = os.read(self.source, 1 << 16)
        except BlockingIOError:
            return False
        written = self._write(data[: self._left])
        self._left -= written
        if rest := data[written:]:
            self._left, self._dropped = 0, self._dropped + len(rest)  # a full disk counts as the limit
            self._tail = (self._tail + rest)[-_TAIL_BYTES:]
        return bool(data)

    def finish(self) -> None:
        """Pass on what is still there, and the end of what was left out."""
        os.set_blocking(self.source, False)
        while self.copy():
            pass
        if left_out := self._dropped - len(self._tail):
            self._write(f"\n[the log is full: {left_out} bytes are left out here]\n".encode())
        self._write(self._tail)

    def _write(self, data: bytes) -> int:
        written = 0
        try:
            while written < len(data):
                written += os.write(self._target, data[written:])
        except OSError:
            pass
        return written


def guard(lifeline: int, run: Callable[[], object]) -> int:
    """Fork ``run`` as a process that cannot outlive this one or the starter; returns its exit code, or 137 when the starter is gone."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    awake, alarm = os.pipe()
    os.set_blocking(alarm, False)
    signal.set_wakeup_fd(alarm)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, lambda *_: None)  # its number is read from the pipe
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's Ctrl-C reaches the harness, which drains us
    source, output = os.pipe()
    log = CappedLog(source, sys.stdout.fileno())
    child_pid = _fork(run, lifeline, output)
    os.close(output)
    heard = [lifeline, awake, source]
    code = None
    while code is None:
        ready, _, _ = select.select(heard, [], [])
        if source in ready and not log.copy():
            heard.remove(source)
        if lifeline in ready:  # end of file: the harness is gone, and with it anyone who could use the data
            code = 128 + signal.SIGKILL
            break
        if awake in ready and signal.SIGTERM in os.read(awake, 4096):
            _signal_all([child_pid], signal.SIGTERM)
        code = _reap(child_pid)
    _kill_tree(child_pid)
    log.finish()
    return code


def _fork(run: Callable[[], object], lifeline: int, output: int) -> int:
    """Start it in a session of its own; it ends with this process, whatever ends that."""
    supervisor = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    os.setsid()
    os.close(lifeline)
    for standard in (1, 2):
        os.dup2(output, standard)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != supervisor:  # it died before the line above took effect
        os._exit(137)
    run()
    os._exit(0)


def _execute(command: list[str]) -> None:
    try:
        os.execvp(command[0], command)  # noqa: S606 - no shell is wanted
    except OSError as error:
        sys.stderr.write(f"cannot start {command[0]}: {error}\n")
        sys.stderr.flush()
        os._exit(127)


def _under_parent(parent_pid: int, grace_s: float, folder: str, command: list[str]) -> int:
    """Run the command; returns its exit code, or 143 when it was stopped."""
    watched = {*_STOP_SIGNALS, signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    _prctl(_PR_SET_PDEATHSIG, _PARENT_DIED)
    died = os.getppid() != parent_pid  # before the line above
    child_pid = None if died else os.posix_spawn(command[0], command, os.environ, setsigmask=[])
    code = None
    while child_pid and code is None:
        received = signal.sigwaitinfo(watched).si_signo
        if received in _STOP_SIGNALS:
            _end_tree(child_pid, grace_s)
            died = received == _PARENT_DIED or _PARENT_DIED in signal.sigpending()
            break
        code = _reap(child_pid)
    if died:
        import shutil

        shutil.rmtree(folder, ignore_errors=True)
    return 128 + signal.SIGTERM if code is None else code


def main(mode: str, *arguments: str) -> int:
    """Run a command as the module's first lines say; returns its exit code."""
    if mode == LOG:
        log = CappedLog(sys.stdin.fileno(), sys.stdout.fileno())
        while log.copy():
            pass
        log.finish()
        return 0
    if mode == LIFELINE:
        return guard(int(arguments[0]), lambda: _execute(list(arguments[1:])))
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    return _under_parent(int(arguments[0]), float(arguments[1]), arguments[2], list(arguments[3:]))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
