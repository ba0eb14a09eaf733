"""How every test is run: nothing is compiled twice, what is collected stays, what waits runs beside what computes."""

import gc
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from itertools import groupby

import pytest
from hypothesis import settings

from tests.support.workers import pytest_addoption, pytest_runtestloop  # noqa: F401 - pytest finds them here

# A shell or CI may say that Python keeps nothing it compiles: then each process of each test compiles it all again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Several workers share the processors, and two threads that wait for each other's halves of a tiny tensor take four
# times as long as one: torch computes in one thread here, as do the replicas that tests start, unless a test says more.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# How long an example takes is the machine's business.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")

# nohup, or a shell that starts the tests in the background, makes everything below them deaf to these signals, and a
# signal that is ignored is inherited, where one with a handler is not: this process alone stays deaf.
for _number in (signal.SIGHUP, signal.SIGINT):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, lambda *_: None)


def pytest_runtest_setup() -> None:
    """Tests that measure at the same time do not wait for each other, nor for whoever else measures on this machine."""
    os.environ["HARNESS_LOCKS"] = f"{tempfile.gettempdir()}/harness-test-locks-{os.getpid()}"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect without garbage collection, which would go through modules and tests that all stay."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mix the modules that wait for servers and processes with those that compute; the longest begin first.

    Where the harness's commands are forked from a process that has imported it, one is enough for all workers.
    """
    if config.getoption("workers") and (forked := sys.modules.get("tests.support.forked")):
        forked.commands()
    modules = [list(tests) for _, tests in groupby(items, key=lambda item: item.path)]
    waiting = [tests for tests in modules if tests[0].get_closest_marker("integration")]
    computing = [tests for tests in modules if tests not in waiting]
    places = {id(tests): place / len(kind) for kind in (waiting, computing) for place, tests in enumerate(kind)}
    modules.sort(key=lambda tests: (tests[0].get_closest_marker("long") is None, places[id(tests)]))
    items[:] = [test for tests in modules for test in tests]
