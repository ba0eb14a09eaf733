"""What comes next: one interface, and a planner for each way of deciding it from the results so far; and what ends a recording early.

All that a planner decides follows from the campaign's folder, so that a campaign that was killed goes on as it would have.
What follows from results is in the journal before it runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from harness.analysis import goodput
from harness.analysis.contrasts.until_known import Figures, RepeatProgress, judge
from harness.analysis.goodput import Best
from harness.analysis.objective import ObjectiveLooks
from harness.analysis.read import read_experiment
from harness.analysis.statistics.sequential_ci import FIRST_SLICES, Looks, Requests, relative_half_width
from harness.analysis.stress import LoadRun, StressSeries, explained, run_of, search, series_of
from harness.campaign.folder import CampaignFolder, open_folder
from harness.campaign.journal import Event, Journal, read_events
from harness.campaign.plan import estimate, expand, one_experiment
from harness.campaign.source import GIVEN, CampaignSource
from harness.campaign.verify import verify_campaign
from harness.errors import HarnessError, UsageError
from harness.results import layout
from harness.results.files import read_document
from harness.results.manifest import Status
from harness.results.requests import LatencyTail
from harness.spec import MOST_REPEATS, CampaignSpec, ExperimentSpec, StopWhenKnown
from harness.spec.kubernetes import IMAGE
from harness.spec.load import require
from harness.spec.timing import KnownMetric

if TYPE_CHECKING:
    from harness.analysis.campaign import ConfigurationKey

POINT, POINTS_END = "stress-point", "stress-ends"
BLOCK, BLOCKS_END = "repeats-block", "repeats-end"
TIMES = 4
"""As many repeats as were published, at most: more narrow the interval little, for which the published ones stay as they are."""
LOG_LAG_S = 1.0
"""A request is on the disk within a second of its end; what ended later is left for the next look."""
_NS = 1e9


class Planner:
    """What a campaign runs: here everything at once. ``journal`` and ``say`` hear what is decided; without them nothing will be run."""

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
        """What to run next, once what was given before is done; nothing when the answer is there. Raises HarnessError."""
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
        """What an earlier run was given, in its order; of a matrix all of it."""
        return self._planned

    def _decided(self) -> list[ExperimentSpec]:
        """What follows from the results."""
        return []

    def known(self) -> list[ExperimentSpec]:
        """What has been run or runs next, as far as that is known."""
        return self._planned

    def series(self) -> list[StressSeries]:
        """How far every series of loads has come."""
        return []

    def answers(self) -> list[str]:
        """What is known by now, in sentences: where each series breaks, and the highest goodput."""
        sentences = [sentence for series in self.series() for sentence in series.sentences()]
        return [*sentences, *goodput.sentences(self.bests())]

    def bests(self) -> list[Best]:
        """The highest goodput of servers with an objective, as far as it is known."""
        return goodput.bests(self.spec, self.series())

    def explained(self) -> frozenset[str]:
        """Experiments whose failure is the answer: the points at which something broke."""
        return explained(self.series())

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

    @cached_property
    def _planned(self) -> list[ExperimentSpec]:
        return expand(self.spec)


class StressPlanner(Planner):
    """One load after another until something breaks: replicas, a rate, or the batch."""

    kind = "stress"

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._ended: set[str] = set()
        self._read: dict[str, LoadRun] = {}

    def _replayed(self) -> list[ExperimentSpec]:
        planned = {experiment.experiment_id: experiment for experiment in self._every}
        return [planned[str(event["experiment"])] for event in self._events(POINT)]

    def _decided(self) -> list[ExperimentSpec]:
        for cells in self.spec.series():
            series = search(self.spec, cells, self._runs())
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
        points = [series.following for series in self.series() if series.following]
        following = {cell.experiment_id(repeat) for cell, repeat in points}
        return [point for point in self._every if self._is_finished(point) or point.experiment_id in following]

    def series(self) -> list[StressSeries]:
        """How far every series has come."""
        return series_of(self.spec, self._runs())

    @cached_property
    def _every(self) -> list[ExperimentSpec]:
        repeats = range(1, self.spec.most_repeats + 1)
        return [one_experiment(self.spec, cell, repeat) for cell in self.spec.cells() for repeat in repeats]

    def _runs(self) -> dict[str, LoadRun]:
        for point in self._every:
            name = point.experiment_id
            if name not in self._read and self._is_finished(point):
                self._read[name] = run_of(read_experiment(self.folder.final_folder(name)))
        return self._read


class UntilKnownPlanner(Planner):
    """Repeats in blocks of one of every cell that is not known yet, until all is known or the time is spent."""

    kind = "until_known"

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        assert self.spec.until_known is not None  # noqa: S101 - planner_of has looked
        self._wanted = self.spec.until_known
        self._figures: dict[str, Figures] = {}

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
        if why and progress.rivals:
            decisive = {cell.experiment_id(0) for group in progress.rivals for cell in group}
            fewer = [run for run in block if run.cell.experiment_id(0) in decisive]
            if fewer and len(fewer) < len(block) and not self._why_it_ends(progress, fewer):
                block, why = fewer, ""
                self._say(
                    f"Only {', '.join(run.experiment_id for run in fewer)} next: the budget has no time for the others."
                )
        self._log(
            BLOCKS_END if why else BLOCK,
            experiments=[experiment.experiment_id for experiment in block],
            why=why,
            answers=progress.sentences(),
        )
        for sentence in progress.news:
            self._say(sentence)
        if why:
            self._say(why)
        return [] if why else block

    def _why_it_ends(self, progress: RepeatProgress, block: list[ExperimentSpec]) -> str:
        """Why no other block is begun; empty when one is."""
        if not progress.following:
            return "No repeats are left to do."
        if self._wanted.budget is None or self._spent_s() + self._expected_s(block) <= self._wanted.budget_s:
            return ""
        return f"The budget of {self._wanted.budget} leaves no time for what comes next."

    def known(self) -> list[ExperimentSpec]:
        """What the blocks came to so far; what the budget cut short is not waited for."""
        events = self._events(BLOCK, BLOCKS_END)
        ended = bool(events) and events[-1]["event"] == BLOCKS_END
        names = set() if ended else {name for event in events for name in event["experiments"]}
        return [run for run in self._planned if run.experiment_id in names or self._is_finished(run)]

    def answers(self) -> list[str]:
        """As of the last block."""
        last = self._events(BLOCK, BLOCKS_END)[-1:]
        return [sentence for event in last for sentence in (*event["answers"], event["why"]) if sentence]

    def out_of_time(self) -> bool:
        """Whether the steps so far have taken all of the budget."""
        return self._wanted.budget is not None and self._spent_s() >= self._wanted.budget_s

    def _expected_s(self, block: list[ExperimentSpec]) -> float:
        """Seconds that a block takes, by what the runs of its cells took so far; by the usual time of one that has none."""
        seconds: dict[str, float] = {}
        for event in self._events("step-ends"):
            name = str(event["experiment"])
            seconds[name] = seconds.get(name, 0.0) + float(event["seconds"])
        cells = {
            cell.experiment_id(repeat): cell.experiment_id(0)
            for cell in self.spec.cells()
            for repeat in range(1, self._wanted.max + 1)
        }
        runs: dict[str, list[float]] = {}
        for name in seconds.keys() & cells.keys():
            if self.folder.final_folder(name).exists():
                runs.setdefault(cells[name], []).append(seconds[name])
        known = {cell: fmean(taken) for cell, taken in runs.items()}
        return sum(known.get(cells[run.experiment_id]) or estimate([run]).total_s for run in block)

    def _spent_s(self) -> float:
        """Seconds of all steps that have ended, those of failed attempts among them."""
        return sum(float(event["seconds"]) for event in self._events("step-ends"))


def planner_of(
    folder: CampaignFolder, journal: Journal | None = None, say: Callable[[str], None] = lambda _sentence: None
) -> Planner:
    """The planner that the campaign asks for."""
    spec = folder.spec
    kind = StressPlanner if spec.stress else UntilKnownPlanner if spec.until_known else Planner
    return kind(folder, journal, say)


def _figures(path: Path) -> Figures:
    from harness.analysis.campaign import measure  # with pandas: no other campaign waits for that

    data = read_experiment(path)
    return {} if data.manifest.verdict.status is Status.INVALID else measure(data).figures


def published_source(folder: Path, said: Path) -> CampaignSource:
    """What a verified campaign ran, with the defaults of then; ``said`` is what the user gave: the folder, or its archive.

    Raises VerificationError, ResultsPathError and CampaignFileError where it is damaged, no campaign, or not to be run by this version.
    """
    verify_campaign(folder).of(said).refuse()
    spec = _with_our_image(open_folder(folder).spec)
    require(spec, origin=str(said))
    return CampaignSource(spec, read_document(folder / layout.CAMPAIGN_YAML).decode(errors="replace"), GIVEN)


def _with_our_image(spec: CampaignSpec) -> CampaignSpec:
    """The same where its replicas' image is that of an older harness, which a node of this version does not have."""
    cluster, name = spec.kubernetes, IMAGE.rpartition(":")[0]
    if cluster is None or cluster.image.rpartition(":")[0] != name:
        return spec
    return spec.model_copy(update={"kubernetes": cluster.model_copy(update={"image": IMAGE})})


