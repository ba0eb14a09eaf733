"""What is started on a lifeline: its end is its own, and it ends with the line."""

import os
import signal
from pathlib import Path

import psutil

from harness import supervisor
from harness.backends.local_replica import Lifeline, await_end


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


def test_a_log_that_grows_without_end_is_cut_with_a_line_that_says_so_and_its_end_is_kept(tmp_path: Path) -> None:
    lifeline = Lifeline()
    printed = supervisor.MOST_LOG_BYTES + (8 << 20)
    command = ["/bin/sh", "-c", f"head -c {printed} /dev/zero; echo the last words; exit 7"]
    process = lifeline.start(command, log=tmp_path / "log", environment={})
    assert process.wait(300) == 7
    lifeline.cut()

    size = (tmp_path / "log").stat().st_size
    assert supervisor.MOST_LOG_BYTES < size < supervisor.MOST_LOG_BYTES + (1 << 20)
    with (tmp_path / "log").open("rb") as log:
        log.seek(supervisor.MOST_LOG_BYTES)
        end = log.read()
    said, _, kept = end.removeprefix(b"\n").partition(b"\n")
    left_out = printed + len("the last words\n") - supervisor.MOST_LOG_BYTES - len(kept)
    assert said == b"[the log is full: %d bytes are left out here]" % left_out
    assert kept.endswith(b"\0the last words\n")


def test_a_little_more_than_the_limit_loses_nothing(tmp_path: Path) -> None:
    source, output = os.pipe()
    os.write(output, b"0123456789")
    os.close(output)
    with (tmp_path / "log").open("wb") as target:
        supervisor.CappedLog(source, target.fileno(), 4).finish()
    os.close(source)

    assert (tmp_path / "log").read_bytes() == b"0123456789"
