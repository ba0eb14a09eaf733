"""The campaign as it goes: a live line with bar and ETA on a terminal, plain lines without one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

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


class _Tracker:
    """What both ways of telling need to know."""

    def __init__(self) -> None:
        self.of = 0
        self.remaining_s = 0.0

    def line(self, event: events.Event) -> str | None:
        """The sentence for an event that deserves one."""
        match event:
            case events.CampaignBegins():
                self.of, self.remaining_s = event.experiments, event.remaining_s
                done = f", {event.done} done before" if event.done else ""
                return f"{event.campaign}: {event.experiments} experiments{done}; {duration(event.remaining_s)} of phases to go"
            case events.StepEnds(ok=False):
                return f"  {event.step} failed: {'; '.join(event.reasons)}"
            case events.ExperimentEnds():
                self.remaining_s = event.remaining_s
                why = f": {'; '.join(event.reasons)}" if event.reasons else ""
                to_go = f"; {duration(event.remaining_s)} to go" if event.remaining_s else ""
                return f"[{event.number}/{self.of}] {event.experiment_id} {event.status.value}{why}{to_go}"
            case events.Notice():
                return f"  {event.message}"
        return None


class PlainLines:
    """One line for each step, with the time; for logs and pipes."""

    def __init__(self) -> None:
        self._tracker = _Tracker()
        self._last_rows_s = 0.0

    def __call__(self, event: events.Event) -> None:
        """Write the line of an event."""
        line = self._tracker.line(event)
        if isinstance(event, events.StepBegins):
            planned = f" ({duration(event.planned_s)})" if event.planned_s else ""
            attempt = f", attempt {event.attempt}" if event.attempt > 1 else ""
            line = f"[{event.number}/{self._tracker.of}] {event.experiment_id}: {event.step}{planned}{attempt}"
        elif isinstance(event, events.RowsRecorded) and time.monotonic() - self._last_rows_s >= ROWS_EVERY_S:
            self._last_rows_s = time.monotonic()
            line = f"  {event.rows} of {event.of_rows} rows"
        if line is not None:
            output.note(f"{time.strftime('%H:%M:%S')} {line}")


class LiveBar:
    """One moving line: experiment, step, rows and the time to go; what ended scrolls by above it."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._tracker = _Tracker()
        self._task: TaskID = progress.add_task("starting", total=None, eta="")

    def __call__(self, event: events.Event) -> None:
        """Show an event."""
        line = self._tracker.line(event)
        if line is not None:
            self._progress.console.print(escape(line))
        if isinstance(event, events.StepBegins):
            text = f"[{event.number}/{self._tracker.of}] {event.experiment_id}: {event.step}"
            planned = f"{duration(event.planned_s)}, then " if event.planned_s else ""
            self._progress.reset(self._task, total=None, description=escape(text), eta=self._eta(planned))
        elif isinstance(event, events.RowsRecorded):
            self._progress.update(self._task, completed=event.rows, total=event.of_rows)

    def _eta(self, planned: str) -> str:
        return f"{planned}{duration(self._tracker.remaining_s)} to go"


def _bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[eta]}"),
        console=console,
    )
