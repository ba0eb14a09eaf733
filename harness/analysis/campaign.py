"""From a campaign's folder to cells: every workload, sharing mode and replica count over its repeats."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from harness.analysis.contrasts.until_known import RepeatProgress, judge, share_of_error
from harness.analysis.metrics.attribution import GpuUse, gpu_use
from harness.analysis.metrics.catalogue import METRICS, OWN, metrics_of
from harness.analysis.metrics.run import Run
from harness.analysis.read import ExperimentData, NotMeasuredError, read_campaign, read_experiment, read_journal
from harness.analysis.statistics import Estimate, ratio, t_interval
from harness.analysis.stress import StressSeries, run_of, series_of
from harness.errors import ResultsPathError
from harness.metrics.quality import SteadyState, steady_state
from harness.metrics.rows import POOLED
from harness.results.files import sha256_of, storage_errors
from harness.results.layout import CAMPAIGN_YAML, LATENCIES, REQUESTS, experiment_folders
from harness.results.manifest import Status
from harness.results.verification import verify_experiment
from harness.sharing.modes import mode_of
from harness.spec import CampaignSpec, CellSpec, SweptLoad
from harness.spec.sharing import ON_CPU, mode_in_words

_PRESSURES = ("cpu_psi", "memory_psi", "io_psi")
PACED = "requests come at a rate that was set, so that throughput says what was asked"
REPEATS_FOLLOWED = (
    "The number of repeats followed from the results (`repeats: until_known`). Intervals and p-values allow for every look "
    "that was taken, which makes them wider than those of as many repeats that were planned; scaling laws do not allow for it."
)
"""For whoever reads figures of such a campaign."""


class LoadState(StrEnum):
    """How loaded, from pressure or utilisation: below 10%, below 70%, to 90%, above."""

    EMPTY = "empty"
    MODEST = "modest"
    HIGH = "high"
    CRITICAL = "critical"


def load_state(percent: float) -> LoadState:
    """The band of a pressure or utilisation, in percent."""
    if percent < 10:
        return LoadState.EMPTY
    if percent < 70:
        return LoadState.MODEST
    return LoadState.HIGH if percent <= 90 else LoadState.CRITICAL


class ConfigurationKey(NamedTuple):
    """What the repeats of one cell have in common; condition, limits of MPS and time slice are empty where the campaign names none."""

    workload: str
    sharing: str
    replicas: int
    condition: str = ""
    mps_limits: str = ""
    time_slice: str = ""

    @property
    def mode(self) -> str:
        """The sharing mode with what MPS allows each replica or how long a turn is, e.g. ``mps (1/N)``."""
        return mode_in_words(self.sharing, self.mps_limits, self.time_slice)

    @property
    def curve(self) -> tuple[str, str, str]:
        """What a curve over replicas has in common: workload, sharing mode with limits, condition."""
        return self.workload, self.mode, self.condition


@dataclass(slots=True)
class MeasuredRun:
    """One finished experiment with its metrics; none when it is damaged.

    ``damage``: what verification found. ``figures``: value by metric, in its unit; ``absent``: metric to the reason for its
    absence. ``replica_throughput``: requests per second of each replica, in order. ``within``: throughput with a batch-means
    interval inside this one run. ``steady``: whether it had settled. ``loads``: by what is loaded (``node pressure``, ``node CPU``,
    ``GPU``). ``notes``: how a value came about, where that is not the usual way. ``gpu_use``: what each replica took of its GPU, or
    ``gpu_use_absent``, why that is not known. Empty or None: not measured.
    """

    data: ExperimentData
    damage: list[str] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    replica_throughput: list[float] = field(default_factory=list)
    within: Estimate | None = None
    steady: SteadyState | None = None
    loads: dict[str, LoadState] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    gpu_use: GpuUse | None = None
    gpu_use_absent: str = ""

    @property
    def name(self) -> str:
        """The experiment's id."""
        return self.data.manifest.experiment_id

    @property
    def key(self) -> ConfigurationKey:
        """The cell it belongs to."""
        return key_of(self.data.manifest.experiment.cell)

    @property
    def status(self) -> Status:
        """The manifest's verdict."""
        return self.data.manifest.verdict.status

    @property
    def used(self) -> bool:
        """Whether it enters the averages: neither INVALID nor damaged."""
        return self.status is not Status.INVALID and not self.damage


