"""Whatever a command is given in place of a campaign: a sentence of ours, a documented exit code, no word of a library."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.cli import main

FOREIGN = re.compile(
    r"Traceback|decoder|codec|errno|truncated header|Expecting|Input should|Value error|Field required|pydantic|'spec'"
)
READERS = ["verify", "report", "compare", "status", "resume", "publish", "reproduce", "scenarios"]
TAKERS = ["validate", "plan", "run", "stress"]


def folder(path: Path, **files: str) -> Path:
    path.mkdir()
    for name, text in files.items():
        (path / f"{name}.json").write_text(text)
    return path


def file(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def loop(path: Path) -> Path:
    path.symlink_to(path.name)
    return path


GARBAGE: dict[str, Callable[[Path], Path]] = {
    "empty folder": lambda at: folder(at / "empty"),
    "name in two lines": lambda at: file(at / "two\nlines", b"<html>"),
    "page": lambda at: file(at / "report.html", b"<!DOCTYPE html>\n<html: a: b>"),
    "bytes": lambda at: file(at / "bytes.tar.xz", bytes(range(256))),
    "cut archive": lambda at: file(at / "cut.tar.xz", b"\xfd7zXZ\x00\x00\x04\xe6\xd6\xb4F"),
    "list": lambda at: file(at / "list.yaml", b"- a\n- b\n"),
    "billion": lambda at: file(at / "b.yaml", b"name: b\nworkloads: [{name: resnet50}]\nreplicas: [1000000000]\n"),
    "not a number": lambda at: file(at / "n.yaml", b"name: n\nworkloads: [{name: resnet50}]\nreplicas: [.nan]\n"),
    "nothing said": lambda at: folder(at / "nothing", campaign="{}", manifest="{}"),
    "no JSON": lambda at: folder(at / "cut", campaign="{", manifest="[NaN"),
    "loop of links": lambda at: loop(at / "loop"),
    "too long a name": lambda at: at / ("a" * 300),
    "nothing there": lambda at: at / "absent",
    "file in the way": lambda at: file(at / "file", b"") / "campaign",
}


@pytest.mark.parametrize("kind", GARBAGE)
def test_garbage_is_refused_in_a_sentence(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = GARBAGE[kind](tmp_path)
    monkeypatch.chdir(tmp_path)
    for command in READERS + TAKERS:
        monkeypatch.setattr(sys, "argv", ["harness", command, str(given)])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        told = said.err.replace(str(given), "")
        assert ended.value.code in {2, 5, 7}, (command, told)
        assert "error: " in told, command
        assert "\n  do: " in told, command
        assert not FOREIGN.search(told), (command, told)
        assert not said.out, command


def test_one_command_for_a_program_leaves_the_next_one_for_people_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for more, begin in ((["--json"], '{"error": '), ([], "error: ")):
        monkeypatch.setattr(sys, "argv", ["harness", "verify", "absent", *more])
        with pytest.raises(SystemExit):
            main()
        assert capsys.readouterr().err.startswith(begin)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["verify", "cut"], "cut/campaign.json is damaged"),
        (["run", "quickstart", "--results", "taken"], "the results folder taken cannot be made"),
    ],
)
def test_what_refuses_a_campaign_or_its_files_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    folder(tmp_path / "cut", campaign="{")
    file(tmp_path / "taken", b"")
    monkeypatch.setattr(sys, "argv", ["harness", *words])
    with pytest.raises(SystemExit):
        main()
    shown = capsys.readouterr().err
    assert (shown.count(said), shown.count("  do: ")) == (1, 1), shown