def most_repeats(source: CampaignSource, limit: int | None) -> int:
    """Repeats of a cell that there may be here: ``limit`` (UsageError where a campaign finds it itself), or four times as many."""
    if not source.spec.open_ended:
        return limit or min(TIMES * source.spec.most_repeats, MOST_REPEATS)
    if limit:
        raise UsageError(
            "the published campaign finds the number of its repeats itself, so --max-repeats has no effect.",
            advice="Leave it out.",
        )
    return 0


def with_more_repeats(source: CampaignSource, more: Mapping[ConfigurationKey, int]) -> CampaignSource:
    """What ran, for the cells that need ``more`` repeats (one cell at least) and those between them in its matrix; as many of each."""
    spec, repeats = source.spec, max(more.values())
    names = {key.workload for key in more}
    wanted = [cell for cell in spec.cells() if cell.workload.name in names]
    families = {cell.workload.family if cell.load else cell.workload.name for cell in wanted}
    axes = {
        "workloads": [workload for workload in spec.workloads if workload.name in families],
        "sweep": spec.sweep and spec.sweep.only({cell.load for cell in wanted if cell.load}),
        "sharing": [mode for mode in spec.sharing if mode.value in {key.sharing for key in more}],
        "replicas": [replicas for replicas in spec.replicas if replicas in {key.replicas for key in more}],
        "conditions": [beside for beside in spec.conditions if beside.name in {key.condition for key in more}],
    }
    return CampaignSource(
        spec.model_copy(update={**axes, "repeats": repeats}).without_what_has_no_effect(),
        f"# {repeats} more repeats of a part of its cells, see campaign.json\n{source.text}",
        source.origin,
    )