def measure(data: ExperimentData) -> MeasuredRun:
    """All metrics of one run. Raises StorageError or ResultsPathError when a file cannot be read."""
    run, measured = Run(data), MeasuredRun(data)
    figures = measured.figures
    for metric in metrics_of(data.manifest.experiment):
        if metric.compute is None:
            continue
        try:
            figures[metric.name] = metric.compute(run)
        except ValueError as error:  # NotMeasuredError, or a statistic that the sample cannot support
            measured.absent[metric.name] = str(error)
    if "throughput" in figures and run.rate[1]:
        measured.notes.append(run.rate[1])
    if "energy" in figures:
        measured.notes.append(f"Energy from {run.energy_j[1]}.")
    # What is not there has been said: in the notes, or as the reason why metrics made of it are absent.
    with suppress(NotMeasuredError):
        measured.replica_throughput = run.replica_rates
    try:
        measured.gpu_use = gpu_use(run)
    except NotMeasuredError as reason:
        measured.gpu_use_absent = str(reason)
    with suppress(NotMeasuredError):
        measured.within = run.within if "throughput" in figures else None
    with suppress(NotMeasuredError, KeyError):
        measured.steady = steady_state(run.data.table("throughput")[POOLED].to_numpy())
    percents = {"node pressure": max((figures[name] for name in _PRESSURES if name in figures), default=None)}
    if "cpu_usage" in figures:
        percents["node CPU"] = 100 * figures["cpu_usage"] / data.manifest.provenance.host.cpus
    percents["GPU"] = figures.get("gpu_utilization")
    measured.loads = {what: load_state(percent) for what, percent in percents.items() if percent is not None}
    return measured


@dataclass(slots=True)
class Cell:
    """One workload, sharing mode, replica count and condition, over its repeats; ``experiments``: finished ones, used or not.

    ``planned``: repeats that the campaign asks for; None when the plan is not known, or follows from the results. ``shares``: what an
    interval may take of the usual error, by campaign whose repeats ended when something was known. ``estimates``: measure to its mean
    over the repeats used, and ``speed_up`` and ``efficiency``; ``absent``: measure to the reason why there is none. ``on_cpu``: no
    replica was on a GPU; where none of its runs can be used, none of the campaign's.
    """

    key: ConfigurationKey
    experiments: list[MeasuredRun]
    planned: int | None
    on_cpu: bool = False
    shares: dict[str, float] = field(default_factory=dict)
    estimates: dict[str, Estimate] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)

    @property
    def workload(self) -> str:
        """Its workload's name."""
        return self.key.workload

    @property
    def sharing(self) -> str:
        """Its sharing mode."""
        return self.key.sharing

    @property
    def replicas(self) -> int:
        """Its number of replicas."""
        return self.key.replicas

    @property
    def condition(self) -> str:
        """Its condition; empty where the campaign names none."""
        return self.key.condition

    @property
    def mode(self) -> str:
        """Its sharing mode with what MPS allows each replica; ``CPU`` where no replica was on a GPU, so that none was shared."""
        return ON_CPU if self.on_cpu and mode_of(self.sharing).takes_turns else self.key.mode

    @property
    def load(self) -> SweptLoad | None:
        """What it was asked, where the campaign sweeps a load."""
        return next((run.data.manifest.experiment.load for run in self.experiments), None)

    @property
    def used(self) -> list[MeasuredRun]:
        """The repeats that enter the averages."""
        return [experiment for experiment in self.experiments if experiment.used]

    @property
    def own(self) -> list[str]:
        """Measures that its workload alone has: those that it publishes itself."""
        return [name for name in OWN if name in self.estimates or name in self.absent]

    @property
    def paced(self) -> bool:
        """Whether requests came at a rate that was set: then throughput is that rate, and no speed."""
        return any(experiment.data.manifest.experiment.workload.open_loop for experiment in self.experiments)

    @property
    def badge(self) -> str:
        """One word: VALID, DEGRADED, INVALID (nothing can be used) or MISSING (nothing is there)."""
        if not self.experiments:
            return "MISSING"
        if not self.used:
            return Status.INVALID.value
        whole = all(experiment.status is Status.VALID for experiment in self.used)
        return Status.VALID.value if whole else Status.DEGRADED.value

    def figures(self, name: str) -> list[float]:
        """One measure of every repeat used that has it."""
        figures = (experiment.figures.get(name) for experiment in self.used)
        return [figure for figure in figures if figure is not None]


def shared(*cells: Cell) -> float:
    """Share of the usual error that one interval of these cells together may take; 1 where all repeats were planned.

    Looks at one campaign are in step, those at several are not: each look of one may meet each of the other.
    """
    by_campaign: dict[str, float] = {}
    for cell in cells:
        for name, share in cell.shares.items():
            by_campaign[name] = min(share, by_campaign.get(name, 1.0))
    return math.prod(by_campaign.values())


