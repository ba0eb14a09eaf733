"""What the command does when nobody can read what it says."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from harness.campaign import events
from harness.cli import output
from harness.cli.progress import LiveBar, PlainLines
from harness.errors import StorageError


class Closed:
    """A stream whose terminal is gone."""

    def write(self, *_):
        raise OSError(5, "Input/output error")

    flush = fileno = write

    def isatty(self):
        return True


def test_what_goes_to_a_closed_terminal_is_no_error(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Closed())

    output.note("nobody reads this")
    output.stderr_console().print("nor this")


FOREIGN = "a\x1b[2Jb\x1b]0;title\x07c\u202ed"


@pytest.mark.parametrize(
    "write",
    [
        output.result,
        output.sentence,
        output.entry,
        output.note,
        lambda text: output.table(["name"], [[text]]),
        lambda text: PlainLines()(events.Notice(text)),
        lambda text: LiveBar(SimpleNamespace(add_task=lambda *_, **__: 0, console=Console()))(events.Notice(text)),
    ],
    ids=["result", "sentence", "entry", "note", "table", "lines", "bar"],
)
def test_no_way_to_the_terminal_lets_a_foreign_text_command_it(write, capsys):
    write(FOREIGN)

    shown = "".join(capsys.readouterr())
    assert "abc d" in shown
    assert not {"\x1b", "\x07", "\u202e"} & set(shown)


def test_an_answer_that_cannot_be_written_is_an_error_of_the_storage(monkeypatch):
    monkeypatch.setattr(sys, "stdout", Closed())

    with pytest.raises(StorageError, match="cannot be written to stdout: Input/output error"):
        output.result("42")


def test_a_full_disk_behind_stdout_and_an_open_umask_are_minded(tmp_path):
    command = "import os, sys; os.umask(0); from harness.cli import main; main()"
    arguments = [sys.executable, "-c", command, "init", str(tmp_path / "mine.yaml")]
    with Path("/dev/full").open("wb") as full:
        ended = subprocess.run(arguments, stdout=full, stderr=subprocess.PIPE, text=True, check=False)

    assert ended.returncode == 7, ended.stderr
    assert "cannot be written to stdout: No space left on device" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert (tmp_path / "mine.yaml").stat().st_mode & 0o022 == 0


def test_a_full_disk_behind_a_help_text_is_the_same_error():
    with Path("/dev/full").open("wb") as full:
        arguments = [sys.executable, "-m", "harness", "plan", "--help"]
        ended = subprocess.run(arguments, stdout=full, stderr=subprocess.PIPE, text=True, check=False)

    assert (ended.returncode, "Traceback" in ended.stderr) == (7, False), ended.stderr
    assert "cannot be written to stdout: No space left on device" in ended.stderr