def refuse_same(published: Path, *again: Path) -> None:
    """Raise UsageError where a campaign would be held against itself, or counted twice."""
    ids = [open_folder(folder).campaign_id for folder in (published, *again)]
    for index, folder in enumerate(again, start=1):
        if ids[index] in ids[:index]:
            what = "the campaign that it is to be compared with" if ids[index] == ids[0] else "given twice"
            raise UsageError(f"{folder} is {what}.", advice="Give one that ran again.")


class StopRule:
    """Asked after every row of a recording whether it may be the last one: whether all that is wanted is known.

    ``folder`` is the attempt's, whose logs are read while they are written; ``start_s`` is row 0, since the epoch.
    """

    def __init__(self, experiment: ExperimentSpec, wanted: StopWhenKnown, folder: Path, *, start_s: float) -> None:
        replicas, metrics = experiment.replicas, [metric.value for metric in wanted.metrics]
        self._objective = None
        if KnownMetric.OBJECTIVE in metrics:
            metrics.remove(KnownMetric.OBJECTIVE)
            self._objective = ObjectiveLooks(experiment, folder, start_s)
        self._wanted, self._metrics = wanted, metrics
        self._start_ns = round(start_s * _NS)
        self._step_s = experiment.timing.step_s
        self._tails = [
            LatencyTail(layout.replica_folder(folder, index) / layout.RAW_LATENCIES) for index in range(replicas)
        ]
        self._requests = Requests(wanted.min_s / FIRST_SLICES, counters=replicas)
        self._looks = Looks(wanted.min_s, metrics, wanted.relative_half_width)
        self._figures_known, self._decided = not metrics, self._objective is None

    @property
    def known(self) -> bool:
        """Whether all was known at the last looks."""
        return self._figures_known and self._decided

    def due(self, rows: int) -> bool:
        """Whether it is time for another look after this many rows."""
        until_s = self._until_s(rows)
        return (bool(self._metrics) and self._looks.due(until_s)) or (
            self._objective is not None and self._objective.due(until_s)
        )

    def __call__(self, rows: int) -> bool:
        """Whether everything is known after this many rows. Raises StorageError when a log cannot be read."""
        until_s = self._until_s(rows)
        if self._metrics and self._looks.due(until_s):
            until_ns = self._start_ns + round(until_s * _NS)
            for tail in self._tails:
                records = tail.ended_before(until_ns)
                ends_s = (records["start_ns"] + records["latency_ns"] - self._start_ns) / _NS
                inside = ends_s >= 0
                self._requests.add(ends_s[inside], records["latency_ns"][inside] / _NS, until_s=until_s)
            self._figures_known = self._looks.known(self._requests, until_s)
        if self._objective is not None and self._objective.due(until_s):
            self._decided = self._objective.decided(until_s)
        return self.known

    def _until_s(self, rows: int) -> float:
        """Up to where every request of these rows is on the disk, seconds since the first of them."""
        return (rows - 1) * self._step_s - LOG_LAG_S

    def record(self, *, rows: int, planned_rows: int) -> dict[str, Any]:
        """Why the recording was as long as it was, for the manifest."""
        recorded_s, planned_s = (max(count - 1, 0) * self._step_s for count in (rows, planned_rows))
        return {
            "known": self.known,
            "why": self._why(recorded_s, planned_s),
            "planned_rows": planned_rows,
            "planned_s": planned_s,
            "recorded_s": recorded_s,
            **({} if self._objective is None else {"objective": self._objective.outcome.value}),
            "figures": {
                name: {
                    "figure": None if math.isnan(seen.mean) else seen.mean,
                    **{key: getattr(seen, key) for key in ("low", "high", "note")},
                }
                for name, seen in self._looks.estimates.items()
            },
        }

    def _why(self, recorded_s: float, planned_s: float) -> str:
        target = f"{100 * self._wanted.relative_half_width:g}%"
        named = ", ".join(self._metrics)
        goals = [f"{named} were known within {target}"] if named else []
        if self._objective is not None:
            goals.append(f"the objective was decided ({self._objective.outcome})")
        if self.known:
            return f"Recorded {recorded_s:g} of at most {planned_s:g} s: by then {' and '.join(goals)}."
        if not self._decided:
            return f"Recorded to the end ({planned_s:g} s): the objective was not decided before."
        if not self._looks.estimates:
            return f"Recorded to the end ({planned_s:g} s): how well {named} were known could not be judged before."
        wide = ", ".join(
            f"{name} ({estimate.note or f'{100 * relative_half_width(estimate):.1f}%'})"
            for name, estimate in self._looks.estimates.items()
            if relative_half_width(estimate) > self._wanted.relative_half_width
        )
        return f"Recorded to the end ({planned_s:g} s): {wide or named} stayed wider than {target}."
