"""The supervisor as a process: what it passes on, and what it leaves behind, which is nothing."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import supervisor
from harness.supervisor import descendants
from tests.support.processes import eventually

STUBBORN = "trap '' TERM; setsid sh -c \"trap '' TERM; sleep 310 & sleep 310\" & sleep 310; sleep 310"


def start(*command: str, folder: Path, grace_s: float = 0.3, parent: int | None = None) -> "subprocess.Popen[bytes]":
    words = ["parent", str(parent or os.getpid()), str(grace_s), str(folder), *command]
    return subprocess.Popen([sys.executable, "-I", "-S", supervisor.__file__, *words], stdout=subprocess.PIPE)


@pytest.mark.parametrize(("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill -15 $$", 143)])
def test_the_end_of_the_command_is_its_own(tmp_path: Path, script: str, code: int) -> None:
    with start("/bin/sh", "-c", script, folder=tmp_path) as process:
        assert process.wait(120) == code
    assert tmp_path.exists()


def test_an_orphan_that_ends_first_is_not_mistaken_for_the_command(tmp_path: Path) -> None:
    with start("/bin/sh", "-c", "sh -c 'sh -c \"exit 9\" &' ; sleep 0.3; exit 4", folder=tmp_path) as process:
        assert process.wait(120) == 4


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_asked_to_stop_it_ends_even_those_who_will_not(tmp_path: Path, number: signal.Signals) -> None:
    with start("/bin/sh", "-c", STUBBORN, folder=tmp_path) as process:
        assert eventually(lambda: len(descendants(process.pid)) >= 4)
        below = descendants(process.pid)
        process.send_signal(number)
        assert process.wait(120) == 143
    assert [pid for pid in below if Path(f"/proc/{pid}").exists()] == []
    assert tmp_path.exists()


def test_the_command_gets_the_time_to_end_by_itself(tmp_path: Path) -> None:
    mark = tmp_path / "ended"
    script = f"trap 'sleep 0.3; echo done > {mark}; exit 0' TERM; echo ready; while :; do sleep 0.05; done"
    with start("/bin/sh", "-c", script, folder=tmp_path, grace_s=600.0) as process:
        assert process.stdout.readline() == b"ready\n"
        began = time.monotonic()
        process.terminate()
        process.wait(120)
    assert mark.read_text() == "done\n"
    assert time.monotonic() - began < 60


def test_it_does_not_start_for_a_parent_that_is_gone(tmp_path: Path) -> None:
    mark = tmp_path / "started"
    folder = tmp_path / "run"
    folder.mkdir()
    with start("/bin/sh", "-c", f"touch {mark}", folder=folder, parent=1) as process:
        assert process.wait(120) == 143
    assert not mark.exists()
    assert not folder.exists()


def test_when_its_parent_dies_the_tree_and_the_folder_go(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "secret").write_text("x")
    program = (
        "import os, subprocess, sys;"
        "p = subprocess.Popen([sys.executable, '-I', '-S', sys.argv[1], 'parent', str(os.getpid()), '0.3', *sys.argv[2:]]);"
        "print(p.pid, flush=True); p.wait()"
    )
    command = [sys.executable, "-c", program, supervisor.__file__, str(folder), "/bin/sh", "-c", STUBBORN]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as parent:
        pid = int(parent.stdout.readline())
        assert eventually(lambda: len(descendants(pid)) >= 4)
        below = [pid, *descendants(pid)]
        parent.kill()
    assert eventually(lambda: not any(Path(f"/proc/{each}").exists() for each in below))
    assert not folder.exists()


def test_a_parent_whose_threads_die_one_by_one_has_died_with_the_first(tmp_path: Path) -> None:
    """The kernel tells of the thread that started the supervisor, while the process may be there for a while."""
    folder = tmp_path / "run"
    folder.mkdir()
    started: list[subprocess.Popen[bytes]] = []

    def start_and_end() -> None:
        started.append(start("/bin/sh", "-c", "echo ready; sleep 310", folder=folder))
        assert started[0].stdout.readline() == b"ready\n"

    thread = threading.Thread(target=start_and_end)
    thread.start()
    thread.join()
    with started[0] as process:
        assert process.wait(60) == 143
    assert not folder.exists()


@pytest.mark.parametrize("end", [lambda: supervisor._kill_tree(7), lambda: supervisor._end_tree(7, 0.05)])
def test_processes_of_another_user_are_left_after_a_while(
    monkeypatch: pytest.MonkeyPatch, end: Callable[[], None]
) -> None:
    tried = []

    def refuse(pid: int, number: int) -> None:
        tried.append((pid, number))
        raise PermissionError

    monkeypatch.setattr(supervisor, "_KILL_WAIT_S", 0.05)
    monkeypatch.setattr(supervisor, "descendants", lambda _pid: [7, 8])
    monkeypatch.setattr(supervisor, "_reap", lambda _pid: None)
    monkeypatch.setattr(os, "kill", refuse)
    end()
    assert {(7, signal.SIGKILL), (8, signal.SIGKILL)} <= set(tried)


def test_a_replica_gets_the_signal_and_ends_with_its_own_code_and_its_children() -> None:
    lifeline, ours = os.pipe()
    script = "setsid sleep 310 & trap 'exit 5' TERM; echo ready; while :; do sleep 0.05; done"
    command = [sys.executable, "-I", "-S", supervisor.__file__, "lifeline", str(lifeline), "/bin/sh", "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, pass_fds=(lifeline,)) as process:
        assert process.stdout.readline() == b"ready\n"
        below = descendants(process.pid)
        process.terminate()
        assert process.wait(60) == 5
    os.close(ours)
    os.close(lifeline)
    assert [pid for pid in below if Path(f"/proc/{pid}").exists()] == []