@dataclass(frozen=True, slots=True)
class Unfinished:
    """An experiment that the campaign asks for and that is not there."""

    name: str
    reason: str


@dataclass(slots=True)
class CampaignAnalysis:
    """Everything the report says; experiments by start of recording, cells by workload, sharing mode and replicas.

    ``spec``: the campaign as it began; None when ``campaign.json`` is not there. ``created_at`` (UTC) and ``source`` (the campaign file
    it began with) are empty when not known. ``file_changed``: the kept ``campaign.yaml`` is no longer that file.
    """

    folder: Path
    name: str
    spec: CampaignSpec | None
    created_at: str
    source: str
    experiments: list[MeasuredRun]
    cells: list[Cell]
    unfinished: list[Unfinished] = field(default_factory=list)
    stress_series: list[StressSeries] = field(default_factory=list)
    progress: RepeatProgress | None = None
    file_changed: bool = False

    @property
    def planned(self) -> int:
        """Experiments that the campaign asks for."""
        return len(self.experiments) + len(self.unfinished)

    def workloads(self) -> list[str]:
        """Names, in the campaign's order."""
        return list(dict.fromkeys(cell.workload for cell in self.cells))

    def count(self, status: Status) -> int:
        """Finished, whole experiments with this verdict."""
        return sum(experiment.status is status and not experiment.damage for experiment in self.experiments)


def analyse(folder: Path) -> CampaignAnalysis:
    """Read, check and average a campaign, finished or not, in ``results/<campaign>``.

    Raises ResultsPathError where there is none, StorageError where a file cannot be read.
    """
    if not folder.is_dir():
        raise ResultsPathError(f"{folder} is not a folder.", advice="Give the folder of a campaign below results/.")
    identity = read_campaign(folder)
    experiments: list[MeasuredRun] = []
    unreadable: dict[str, str] = {}
    for path in experiment_folders(folder):
        try:
            experiments.append(analyse_experiment(path))
        except ResultsPathError as error:  # of a damaged manifest: the others go on
            unreadable[path.name] = error.message
    if not identity and not experiments:
        for reason in unreadable.values():
            raise ResultsPathError(reason, advice="Restore it from a backup, or run the experiment again.")
        raise ResultsPathError(f"{folder} holds no campaign.", advice="Give the folder of a campaign below results/.")
    experiments.sort(key=lambda experiment: experiment.data.manifest.start_s)
    spec: CampaignSpec | None = identity.get("spec")
    sha256, campaign_file = str(identity.get("source_sha256", "")), folder / CAMPAIGN_YAML
    with storage_errors(campaign_file, "read"):
        changed = bool(sha256) and campaign_file.is_file() and sha256_of(campaign_file) != sha256
    analysis = CampaignAnalysis(
        folder=folder,
        name=folder.resolve().name,
        spec=spec,
        created_at=str(identity.get("created_at", "")),
        source=str(identity.get("source", "")),
        experiments=experiments,
        cells=_cells(folder, experiments, spec),
        file_changed=changed,
    )
    _relate_to_one_replica(analysis.cells)
    if spec is not None and spec.stress is not None:
        points = {run.name: run_of(run.data.keeping()) for run in experiments if not run.damage}
        analysis.stress_series = series_of(spec, points)
    if spec is not None and spec.until_known is not None:
        figures = {run.name: run.figures if run.used else {} for run in experiments}
        analysis.progress = judge(spec.until_known, spec.cells(), figures)
    analysis.unfinished = _unfinished(analysis, unreadable)
    return analysis


def pooled_cell(cells: Sequence[Cell]) -> Cell:
    """The same cell of several campaigns as one, over all their repeats; at least one is needed."""
    if len(cells) == 1:
        return cells[0]
    runs = [experiment for cell in cells for experiment in cell.experiments]
    pooled = Cell(cells[0].key, runs, None, all(cell.on_cpu for cell in cells))
    pooled.shares = {name: share for cell in cells for name, share in cell.shares.items()}
    _average(pooled)
    return pooled


def analyse_experiment(folder: Path) -> MeasuredRun:
    """Verify one finished experiment and measure it. Raises ResultsPathError and StorageError."""
    data = read_experiment(folder)
    damage = []
    for problem in verify_experiment(folder).problems:
        path = problem.path
        # Raw latencies are large and may be left behind when a result set is passed on; their figures are then absent.
        if not (path.name == REQUESTS or path.parent.name == LATENCIES) or path.exists():
            damage.append(problem.message if path == folder else f"{path.name}: {problem.message}")
    # A damaged file may not even parse; nothing in that folder is worth a figure.
    return MeasuredRun(data, damage) if damage else measure(data)


