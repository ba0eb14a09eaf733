"""What is started on a lifeline: its end is its own, and it ends with the line."""

from pathlib import Path

from harness.backends.supervised import Lifeline


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
