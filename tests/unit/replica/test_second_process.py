"""A second process of a replica: told each step, deaf to signals, gone with the replica and never without it."""

import os
import signal
import subprocess
import sys

import psutil
import pytest

from harness.replica.errors import ExitCode, OutOfMemoryError, WorkloadError
from harness.replica.models import data_parallel_training
from harness.replica.models.data_parallel_training import SecondProcess
from harness.replica.settings import Settings
from tests.support.processes import eventually

MODULE = "tests.support.second_steps"


@pytest.fixture
def second(monkeypatch):
    """Starts one, and ends it."""
    monkeypatch.setattr(data_parallel_training, "NOTICE_S", 600)  # then it would end this process
    begun = []

    def start(**options):
        begun.append(SecondProcess(MODULE, Settings(options=options), 7))
        return begun[-1]

    yield start
    for one in begun:
        one.close()


@pytest.fixture
def replica():
    """A process that pauses, and the id of its second one."""
    command = [sys.executable, "-m", MODULE, "replica"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        yield process, psutil.Process(int(process.stdout.readline()))
        process.kill()


def test_it_takes_a_step_when_it_is_told_and_leaves_signals_to_the_replica(second, capfd):
    one = second()
    one.step()
    assert eventually(lambda: capfd.readouterr().out == "step at 7\n")

    for number in (signal.SIGTERM, signal.SIGINT):
        os.kill(one.pid, number)
    one.step()

    assert eventually(lambda: capfd.readouterr().out == "step at 7\n")


def test_it_is_gone_when_it_is_closed(second):
    one = second()
    one.close()
    assert eventually(lambda: not psutil.pid_exists(one.pid))


@pytest.mark.parametrize(
    ("fail", "error", "says"),
    [("memory", OutOfMemoryError, "out of memory"), ("bug", WorkloadError, "ZeroDivisionError")],
)
def test_what_it_fails_of_is_how_the_replica_ends(second, capfd, fail, error, says):
    one = second(fail=fail)
    one.step()
    one._process.wait(60)
    with pytest.raises(error, match=r"the second process ended with \d, see its own words above"):
        one.require_alive()
    assert says in capfd.readouterr().err.splitlines()[-1]
    with pytest.raises(error):
        one.step()


def test_a_replica_that_is_killed_takes_it_along(replica):
    process, second = replica
    process.kill()
    second.wait(60)


def test_a_replica_that_does_not_look_ends_with_it(replica):
    process, second = replica
    second.kill()
    _, said = process.communicate(timeout=60)
    assert process.returncode == ExitCode.FAILED
    assert said.splitlines()[-1].startswith("replica: the second process was ended by SIGKILL, and the replica ends")
