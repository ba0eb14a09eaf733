import pytest

from harness.cli.progress import TaskLines, task_listener
from harness.node.events import OutputLine, PlayStarted, RunEnded, TaskEnded, TaskOutcome, TaskStarted


def told(capsys: pytest.CaptureFixture[str]) -> list[str]:
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err.splitlines()


def ended(outcome: TaskOutcome, host: str = "a", error: str = "") -> TaskEnded:
    return TaskEnded(1.0, host, "Install", "crio", outcome, error=error)


def test_each_task_has_its_line_once_it_has_ended(capsys: pytest.CaptureFixture[str]) -> None:
    lines = TaskLines()
    lines(PlayStarted(0.0, "Node"))
    lines(TaskStarted(0.0, "Install", "crio"))
    lines(ended(TaskOutcome.CHANGED))
    assert told(capsys) == ["== Node"]
    lines(TaskStarted(2.5, "Configure", "crio"))
    assert told(capsys) == ["crio: Install  changed  2.5 s"]
    lines(RunEnded(3.0, {}))
    assert told(capsys) == ["crio: Configure  no host  0.5 s"]


def test_several_hosts_are_counted_the_worst_first(capsys: pytest.CaptureFixture[str]) -> None:
    lines = TaskLines()
    lines(TaskStarted(0.0, "Install", "crio"))
    for host, outcome in [("a", TaskOutcome.OK), ("b", TaskOutcome.OK), ("c", TaskOutcome.FAILED)]:
        lines(ended(outcome, host, "no space\nleft" if outcome is TaskOutcome.FAILED else ""))
    lines(RunEnded(1.0, {}))
    assert told(capsys) == ["crio: Install  1 failed, 2 ok  1.0 s", "  c | no space", "  c | left"]


def test_what_runs_now_is_told_and_warnings_are_passed_on(capsys: pytest.CaptureFixture[str]) -> None:
    running: list[str] = []
    lines = TaskLines(running=running.append)
    lines(TaskStarted(0.0, "Wait [for] it", "calico"))
    lines(OutputLine(0.5, "[WARNING]: careful"))
    assert running == ["calico: Wait [for] it"]
    assert told(capsys) == ["[WARNING]: careful"]


def test_without_a_terminal_there_are_lines_only() -> None:
    with task_listener() as listener:
        assert isinstance(listener, TaskLines)
