"""``python -m harness.replica.fork_server FD WORKLOAD``: imports what a replica of this workload imports, once, and forks replicas.

Nothing here touches a GPU: CUDA does not survive a fork, and a replica's environment has to be there before CUDA begins.
Each request on the socket is one byte with five descriptors: a file with the replica's environment as JSON, which may be of any
size, its lifeline, its log, the folder to run in, and a socket on which the process id of its guard is answered at once, and
its exit code at the end.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import socket
import sys
from contextlib import suppress
from typing import NoReturn

from harness import supervisor
from harness.replica import registry, runner

DESCRIPTORS = 5


def main(control_fd: str, workload: str) -> None:
    """Fork replicas of ``workload`` until whoever asks for them is gone."""
    registry.find_factory(workload)  # imports torch where the workload does
    gc.freeze()  # what a collection in a replica would walk again, and copy
    control = socket.socket(fileno=int(control_fd))
    alarm, awake = socket.socketpair()
    awake.setblocking(False)
    signal.set_wakeup_fd(awake.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    answers: dict[int, socket.socket] = {}
    control.sendall(b"ready")
    while True:
        readable, _, _ = select.select([control, alarm], [], [])
        if alarm in readable:
            alarm.recv(4096)
            _report_ended(answers)
        if control in readable:
            request, descriptors, _, _ = socket.recv_fds(control, 1, DESCRIPTORS)
            if not request:
                return
            *descriptors, answer = descriptors
            pid = os.fork()
            if pid == 0:
                for ours in (control, alarm, awake, *answers.values()):
                    ours.close()
                os.close(answer)
                _become_guard(*descriptors)
            for descriptor in descriptors:
                os.close(descriptor)
            answers[pid] = socket.socket(fileno=answer)
            with suppress(OSError):  # who asked is gone
                answers[pid].sendall(f"{pid}\n".encode())


def _report_ended(answers: dict[int, socket.socket]) -> None:
    with suppress(ChildProcessError):  # none is left
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            with answers.pop(ended[0]) as answer, suppress(OSError):
                answer.sendall(f"{os.waitstatus_to_exitcode(ended[1])}\n".encode())


def _become_guard(settings: int, lifeline: int, log: int, folder: int) -> NoReturn:
    """What ``supervisor.py lifeline`` does, around a replica that is forked in place of started."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        os.fchdir(folder)
        for standard in (1, 2):
            os.dup2(log, standard)
        for descriptor in (log, folder):
            os.close(descriptor)
        os.environ.clear()
        with os.fdopen(settings, "rb") as environment:
            os.environ.update(json.load(environment))
        code = supervisor.guard(lifeline, _replica)
    finally:
        os._exit(code)


def _replica() -> NoReturn:
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    code: int = 1
    try:
        code = runner.main()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main(*sys.argv[1:])
    os._exit(0)  # torch takes a while to take itself down
