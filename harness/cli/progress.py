"""The campaign as it goes: a live line with bar and ETA on a terminal, plain lines without one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.text import Text

from harness.campaign import events
from harness.cli import output
from harness.cli.render import duration

ROWS_EVERY_S = 30.0


@contextmanager
def progress_listener() -> Iterator[events.Listener]:
    """A listener that fits where stderr goes."""
    console = output.stderr_console()
    if not console.is_terminal:
        yield PlainLines()
        return
    with _bar(console) as progress:
        yield LiveBar(progress)


class _Sentences:
    """Says the events that deserve a line of their own."""

    def __init__(self) -> None:
        self.of = 0

    def line(self, event: events.Event) -> str | None:
        """The sentence for an event, if it deserves one."""
        match event:
            case events.CampaignBegins():
                self.of = event.experiments
                done = f", {event.done} done before" if event.done else ""
                to_go = duration(event.remaining_s)
                return f"{event.campaign}: {event.experiments} experiments{done}; about {to_go} to go"
            case events.StepEnds(ok=False):
                return f"  {'; '.join(event.reasons)}"
            case events.ExperimentEnds():
                why = f": {' '.join(event.reasons)}" if event.reasons else ""
                return f"[{event.number}/{self.of}] {event.experiment_id} {event.status.value}{why}"
            case events.Notice():
                return f"  {event.message}"
        return None


class PlainLines:
    """One line for each step, with the time; for logs and pipes."""

    def __init__(self) -> None:
        self._sentences = _Sentences()
        self._last_rows_s = 0.0

    def __call__(self, event: events.Event) -> None:
        """Write the line of an event."""
        line = self._sentences.line(event)
        if isinstance(event, events.StepBegins):
            planned = f" ({duration(event.planned_s)}; {duration(event.remaining_s)} to go)" if event.planned_s else ""
            attempt = f", attempt {event.attempt}" if event.attempt > 1 else ""
            line = f"[{event.number}/{self._sentences.of}] {event.experiment_id}: {event.step}{planned}{attempt}"
        elif isinstance(event, events.RowsRecorded) and time.monotonic() - self._last_rows_s >= ROWS_EVERY_S:
            self._last_rows_s = time.monotonic()
            line = f"  {event.rows} of {event.of_rows} rows"
        if line is not None:
            output.note(f"{time.strftime('%H:%M:%S')} {line}")


class LiveBar:
    """One moving line: experiment, step, rows and the time to go; what ended scrolls by above it."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._sentences = _Sentences()
        self._task: TaskID = progress.add_task("starting", total=None, ends_s=time.monotonic())

    def __call__(self, event: events.Event) -> None:
        """Show an event."""
        line = self._sentences.line(event)
        if line is not None:
            self._progress.console.print(escape(line))
        if isinstance(event, events.StepBegins):
            text = f"[{event.number}/{self._sentences.of}] {event.experiment_id}: {event.step}"
            ends_s = time.monotonic() + event.remaining_s
            self._progress.reset(self._task, total=None, description=escape(text), ends_s=ends_s)
        elif isinstance(event, events.RowsRecorded):
            self._progress.update(self._task, completed=event.rows, total=event.of_rows)


class _ToGo(ProgressColumn):
    """The time until the campaign is over, counting down."""

    def render(self, task: Task) -> Text:
        return Text(f"{duration(round(max(task.fields['ends_s'] - time.monotonic(), 0.0)))} to go")


def _bar(console: Console) -> Progress:
    return Progress(TextColumn("{task.description}"), BarColumn(), _ToGo(), console=console, transient=True)
