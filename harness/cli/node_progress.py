"""A run of Ansible as it goes: one line per task when it has ended, and on a terminal the one that is running."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.markup import escape

from harness.cli import output
from harness.node.events import (
    Listener,
    NodeEvent,
    OutputLine,
    PlayStarted,
    RunEnded,
    TaskEnded,
    TaskOutcome,
    TaskStarted,
)

_ORDER = (
    TaskOutcome.FAILED,
    TaskOutcome.UNREACHABLE,
    TaskOutcome.CHANGED,
    TaskOutcome.OK,
    TaskOutcome.IGNORED,
    TaskOutcome.SKIPPED,
)


@contextmanager
def task_listener() -> Iterator[Listener]:
    """A listener that fits where stderr goes."""
    console = output.stderr_console()
    if not console.is_terminal:
        yield TaskLines()
        return
    with console.status("Ansible starts") as status:
        yield TaskLines(running=lambda text: status.update(escape(text)))


class TaskLines:
    """A listener that writes ``role: task  outcome  seconds`` to stderr; with several hosts, the count of each.

    ``running`` is told what has just begun.
    """

    def __init__(self, running: Callable[[str], object] | None = None) -> None:
        self._running = running or (lambda _: None)
        self._task: TaskStarted | None = None
        self._outcomes: Counter[TaskOutcome] = Counter()
        self._errors: list[str] = []

    def __call__(self, event: NodeEvent) -> None:
        """Take one event."""
        match event:
            case PlayStarted():
                self._finish(event.at_s)
                output.note(f"== {event.name}")
            case TaskStarted():
                self._finish(event.at_s)
                self._task = event
                self._running(f"{event.role}: {event.name}")
            case TaskEnded():
                self._outcomes[event.outcome] += 1
                if event.error and event.outcome is not TaskOutcome.IGNORED:
                    self._errors += [f"  {event.host} | {line}" for line in event.error.splitlines()]
            case OutputLine():
                output.note(event.text)
            case RunEnded():
                self._finish(event.at_s)

    def _finish(self, at_s: float) -> None:
        """Write the line of the task that has just ended."""
        if self._task is not None:
            output.note(f"{self._task.role}: {self._task.name}  {self._outcome()}  {at_s - self._task.at_s:.1f} s")
            for line in self._errors:
                output.note(line)
        self._task, self._outcomes, self._errors = None, Counter(), []

    def _outcome(self) -> str:
        counts = [(outcome, self._outcomes[outcome]) for outcome in _ORDER if self._outcomes[outcome]]
        if len(counts) == 1 and counts[0][1] == 1:
            return counts[0][0].value
        return ", ".join(f"{number} {outcome.value}" for outcome, number in counts) or "no host"
