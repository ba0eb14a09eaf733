"""A campaign as it goes: bar, time to go and current figures on a terminal, plain lines without one."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

from rich.columns import Columns
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.text import Text

from harness.campaign import events
from harness.cli import output
from harness.errors import counted, duration, printable
from harness.host import WAIT_S
from harness.metrics.rows import POOLED
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
from harness.results.manifest import Status

if TYPE_CHECKING:
    from harness.campaign.folder import CampaignFolder
    from harness.campaign.runner import CampaignOutcome

ROWS_EVERY_S = 30.0
_BAR_WIDTH = 30
MOST_REPLICAS = 16
"""Whose figures are shown one by one: more would fill the screen."""


def run_shown(folder: CampaignFolder, again: Sequence[Status] = (), *, wait: bool = True) -> CampaignOutcome:
    """Run a campaign to its end, and show on stderr how far it is.

    ``again``: verdicts of which experiments are run anew; ``wait``: for another harness on the same GPU.
    """
    from harness.backends.base import make_backend
    from harness.campaign.runner import CampaignRunner

    console = output.stderr_console()
    backend = make_backend(folder.spec, folder.campaign_id)
    with _bar(console) if console.is_terminal else nullcontext() as bar:
        listener = LiveBar(bar) if bar else PlainLines()
        return CampaignRunner(folder, backend, listener=listener, wait_s=WAIT_S if wait else 0.0).run(again=again)


class _Sentences:
    """Says the events that deserve a line of their own."""

    experiments = 0

    def sentence(self, event: events.Event) -> str | None:
        """The sentence for an event, if it deserves one."""
        match event:
            case events.CampaignBegins():
                self.experiments = event.experiments
                done = f", {event.done} done before" if event.done else ""
                count = counted(event.experiments, "experiment")
                return f"{event.campaign}: {count}{done}; about {duration(event.remaining_s)} to go"
            case events.StepEnds(ok=False):
                return f"  {'; '.join(event.reasons)}"
            case events.ExperimentEnds():
                why = f": {' '.join(event.reasons)}" if event.reasons else ""
                return f"[{event.number}/{self.experiments}] {event.experiment_id} {event.status.value}{why}"
            case events.Notice():
                return f"  {event.message}"
        return None

    def step(self, event: events.StepBegins, *more: str) -> str:
        """What has begun, and how long it takes."""
        times = "; ".join((duration(event.planned_s), *more)) if event.planned_s else ""
        return (
            f"[{event.number}/{self.experiments}] {event.experiment_id}: {event.step}{f' ({times})' if times else ''}"
        )


class PlainLines(_Sentences):
    """One line for each step, with the time; for logs and pipes."""

    _last_rows_s = 0.0

    def __call__(self, event: events.Event) -> None:
        """Write the line of an event."""
        line = self.sentence(event)
        if isinstance(event, events.StepBegins):
            attempt = f", attempt {event.attempt}" if event.attempt > 1 else ""
            line = self.step(event, f"{duration(event.remaining_s)} to go") + attempt
        elif isinstance(event, events.RowsRecorded) and time.monotonic() - self._last_rows_s >= ROWS_EVERY_S:
            self._last_rows_s = time.monotonic()
            line = "; ".join([f"  {event.rows} of {event.of_rows} rows", *figures(event)[:1]])
        if line is not None:
            output.note(f"{time.strftime('%H:%M:%S')} {line}")


class LiveBar(_Sentences):
    """What moves: experiment and step, bar, time to go, figures of the replicas; what ended scrolls by above it."""

    def __init__(self, progress: _View) -> None:
        self._progress = progress
        self._task: TaskID = progress.add_task("starting", total=None, ends_s=time.monotonic(), rows="")

    def __call__(self, event: events.Event) -> None:
        """Show an event."""
        line = self.sentence(event)
        if line is not None:
            self._progress.console.print(escape(printable(line)))
        if isinstance(event, events.StepBegins):
            ends_s = time.monotonic() + event.remaining_s
            self._progress.figures = []
            self._progress.reset(self._task, total=None, description=self.step(event), ends_s=ends_s, rows="")
        elif isinstance(event, events.RowsRecorded):
            self._progress.figures = figures(event)
            rows = f"{event.rows} of {event.of_rows} rows"
            self._progress.update(self._task, completed=event.rows, total=event.of_rows, rows=rows)


def figures(event: events.RowsRecorded) -> list[str]:
    """The figures of the last row: of all replicas with the time that they are of, then of each where there are several."""
    from harness.analysis.format import DASH, number, quantity  # which waits for scipy

    pooled, replicas = [], []
    for now in event.now:
        rate = DASH if now.requests_per_s is None else number(now.requests_per_s)
        words = f"{rate} req/s, p99 {DASH if now.p99_s is None else quantity(now.p99_s, 's')}"
        if now.series == POOLED:
            pooled.append(f"last {duration(event.window_s)}: {words}")
        else:
            replicas.append(f"{now.series} {words}")
    return pooled + (replicas if len(replicas) > 1 else [])


class _View(Progress):
    """The step on a line of its own, so that the bar has room beside any name; below it the figures, side by side."""

    figures: Sequence[str] = ()

    def get_renderables(self) -> Iterator[RenderableType]:
        """What is drawn, anew each time."""
        for task in self.tasks:
            yield Text(task.description)
        yield self.make_tasks_table(self.tasks)
        pooled, *replicas = self.figures or [""]
        if pooled:
            yield Text(f"  {pooled}")
            yield Padding(Columns([Text(words) for words in replicas[:MOST_REPLICAS]], padding=(0, 2)), (0, 2))
        if len(replicas) > MOST_REPLICAS:
            yield Text(f"  and {len(replicas) - MOST_REPLICAS} more replicas")


class _PlainBar(ProgressColumn):
    """A bar whose rest is seen without colours, too; rich leaves it out."""

    def render(self, task: Task) -> Text:
        done = int(_BAR_WIDTH * min(task.completed / task.total, 1.0)) if task.total else 0
        return Text("#" * done + "-" * (_BAR_WIDTH - done))


class _ToGo(ProgressColumn):
    """The time until the campaign is over, counting down."""

    def render(self, task: Task) -> Text:
        return Text(f"{duration(round(max(task.fields['ends_s'] - time.monotonic(), 0.0)))} to go")


def _bar(console: Console) -> _View:
    rows = TextColumn("{task.fields[rows]}")
    bar: ProgressColumn = _PlainBar() if console.no_color else BarColumn(bar_width=_BAR_WIDTH)
    return _View(TextColumn(" "), bar, rows, _ToGo(), console=console, transient=True, redirect_stdout=False)


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
    """A listener that writes ``role: task  outcome  seconds`` to stderr; with several hosts, the count of each outcome."""

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
        counts = {outcome.value: self._outcomes[outcome] for outcome in TaskOutcome if self._outcomes[outcome]}
        if self._outcomes.total() == 1:
            return next(iter(counts))
        return ", ".join(f"{number} {outcome}" for outcome, number in counts.items()) or "no host"
