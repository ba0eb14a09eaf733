"""The campaign as it goes: bar, time to go and current figures on a terminal, plain lines without one."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.columns import Columns
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.text import Text

from harness.campaign import events
from harness.cli import output
from harness.cli.output import duration
from harness.errors import printable
from harness.metrics.rows import POOLED

ROWS_EVERY_S = 30.0
MOST_REPLICAS = 16
"""Whose figures are shown one by one: more would fill the screen."""


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
                count = f"{event.experiments} experiment{'' if event.experiments == 1 else 's'}"
                return f"{event.campaign}: {count}{done}; about {to_go} to go"
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
            line = "; ".join([f"  {event.rows} of {event.of_rows} rows", *figures(event)[:1]])
        if line is not None:
            output.note(f"{time.strftime('%H:%M:%S')} {line}")


class LiveBar:
    """What moves: experiment and step, bar, time to go, figures of the replicas; what ended scrolls by above it."""

    def __init__(self, progress: _View) -> None:
        self._progress = progress
        self._sentences = _Sentences()
        self._task: TaskID = progress.add_task("starting", total=None, ends_s=time.monotonic(), rows="")

    def __call__(self, event: events.Event) -> None:
        """Show an event."""
        line = self._sentences.line(event)
        if line is not None:
            self._progress.console.print(escape(printable(line)))
        if isinstance(event, events.StepBegins):
            planned = f" ({duration(event.planned_s)})" if event.planned_s else ""
            text = f"[{event.number}/{self._sentences.of}] {event.experiment_id}: {event.step}{planned}"
            ends_s = time.monotonic() + event.remaining_s
            self._progress.figures = []
            self._progress.reset(self._task, total=None, description=text, ends_s=ends_s, rows="")
        elif isinstance(event, events.RowsRecorded):
            self._progress.figures = figures(event)
            rows = f"{event.rows} of {event.of_rows} rows"
            self._progress.update(self._task, completed=event.rows, total=event.of_rows, rows=rows)


def figures(event: events.RowsRecorded) -> list[str]:
    """The figures of the last row: of all replicas with the time that they are of, then of each where there are several."""
    from harness.analysis.format import DASH, number, quantity

    told = []
    for one in event.now:
        rate = DASH if one.requests_per_s is None else number(one.requests_per_s)
        p99 = DASH if one.p99_s is None else quantity(one.p99_s, "s")
        told.append((one.series, f"{rate} req/s, p99 {p99}"))
    pooled = [f"last {duration(event.window_s)}: {words}" for series, words in told if series == POOLED]
    each = [f"{series} {words}" for series, words in told if series != POOLED]
    return pooled + (each if len(each) > 1 else [])


class _View(Progress):
    """The step on a line of its own, so that the bar has room beside any name; below it the figures, side by side."""

    figures: Sequence[str] = ()

    def get_renderables(self) -> Iterator[RenderableType]:
        """What is drawn, anew each time."""
        for task in self.tasks:
            yield Text(task.description)
        yield self.make_tasks_table(self.tasks)
        pooled, *each = self.figures or [""]
        if pooled:
            yield Text(f"  {pooled}")
            yield Padding(Columns([Text(words) for words in each[:MOST_REPLICAS]], padding=(0, 2)), (0, 2))
        if len(each) > MOST_REPLICAS:
            yield Text(f"  and {len(each) - MOST_REPLICAS} more replicas")


class _ToGo(ProgressColumn):
    """The time until the campaign is over, counting down."""

    def render(self, task: Task) -> Text:
        return Text(f"{duration(round(max(task.fields['ends_s'] - time.monotonic(), 0.0)))} to go")


def _bar(console: Console) -> _View:
    rows = TextColumn("{task.fields[rows]}")
    return _View(
        TextColumn(" "), BarColumn(bar_width=30), rows, _ToGo(), console=console, transient=True, redirect_stdout=False
    )
