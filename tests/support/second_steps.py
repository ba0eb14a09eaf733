"""A second process whose step fails as the replica's option ``fail`` says, or writes a line; by itself, the replica of one."""

import sys
import threading

from harness.replica.models import data_parallel_training
from harness.replica.models.data_parallel_training import SecondProcess, live
from harness.replica.settings import Settings


def join(settings, port):
    fail = settings.options.get("fail")

    def step():
        if fail:
            raise {"memory": MemoryError, "bug": ZeroDivisionError}[fail]
        sys.stdout.write(f"step at {port}\n")
        sys.stdout.flush()

    return step


def pause():
    """Start a second process, tell its id, and never look after it."""
    data_parallel_training.NOTICE_S = 0.1
    second = SecondProcess("tests.support.second_steps", Settings(), 7)
    sys.stdout.write(f"{second.pid}\n")
    sys.stdout.flush()
    threading.Event().wait()


if __name__ == "__main__":
    if sys.argv[1:] == ["replica"]:
        pause()
    live(join)
