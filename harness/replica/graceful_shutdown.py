"""Ending a replica within two seconds of SIGTERM, whatever it is doing.

Python runs its signal handlers in the main thread between two instructions, which never come while that
thread sits in a long call into C. So the handlers here do nothing: the interpreter's wake-up descriptor gets
the signal's number from C at once, and a thread that reads it decides.
"""

from __future__ import annotations

import signal
import socket
import threading
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.replica.runner import Replica

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
FINISH_REQUEST_S = 0.7
# The longest single call of the built-in workloads (AdamW over a word table) takes 0.1 s of two cores, 0.35 s of a third of them.
ABANDON_REQUEST_S = 0.8
DEADLINE_S = FINISH_REQUEST_S + ABANDON_REQUEST_S


class RequestAbandoned(BaseException):
    """Raised inside a request that is still running ``FINISH_REQUEST_S`` after the signal to stop.

    No error, and therefore no Exception: a workload's own handlers must let it through.
    """


class SignalWatcher:
    """Turns SIGTERM and SIGINT into a drain with a deadline, by methods of the replica that a thread calls.

    The first signal begins the drain. After ``FINISH_REQUEST_S`` the request still in flight is abandoned by an
    exception, and ``ABANDON_REQUEST_S`` later the process gives up. Make it in the main thread.
    """

    def __init__(self) -> None:
        self.drained = threading.Event()
        self._replica: Replica | None = None
        self._main_thread = threading.get_ident()
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for number in STOP_SIGNALS:
            signal.signal(number, lambda _number, _frame: None)  # left to the watcher
        signal.signal(signal.SIGALRM, self._abandon)

    def watch(self, replica: Replica) -> None:
        """Start watching; a signal that came before is seen now."""
        self._replica = replica
        threading.Thread(target=self._watch, args=(replica,), name="signal-watcher", daemon=True).start()

    def _watch(self, replica: Replica) -> None:
        while self._reader.recv(1)[0] not in STOP_SIGNALS:
            pass
        replica.begin_drain()
        if self.drained.wait(FINISH_REQUEST_S):
            return
        signal.pthread_kill(self._main_thread, signal.SIGALRM)
        if not self.drained.wait(ABANDON_REQUEST_S):
            replica.give_up()

    def _abandon(self, _number: int, _frame: FrameType | None) -> None:
        if self._replica and self._replica.in_request():
            raise RequestAbandoned