def _cells(folder: Path, experiments: Sequence[MeasuredRun], spec: CampaignSpec | None) -> list[Cell]:
    """The cells of the matrix, of a stress campaign those that it came to; then those that no plan asks for."""
    members: dict[ConfigurationKey, list[MeasuredRun]] = {}
    if spec is not None:
        planned = list(spec.cells())
        if not spec.stress:
            names = list(dict.fromkeys(cell.workload.name for cell in planned))
            planned.sort(
                key=lambda cell: (names.index(cell.workload.name), spec.sharing.index(cell.sharing), cell.replicas)
            )
        members = {key_of(cell): [] for cell in planned}
    for run in sorted(experiments, key=lambda run: run.key):
        members.setdefault(run.key, []).append(run)
    cells, all_on_cpu = [], _on_cpu(experiments)
    for key, runs in members.items():
        if spec and spec.stress and not runs:
            continue
        runs.sort(key=lambda run: run.data.manifest.start_s)
        cell = Cell(key, runs, spec.most_repeats if spec and not spec.until_known else None)
        cell.on_cpu = _on_cpu(runs) if cell.used else all_on_cpu
        if spec and spec.until_known:
            looks = max((run.data.manifest.experiment.repeat for run in runs), default=1)
            cell.shares[str(folder.resolve())] = share_of_error(spec.until_known, looks)
        _average(cell)
        cells.append(cell)
    return cells


def _on_cpu(runs: Sequence[MeasuredRun]) -> bool:
    """Whether no replica of the runs that can be used, or else of any, was on a GPU; of no run nothing is known."""
    chosen = [run for run in runs if run.used] or runs
    return bool(chosen) and all(run.data.manifest.on_cpu for run in chosen)


def key_of(cell: CellSpec) -> ConfigurationKey:
    """The key of a planned cell."""
    return ConfigurationKey(
        cell.workload.name, cell.sharing.value, cell.replicas, cell.condition_name, cell.mps_limits, cell.time_slice
    )


def _average(cell: Cell) -> None:
    known = {name for run in cell.experiments for name in (*run.figures, *run.absent)}
    for name in (*METRICS, *(name for name in OWN if name in known)):
        if figures := cell.figures(name):
            cell.estimates[name] = t_interval(figures, shared(cell), least=0.0)
        else:
            reasons = [run.absent.get(name) for run in cell.used]
            cell.absent[name] = next(filter(None, reasons), "no run can be used")


def _relate_to_one_replica(cells: Sequence[Cell]) -> None:
    """Speed-up and efficiency of each cell against the cell of one replica."""
    singles = {cell.key.curve: cell for cell in cells if cell.replicas == 1}
    for cell in cells:
        single = singles.get(cell.key.curve, cell)
        own, alone = cell.figures("throughput"), single.figures("throughput") if single.replicas == 1 else []
        why = ""
        if cell.paced:
            why = PACED
        elif not own:
            why = cell.absent.get("throughput", "no run of it can be used")
        elif not alone:
            why = "no usable run of one replica to compare with"
        else:
            try:
                cell.estimates["speed_up"] = (
                    Estimate(1.0, None, None, len(own), None, "one by definition")
                    if cell is single
                    else ratio(own, alone, shared(cell, single))
                )
                cell.estimates["efficiency"] = cell.estimates["speed_up"].scaled(1 / cell.replicas)
            except ValueError as error:
                why = str(error)
        cell.absent |= {"speed_up": why, "efficiency": why} if why else {}


def _unfinished(analysis: CampaignAnalysis, unreadable: Mapping[str, str]) -> list[Unfinished]:
    """What the campaign asks for and is not there, each with how far it came."""
    spec, progress = analysis.spec, analysis.progress
    stories, ended = read_journal(analysis.folder) if spec else ({}, False)
    if spec is None:
        points: list[tuple[CellSpec, int]] = []
    elif spec.stress is not None:
        points = [series.following for series in analysis.stress_series if series.following is not None]
    elif progress is not None:
        points = [] if ended else [(cell, progress.blocks + 1) for cell in progress.following]
    else:
        points = [(cell, repeat) for cell in spec.cells() for repeat in range(1, spec.most_repeats + 1)]
    stories |= unreadable
    done = {run.name for run in analysis.experiments}
    names = dict.fromkeys([*unreadable, *(cell.experiment_id(repeat) for cell, repeat in points)])
    return [Unfinished(name, stories.get(name, "not begun yet")) for name in names if name not in done]
