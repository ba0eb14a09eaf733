"""A second process of one replica: it is told each step, watched, and ends with the replica, whatever ends that."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import select
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from typing import NoReturn

from harness.replica.errors import CannotBeMetError, ExitCode, OutOfMemoryError, WorkloadError, translated
from harness.replica.graceful_shutdown import STOP_SIGNALS
from harness.replica.settings import Settings

MOMENT_S = 2.0
"""A process whose connection is gone has ended by then, if it was that."""
NOTICE_S = 3.0
"""The main thread has noticed by then, unless it pauses, or waits for the other one on a GPU."""
GONE_S = 0.3
"""Of the time that a replica has to end once it was asked to."""
_PR_SET_PDEATHSIG = 1
_STEP = b"."


class SecondProcess:
    """The replica's side of it: ``module`` is run, calls ``live``, and meets the replica at ``port``."""

    def __init__(self, module: str, settings: Settings, port: int) -> None:
        self._noticed = threading.Event()
        command = [sys.executable, "-m", module, str(os.getpid())]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, bufsize=0)
        self.pid = self._process.pid
        self._tell(pickle.dumps((settings, port)))
        threading.Thread(target=self._watch, name="second-process", daemon=True).start()

    def step(self) -> None:
        """Let it do one step. Raises WorkloadError when it has ended."""
        self._tell(_STEP)

    def require_alive(self) -> None:
        """Raise WorkloadError when it has ended, or does within a moment."""
        try:
            code = self._process.wait(MOMENT_S)
        except subprocess.TimeoutExpired:
            return
        self._noticed.set()
        raise _error_of(code)

    def close(self) -> None:
        """End it: it has nothing to save. One with much memory to give back may take a moment longer than this."""
        self._noticed.set()
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(GONE_S)
        if self._process.stdin:
            self._process.stdin.close()

    def _tell(self, data: bytes) -> None:
        try:
            if self._process.stdin:
                self._process.stdin.write(data)
        except OSError:
            self.require_alive()
            raise

    def _watch(self) -> None:
        """End the replica with it, where the main thread is somewhere that it cannot notice."""
        error = _error_of(self._process.wait())
        if not self._noticed.wait(NOTICE_S):
            sys.stderr.write(f"replica: {error}\n")
            sys.stderr.flush()
            os._exit(error.exit_code)


def _error_of(code: int) -> WorkloadError:
    kinds: dict[int, type[WorkloadError]] = {kind.exit_code: kind for kind in (CannotBeMetError, OutOfMemoryError)}
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}, see its own words above"
    hint = "; where nobody did that, the host had no memory left" if code == -signal.SIGKILL else ""
    return kinds.get(code, WorkloadError)(f"the second process {how}, and the replica ends with it{hint}.")


def live(join: Callable[[Settings, int], Callable[[], object]]) -> NoReturn:
    """Be the second process until the replica is gone.

    Args:
        join: takes the replica's settings and the port where both meet, and returns what does a step.
    """
    _end_with(int(sys.argv[1]))
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # a terminal's Ctrl-C reaches both; the replica ends this one
    code = ExitCode.STOPPED
    try:
        settings, port = pickle.load(sys.stdin.buffer)  # noqa: S301 - the replica wrote it
        step = join(settings, port)
        while sys.stdin.buffer.read(len(_STEP)):
            step()
    except BaseException as error:  # noqa: BLE001 - whatever it is ends as a line and a code
        code = _report(translated(error))
    os._exit(code)


def _end_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends: in the middle of a step nobody reads the pipe."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the line above
        os._exit(ExitCode.STOPPED)


def _report(error: BaseException) -> ExitCode:
    """The last words, unless the replica is gone: then that is why, and it has said its own."""
    with contextlib.suppress(OSError):
        if select.select([sys.stdin], [], [], MOMENT_S / 4)[0] and not os.read(sys.stdin.fileno(), 1):
            return ExitCode.STOPPED
    code = error.exit_code if isinstance(error, WorkloadError) else ExitCode.FAILED
    if code is ExitCode.FAILED:
        traceback.print_exception(error)
    sys.stderr.write(f"replica: its second process failed: {type(error).__name__}: {error}\n")
    sys.stderr.flush()
    return code
