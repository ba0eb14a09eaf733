"""Which experiments come next: one interface, and a planner for each way of deciding it from the results so far.

All that a planner decides follows from the campaign's folder, so that a campaign that was killed goes on as it would have.
What follows from results is in the journal before it runs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path

from harness.analysis import goodput
from harness.analysis.contrasts.until_known import Figures, RepeatProgress, judge
from harness.analysis.goodput import Best
from harness.analysis.read import read_experiment
from harness.analysis.stress import LoadRun, StressSeries, explained, run_of, search, series_of
from harness.campaign.folder import CampaignFolder
from harness.campaign.journal import Event, Journal, read_events
from harness.campaign.plan import estimate, expand, one_experiment
from harness.errors import HarnessError
from harness.results import layout
from harness.results.manifest import Status
from harness.spec import CampaignSpec, CellSpec, ExperimentSpec, UntilKnown

POINT, POINTS_END = "stress-point", "stress-ends"
BLOCK, BLOCKS_END = "repeats-block", "repeats-end"


class Planner(ABC):
    """What a campaign runs.

    Args:
        folder: of the campaign.
        journal: told of what is decided on the way; None: nothing will be run.
        say: likewise, for people.
    """

    kind = ""
    """Key of its answers in documents."""

    def __init__(
        self,
        folder: CampaignFolder,
        journal: Journal | None = None,
        say: Callable[[str], None] = lambda _sentence: None,
    ) -> None:
        self.folder, self.spec = folder, folder.spec
        self._journal, self._say = journal, say
        self._begun = False
        self._given: set[str] = set()

    def following(self) -> list[ExperimentSpec]:
        """What to run next, once what was given before is done; nothing when the answer is there.

        Raises:
            HarnessError: what was given before left no result.
        """
        if not self._begun:
            self._begun = True
            if replayed := self._replayed():
                return replayed
        experiments = self._decided()
        names = {experiment.experiment_id for experiment in experiments}
        if names & self._given:
            raise HarnessError(
                f"{min(names & self._given)} was run and left no result.",
                advice=f"Look into {self.folder.path / layout.ATTEMPTS}, then resume.",
            )
        self._given |= names
        return experiments

    def _replayed(self) -> list[ExperimentSpec]:
        """What an earlier run was given, in its order."""
        return []

    @abstractmethod
    def _decided(self) -> list[ExperimentSpec]:
        """What follows from the results."""

    @abstractmethod
    def known(self) -> list[ExperimentSpec]:
        """What has been run or runs next, as far as that is known."""

    def answers(self) -> list[str]:
        """What is known by now, in sentences."""
        return []

    def bests(self) -> list[Best]:
        """The highest goodput of servers with an objective, as far as it is known."""
        return []

    def explained(self) -> frozenset[str]:
        """Experiments whose failure is the answer."""
        return frozenset()

    def out_of_time(self) -> bool:
        """Whether the time that it may take is spent."""
        return False

    def _log(self, event: str, **fields: object) -> None:
        if self._journal is not None:
            self._journal.append(event, **fields)

    def _events(self, *kinds: str) -> list[Event]:
        return [event for event in read_events(self.folder.state) if event["event"] in kinds]

    def _is_finished(self, experiment: ExperimentSpec) -> bool:
        return self.folder.final_folder(experiment.experiment_id).exists()


class MatrixPlanner(Planner):
    """Everything at once."""

    def _replayed(self) -> list[ExperimentSpec]:
        return self.known()

    def _decided(self) -> list[ExperimentSpec]:
        return []

    def known(self) -> list[ExperimentSpec]:
        """All."""
        return expand(self.spec)


class StressPlanner(Planner):
    """One load after another until something breaks: replicas, a rate, or the batch."""

    kind = "stress"

    def __init__(
        self,
        folder: CampaignFolder,
        journal: Journal | None = None,
        say: Callable[[str], None] = lambda _sentence: None,
    ) -> None:
        super().__init__(folder, journal, say)
        self._ended: set[str] = set()
        self._read: dict[str, LoadRun] = {}

    def _replayed(self) -> list[ExperimentSpec]:
        planned = {experiment.experiment_id: experiment for experiment in self._every()}
        return [planned[str(event["experiment"])] for event in self._events(POINT)]

    def _decided(self) -> list[ExperimentSpec]:
        for cells in self.spec.series():
            series = search(self.spec, cells, self._runs(cells))
            if series.following is not None:
                cell, repeat = series.following
                experiment = one_experiment(self.spec, cell, repeat)
                self._log(POINT, experiment=experiment.experiment_id, ladder=series.name)
                return [experiment]
            if series.name not in self._ended:
                self._ended.add(series.name)
                self._log(POINTS_END, ladder=series.name, answer=series.sentences())
        return []

    def known(self) -> list[ExperimentSpec]:
        """Points that were measured, and the next of each series."""
        following = {
            cell.experiment_id(repeat)
            for series in self.series()
            if series.following
            for cell, repeat in [series.following]
        }
        return [point for point in self._every() if self._is_finished(point) or point.experiment_id in following]

    def answers(self) -> list[str]:
        """Where each series breaks, and the highest goodput."""
        sentences = [sentence for series in self.series() for sentence in series.sentences()]
        return [*sentences, *goodput.sentences(self.bests())]

    def bests(self) -> list[Best]:
        """That of every series that has ended."""
        return goodput.bests(self.spec, self.series())

    def explained(self) -> frozenset[str]:
        """The points at which something broke."""
        return explained(self.series())

    def series(self) -> list[StressSeries]:
        """How far every series has come."""
        return series_of(self.spec, self._runs(self.spec.cells()))

    def _every(self) -> list[ExperimentSpec]:
        repeats = range(1, self.spec.most_repeats + 1)
        return [one_experiment(self.spec, cell, repeat) for cell in self.spec.cells() for repeat in repeats]

    def _runs(self, cells: Sequence[CellSpec]) -> dict[str, LoadRun]:
        names = [cell.experiment_id(repeat) for cell in cells for repeat in range(1, self.spec.most_repeats + 1)]
        for name in names:
            folder = self.folder.final_folder(name)
            if name not in self._read and folder.exists():
                self._read[name] = run_of(read_experiment(folder))
        return {name: self._read[name] for name in names if name in self._read}


class UntilKnownPlanner(Planner):
    """Repeats in blocks of one of every cell that is not known yet, until all is known or the time is spent."""

    kind = "until_known"

    def __init__(
        self,
        folder: CampaignFolder,
        journal: Journal | None = None,
        say: Callable[[str], None] = lambda _sentence: None,
    ) -> None:
        super().__init__(folder, journal, say)
        self._planned = expand(self.spec)
        self._figures: dict[str, Figures] = {}

    @property
    def _wanted(self) -> UntilKnown:
        assert self.spec.until_known is not None  # noqa: S101 - planner_of has looked
        return self.spec.until_known

    def _replayed(self) -> list[ExperimentSpec]:
        return [experiment for experiment in self._planned if self._is_finished(experiment)]

    def _decided(self) -> list[ExperimentSpec]:
        for experiment in self._planned:
            name = experiment.experiment_id
            if name not in self._figures and self._is_finished(experiment):
                self._figures[name] = _figures(self.folder.final_folder(name))
        progress = judge(self._wanted, self.spec.cells(), self._figures)
        names = {cell.experiment_id(progress.blocks + 1) for cell in progress.following} - set(self._figures)
        block = [experiment for experiment in self._planned if experiment.experiment_id in names]
        why = self._why_it_ends(progress, block)
        self._log(
            BLOCKS_END if why else BLOCK,
            experiments=[experiment.experiment_id for experiment in block],
            why=why,
            answers=progress.sentences(),
        )
        self._say(f"{progress.summary} {why}".strip())
        return [] if why else block

    def _why_it_ends(self, progress: RepeatProgress, block: list[ExperimentSpec]) -> str:
        """Why no other block is begun; empty when one is."""
        if not progress.following:
            return "No repeats are left to do."
        if self._wanted.budget is None:
            return ""
        cost = estimate(block)
        if self._spent_s() + cost.duration_s + cost.starts_s <= self._wanted.budget_s:
            return ""
        return f"The budget of {self._wanted.budget} leaves no time for what comes next."

    def known(self) -> list[ExperimentSpec]:
        """What the blocks came to so far; what the budget cut short is not waited for."""
        events = self._events(BLOCK, BLOCKS_END)
        ended = bool(events) and events[-1]["event"] == BLOCKS_END
        names = set() if ended else {name for event in events for name in event["experiments"]}
        return [each for each in self._planned if each.experiment_id in names or self._is_finished(each)]

    def answers(self) -> list[str]:
        """As of the last block."""
        last = self._events(BLOCK, BLOCKS_END)[-1:]
        return [sentence for event in last for sentence in (*event["answers"], event["why"]) if sentence]

    def out_of_time(self) -> bool:
        """Whether the steps so far have taken all of the budget."""
        return self._wanted.budget is not None and self._spent_s() >= self._wanted.budget_s

    def _spent_s(self) -> float:
        """Seconds of all steps that have ended, those of failed attempts among them."""
        return sum(float(event["seconds"]) for event in self._events("step-ends"))


def planner_of(
    folder: CampaignFolder, journal: Journal | None = None, say: Callable[[str], None] = lambda _sentence: None
) -> Planner:
    """The planner that the campaign asks for."""
    return _kind(folder.spec)(folder, journal, say)


def _kind(spec: CampaignSpec) -> type[Planner]:
    if spec.stress is not None:
        return StressPlanner
    return MatrixPlanner if spec.until_known is None else UntilKnownPlanner


def _figures(path: Path) -> Figures:
    from harness.analysis.metrics.measured import measure  # with pandas: no other campaign waits for that

    data = read_experiment(path)
    return {} if data.manifest.verdict.status is Status.INVALID else measure(data).figures
