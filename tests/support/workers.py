"""``pytest --workers 5``: the tests are collected once, then processes are forked, and each takes module after module.

A process that is started instead imports for eight seconds what all the others import too.
"""

from __future__ import annotations

import atexit
import os
import signal
import struct
import sys
import traceback
from collections.abc import Iterator, Sequence
from itertools import groupby
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any, NoReturn

import pytest

PLACE = struct.Struct("=I")
Modules = Sequence[Sequence[pytest.Item]]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--workers", type=int, default=0, help="processes that take modules of tests; 0: all in this one")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run what was collected, if that is wanted in several processes."""
    workers = session.config.getoption("workers")
    if not workers or session.testsfailed or session.config.option.collectonly:
        return None
    session.config._tmp_path_factory.getbasetemp()  # one for all, which this process removes in its time
    modules = [list(tests) for _, tests in groupby(session.items, key=lambda item: item.path)]
    queue, places = os.pipe()
    with open(queue, "rb", buffering=0) as left, open(places, "wb") as given:  # noqa: PTH123
        given.write(b"".join(PLACE.pack(place) for place in range(len(modules))))
        given.close()
        running = dict(start(session, modules, queue, number) for number in range(workers))
        try:
            follow(session, running)
            if not session.shouldfail and left.read(1):
                session.shouldfail = "every process ended before the tests did"
        finally:
            for pid in running.values():
                os.kill(pid, signal.SIGINT)
                os.waitpid(pid, 0)
    if session.shouldfail:
        raise session.Failed(session.shouldfail)
    return True


def start(session: pytest.Session, modules: Modules, queue: int, number: int) -> tuple[Connection, int]:
    """A process that works; what it tells is read from its connection, which ends with it."""
    ours, theirs = Pipe(duplex=False)
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if not pid:
        ours.close()
        work(session, modules, queue, number, theirs)
    theirs.close()
    return ours, pid


def follow(session: pytest.Session, running: dict[Connection, int]) -> None:
    """Report what the processes tell until the last has ended, or enough has failed."""
    hook, begun = session.config.hook, dict.fromkeys(running, "")
    while running and not session.shouldfail:
        for connection in wait(list(running)):
            assert isinstance(connection, Connection)
            try:
                what, told = connection.recv()
            except EOFError:
                _, status = os.waitpid(running.pop(connection), 0)
                if status:
                    test, code = begun[connection], os.waitstatus_to_exitcode(status)
                    said = f"its process ended with {code}, and the rest of its module was not run"
                    report = pytest.TestReport(test, (test, None, test), {}, "failed", said, "call")
                    hook.pytest_runtest_logreport(report=report)
                continue
            if what == "begun":
                begun[connection] = told
            elif what == "reported":
                report = hook.pytest_report_from_serializable(config=session.config, data=told)
                hook.pytest_runtest_logreport(report=report)
            else:
                hook.pytest_runtest_logfinish(nodeid=told[0], location=told[1])


class Teller:
    """Tells the process that forked this one what is happening, in place of the terminal."""

    def __init__(self, config: pytest.Config, connection: Connection) -> None:
        self._config, self._connection = config, connection

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._connection.send(("begun", nodeid))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._connection.send(("reported", data))

    def pytest_runtest_logfinish(self, nodeid: str, location: Any) -> None:
        self._connection.send(("finished", (nodeid, location)))


def work(session: pytest.Session, modules: Modules, queue: int, number: int, connection: Connection) -> NoReturn:
    """Take modules until none is left."""
    code = 1
    try:
        alone(session.config, number)
        session.config.pluginmanager.register(Teller(session.config, connection))
        for tests in taken(modules, queue):
            for test, following in zip(tests, [*tests[1:], session], strict=True):
                session.config.hook.pytest_runtest_protocol(item=test, nextitem=following)
            if session.shouldfail or session.shouldstop:
                break
        session._setupstate.teardown_exact(None)
        atexit._run_exitfuncs()
        code = 0
    except KeyboardInterrupt:
        session._setupstate.teardown_exact(None)
        atexit._run_exitfuncs()
    except BaseException:  # noqa: BLE001 - a program, which says it and ends
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def alone(config: pytest.Config, number: int) -> None:
    """Share neither the terminal, nor the file of what tests print, nor their folders with the other processes."""
    config.pluginmanager.unregister(name="terminalreporter")
    capture = config.pluginmanager.getplugin("capturemanager")
    assert capture is not None
    capture.stop_global_capturing()
    capture.start_global_capturing()
    capture.suspend_global_capture()
    folders = config._tmp_path_factory
    folders._basetemp = folders.getbasetemp() / f"worker-{number}"
    folders._basetemp.mkdir()


def taken(modules: Modules, queue: int) -> Iterator[Sequence[pytest.Item]]:
    while place := os.read(queue, PLACE.size):  # a pipe gives each byte to one reader, and these few together
        yield modules[PLACE.unpack(place)[0]]
