"""What is started on a lifeline: its end is its own, and it ends with the line."""

import os
import signal
from pathlib import Path

import psutil

from harness.backends.supervised import Lifeline, await_end


def test_a_command_on_a_lifeline_runs_and_its_exit_code_is_its_own(tmp_path: Path) -> None:
    lifeline = Lifeline()
    process = lifeline.start(
        ["/bin/sh", "-c", 'echo "$SAID"; exit 7'], log=tmp_path / "log", environment={"SAID": "hi"}
    )
    assert process.wait(60) == 7
    lifeline.cut()
    assert (tmp_path / "log").read_text() == "hi\n"


def test_when_the_line_is_cut_the_command_ends(tmp_path: Path) -> None:
    lifeline = Lifeline()
    process = lifeline.start(["/bin/sh", "-c", "trap '' TERM; sleep 300"], log=tmp_path / "log", environment={})
    lifeline.cut()
    assert process.wait(60) == 137


def test_one_that_was_stopped_is_killed_with_all_below_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "begun")
    lifeline = Lifeline()
    command = ["/bin/sh", "-c", f"sleep 300 & echo $! > {tmp_path / 'begun'}; wait"]
    process = lifeline.start(command, log=tmp_path / "log", environment={})
    sleeper = psutil.Process(int((tmp_path / "begun").read_text()))
    process.send_signal(signal.SIGSTOP)
    lifeline.cut()

    assert await_end(process, timeout_s=0.1) == -signal.SIGKILL
    assert psutil.wait_procs([sleeper], timeout=60)[1] == []
