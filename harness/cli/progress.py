"""A campaign as it goes: a row for each configuration and a bar on a terminal, a line for each experiment without one."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.table import Table
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

_BAR_WIDTH = 20
_OTHER_LINES = 4
"""Of the screen, which the configurations leave: titles, what is left out, the bar, the prompt."""


def run_shown(folder: CampaignFolder, again: Sequence[Status] = (), *, wait_s: float = WAIT_S) -> CampaignOutcome:
    """Run a campaign to its end, and show on stderr how far it is.

    ``again``: verdicts of which experiments are run anew; ``wait_s``: for another harness on the same GPU.
    """
    from harness.backends.base import make_backend
    from harness.campaign.plan import titles
    from harness.campaign.runner import CampaignRunner

    console = output.stderr_console()
    backend = make_backend(folder.spec, folder.campaign_id)
    with _bar(console) if console.is_terminal else nullcontext() as bar:
        names = titles(folder.spec)
        listener = LiveBar(bar, names) if bar else PlainLines(names)
        return CampaignRunner(folder, backend, listener=listener, wait_s=wait_s).run(again=again)


@dataclass(slots=True)
class _Configuration:
    """What is known of the runs of one configuration: how many ended with which verdict, what each did, what it does now."""

    verdicts: Counter[str] = field(default_factory=Counter)
    runs: list[tuple[float | None, float | None]] = field(default_factory=list)
    step: str = ""

    @property
    def words(self) -> tuple[str, str]:
        """Requests per second and p99, of the mean run."""
        rates, tails = ([value for value in values if value is not None] for values in zip(*self.runs, strict=True))
        return _words(fmean(rates) if rates else None, fmean(tails) if tails else None)

    @property
    def state(self) -> str:
        """The step of a run that goes on, or the verdicts."""
        return self.step or ", ".join(f"{count} {verdict}" for verdict, count in self.verdicts.items())


class _Story:
    """What has happened so far, and the sentences that it deserves; with -v also of each step.

    ``titles``: what to call an experiment in place of its id.
    """

    def __init__(self, titles: Mapping[str, str] | None = None) -> None:
        self.experiments, self.done, self._titles = 0, 0.0, titles or {}
        self.configurations: dict[str, _Configuration] = {}
        self._windows: list[events.Now] = []

    def take(self, event: events.Event) -> str | None:
        """Note an event; its sentence, if it deserves one."""
        match event:
            case events.CampaignBegins():
                self.experiments, self.done = event.experiments, event.done
                before = f", {event.done} done before" if event.done else ""
                count = counted(event.experiments, "experiment")
                return f"{event.campaign}: {count}{before}; about {duration(event.remaining_s)} to go"
            case events.StepBegins():
                self.done = event.number - 1
                self.of(event.experiment_id).step = event.step
                self._windows = [] if event.step == "record" else self._windows
                return self._step(event) if output.is_verbose() else None
            case events.StepEnds(ok=False) if output.is_verbose():
                return f"  {'; '.join(event.reasons)}"
            case events.RowsRecorded():
                self.done = int(self.done) + event.rows / (event.of_rows + 1)
                self._windows += [now for now in event.now if now.series == POOLED]
            case events.ExperimentEnds():
                return self._end(event)
            case events.Notice():
                return f"  {event.message}"
        return None

    def of(self, experiment_id: str) -> _Configuration:
        """What is known of the configuration that it is a run of."""
        name = self._titles.get(experiment_id, experiment_id).replace("_", " ").rpartition(" rep")[0]
        return self.configurations.setdefault(name, _Configuration())

    def _step(self, event: events.StepBegins) -> str:
        attempt = f", attempt {event.attempt}" if event.attempt > 1 else ""
        planned = f"{duration(event.planned_s)}; " if event.planned_s else ""
        times = f"{planned}{duration(event.remaining_s)} to go"
        name = self._titles.get(event.experiment_id, event.experiment_id)
        return f"[{event.number}/{self.experiments}] {name}: {event.step} ({times}){attempt}"

    def _end(self, event: events.ExperimentEnds) -> str:
        self.done = event.number
        own, known = _Configuration(runs=[self._figures()]), self.of(event.experiment_id)
        known.step = ""
        known.verdicts[event.status.value] += 1
        known.runs += own.runs
        figures = f": {own.words[0]} req/s, p99 {own.words[1]}" if self._windows else ""
        self._windows = []
        why = f": {' '.join(event.reasons)}" if event.reasons else ""
        to_go = f" ({duration(event.remaining_s)} to go)" if event.remaining_s else ""
        name = self._titles.get(event.experiment_id, event.experiment_id)
        return f"[{event.number}/{self.experiments}] {name} {event.status.value}{figures}{to_go}{why}"

    def _figures(self) -> tuple[float | None, float | None]:
        """Of one run: the means over its windows, which the report has exactly."""
        rates = [now.requests_per_s for now in self._windows if now.requests_per_s is not None]
        tails = [now.p99_s for now in self._windows if now.p99_s is not None]
        return fmean(rates) if rates else None, fmean(tails) if tails else None


def _words(rate: float | None, tail_s: float | None) -> tuple[str, str]:
    from harness.analysis.format import DASH, number, quantity  # which waits for scipy

    return DASH if rate is None else number(rate), DASH if tail_s is None else f"~{quantity(tail_s, 's')}"


class PlainLines(_Story):
    """One line for each experiment, with the time; for logs and pipes."""

    def __call__(self, event: events.Event) -> None:
        """Write the line of an event."""
        line = self.take(event)
        if line is not None:
            output.note(f"{time.strftime('%H:%M:%S')} {line}")


class LiveBar(_Story):
    """A row for each configuration and a bar of the campaign; what went wrong, and with -v everything, scrolls by above them."""

    def __init__(self, progress: _View, titles: Mapping[str, str] | None = None) -> None:
        super().__init__(titles)
        self._progress = progress
        progress.story = self
        self._task: TaskID = progress.add_task("", total=None, ends_s=time.monotonic(), runs="starting")

    def __call__(self, event: events.Event) -> None:
        """Show an event."""
        line = self.take(event)
        well = isinstance(event, events.ExperimentEnds) and event.status is Status.VALID
        if line is not None and (output.is_verbose() or not well):
            self._progress.console.print(escape(printable(line)))
        if isinstance(event, events.CampaignBegins | events.StepBegins | events.ExperimentEnds):
            ends_s = time.monotonic() + event.remaining_s
            self._progress.update(self._task, ends_s=ends_s)
        if self.experiments:
            runs = f"{int(self.done)} of {self.experiments} runs"
            self._progress.update(self._task, completed=self.done, total=self.experiments, runs=runs)


class _View(Progress):
    """The configurations above the bar: those that ran last, where the screen has no room for all."""

    story: _Story | None = None

    def get_renderables(self) -> Iterator[RenderableType]:
        """What is drawn, anew each time."""
        if self.story and (known := self.story.configurations):
            most = max(1, self.console.height - _OTHER_LINES)
            table = Table("configuration", "runs", "req/s", "p99", "", box=None, pad_edge=False, padding=(0, 2, 0, 0))
            for column in table.columns:
                column.no_wrap = True
            for name, configuration in list(known.items())[-most:]:
                rate, tail = configuration.words if configuration.runs else ("", "")
                table.add_row(Text(name), str(len(configuration.runs)), rate, tail, Text(configuration.state))
            yield table
            if len(known) > most:
                yield Text(f"and {len(known) - most} more configurations above")
        yield self.make_tasks_table(self.tasks)


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
    runs = TextColumn("{task.fields[runs]}")
    bar: ProgressColumn = _PlainBar() if console.no_color else BarColumn(bar_width=_BAR_WIDTH)
    return _View(bar, runs, _ToGo(), console=console, transient=True, redirect_stdout=False)


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
