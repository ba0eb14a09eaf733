"""From a campaign's folder to cells: every workload, sharing mode and replica count over its repeats."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from harness.analysis.contrasts.until_known import RepeatProgress, judge, share_of_look
from harness.analysis.metrics.catalogue import METRICS, OWN
from harness.analysis.metrics.measured import Measured, measure
from harness.analysis.read import ExperimentData, has_ended, last_steps, read_campaign, read_experiment
from harness.analysis.statistics import Estimate, ratio, t_interval
from harness.analysis.stress import StressSeries, run_of, series_of
from harness.errors import ResultsPathError
from harness.results.files import sha256_of, storage_errors
from harness.results.layout import CAMPAIGN_YAML, LATENCIES, REQUESTS, experiment_folders
from harness.results.manifest import Manifest, Status
from harness.results.verification import verify_experiment
from harness.sharing.modes import mode_of
from harness.spec import CampaignSpec, CellSpec
from harness.spec.sharing import mode_in_words

PACED = "requests come at a rate that was set, so that throughput says what was asked"
REPEATS_FOLLOWED = (
    "The number of repeats followed from the results (`repeats: until_known`). Intervals and p-values allow for every look "
    "that was taken, which makes them wider than those of as many repeats that were planned; scaling laws do not allow for it."
)
"""For whoever reads figures of such a campaign."""


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


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """One finished experiment.

    Attributes:
        data: its files.
        measured: its figures; empty when it is damaged.
        damage: what verification found; empty when it is whole.
    """

    data: ExperimentData
    measured: Measured
    damage: list[str]

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


@dataclass(slots=True)
class Cell:
    """One workload, sharing mode, replica count and condition, over its repeats.

    Attributes:
        key: which.
        experiments: every finished repeat, used or not.
        planned: repeats that the campaign asks for; None when the plan is not known, or follows from the results.
        shares: what an interval may take of the usual error, by campaign whose repeats ended when something was known.
        estimates: measure to its mean over the repeats used.
        absent: measure to the reason why there is none.
        speed_up: throughput over that of one replica; None with a reason in ``absent``.
        efficiency: speed-up over replicas; None likewise.
    """

    key: ConfigurationKey
    experiments: list[MeasuredRun]
    planned: int | None
    shares: dict[str, float] = field(default_factory=dict)
    estimates: dict[str, Estimate] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    speed_up: Estimate | None = None
    efficiency: Estimate | None = None

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
        """Its sharing mode with what MPS allows each replica."""
        return self.key.mode

    @property
    def mode_shown(self) -> str:
        """The same for tables; ``CPU`` where no replica was on a GPU, so that none was shared."""
        on_cpu = [_on_cpu(experiment.data.manifest) for experiment in self.used]
        return "CPU" if on_cpu and all(on_cpu) and mode_of(self.sharing).takes_turns else self.mode

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
        figures = (experiment.measured.figures.get(name) for experiment in self.used)
        return [figure for figure in figures if figure is not None]


def _on_cpu(manifest: Manifest) -> bool:
    devices = {str(replica["device"]) for replica in manifest.replicas if replica.get("device")}
    return devices == {"cpu"} or not (devices or manifest.provenance.gpus)


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
    """Everything the report says.

    Attributes:
        folder: of the campaign.
        name: of the folder.
        spec: the campaign as it began; None when ``campaign.json`` is not there.
        created_at: UTC; empty when not known.
        source: the campaign file it began with; empty when not known.
        file_changed: the kept ``campaign.yaml`` is no longer the file that the campaign began with.
        experiments: the finished ones, by start of recording.
        cells: by workload, sharing mode and replicas.
        unfinished: what is missing.
        stress_series: of a stress campaign, how far each load was raised.
        progress: of repeats until something is known, how far they came.
    """

    folder: Path
    name: str
    spec: CampaignSpec | None
    created_at: str
    source: str
    experiments: list[MeasuredRun]
    cells: list[Cell]
    unfinished: list[Unfinished]
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
    """Read, check and average a campaign, finished or not.

    Args:
        folder: ``results/<campaign>``.

    Raises:
        ResultsPathError: no campaign there.
        StorageError: a file cannot be read.
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
    cells = _cells(folder, experiments, spec)
    _relate_to_one_replica(cells)
    stressed = spec is not None and spec.stress is not None
    runs = {run.name: run_of(run.data.keeping()) for run in experiments if not run.damage} if stressed else {}
    stress_series = series_of(spec, runs)
    progress = None
    if spec is not None and spec.until_known is not None:
        figures = {run.name: run.measured.figures if run.used else {} for run in experiments}
        progress = judge(spec.until_known, spec.cells(), figures)
    return CampaignAnalysis(
        folder=folder,
        name=folder.resolve().name,
        spec=spec,
        created_at=str(identity.get("created_at", "")),
        source=str(identity.get("source", "")),
        experiments=experiments,
        cells=cells,
        unfinished=[
            *(Unfinished(name, reason) for name, reason in unreadable.items()),
            *_unfinished(folder, spec, {run.name for run in experiments} | unreadable.keys(), stress_series, progress),
        ],
        stress_series=stress_series,
        progress=progress,
        file_changed=_file_changed(folder, str(identity.get("source_sha256", ""))),
    )


def _file_changed(folder: Path, sha256: str) -> bool:
    """Whether the kept campaign file is there and has another hash than this; one that is not known says nothing."""
    path = folder / CAMPAIGN_YAML
    with storage_errors(path, "read"):
        return bool(sha256) and path.is_file() and sha256_of(path) != sha256


def pooled_cell(cells: Sequence[Cell]) -> Cell:
    """The same cell of several campaigns as one, over all their repeats; at least one is needed."""
    if len(cells) == 1:
        return cells[0]
    pooled = Cell(cells[0].key, [experiment for cell in cells for experiment in cell.experiments], planned=None)
    pooled.shares = {name: share for cell in cells for name, share in cell.shares.items()}
    _average(pooled)
    return pooled


def analyse_experiment(folder: Path) -> MeasuredRun:
    """Verify one finished experiment and measure it. Raises ResultsPathError and StorageError."""
    data = read_experiment(folder)
    damage = [
        problem.message if problem.path == folder else f"{problem.path.name}: {problem.message}"
        for problem in verify_experiment(folder).problems
        if not _was_left_out(problem.path)
    ]
    # A damaged file may not even parse; nothing in that folder is worth a figure.
    return MeasuredRun(data, Measured() if damage else measure(data), damage)


def _was_left_out(path: Path) -> bool:
    """Raw latencies are large and may be left behind when a result set is passed on; their figures are then absent."""
    return (path.name == REQUESTS or path.parent.name == LATENCIES) and not path.exists()


def _cells(folder: Path, experiments: Sequence[MeasuredRun], spec: CampaignSpec | None) -> list[Cell]:
    keys: list[ConfigurationKey] = []
    if spec is not None:
        keys = _planned_keys(spec, {experiment.key for experiment in experiments})
    keys += sorted({experiment.key for experiment in experiments} - set(keys))
    cells = []
    for key in keys:
        members = [experiment for experiment in experiments if experiment.key == key]
        cell = Cell(key, members, spec.most_repeats if spec and not spec.until_known else None)
        if spec and spec.until_known:
            looks = max((run.data.manifest.experiment.repeat for run in members), default=1)
            cell.shares[str(folder.resolve())] = share_of_look(spec.until_known.max, looks)
        _average(cell)
        cells.append(cell)
    return cells


def _planned_keys(spec: CampaignSpec, measured: set[ConfigurationKey]) -> list[ConfigurationKey]:
    """The cells of the matrix; of a stress campaign those that it came to."""
    if spec.stress is not None:
        return [key for cell in spec.cells() if (key := key_of(cell)) in measured]
    planned = sorted(
        spec.cells(), key=lambda cell: (spec.workloads.index(cell[0]), spec.sharing.index(cell[1]), cell[2])
    )
    return [key_of(cell) for cell in planned]


def key_of(cell: CellSpec) -> ConfigurationKey:
    """The key of a planned cell."""
    return ConfigurationKey(
        cell.workload.name, cell.sharing.value, cell.replicas, cell.condition_name, cell.mps_limits, cell.time_slice
    )


def _average(cell: Cell) -> None:
    measured = [experiment.measured for experiment in cell.experiments]
    own = [name for name in OWN if any(name in run.figures or name in run.absent for run in measured)]
    for name in (*METRICS, *own):
        figures = cell.figures(name)
        if figures:
            cell.estimates[name] = t_interval(figures, shared(cell), least=0.0)
            continue
        reasons = [experiment.measured.absent.get(name) for experiment in cell.used]
        cell.absent[name] = next((reason for reason in reasons if reason), "no run can be used")


def _relate_to_one_replica(cells: Sequence[Cell]) -> None:
    """Speed-up and efficiency of each cell against the cell of one replica."""
    singles = {cell.key.curve: cell for cell in cells if cell.replicas == 1}
    for cell in cells:
        single = singles.get(cell.key.curve)
        own = cell.figures("throughput")
        alone = single.figures("throughput") if single else []
        try:
            if cell.paced:
                raise ValueError(PACED)  # noqa: TRY301
            if not own:
                raise ValueError(cell.absent.get("throughput", "no run of it can be used"))  # noqa: TRY301
            if not alone:
                raise ValueError("no usable run of one replica to compare with")  # noqa: TRY301
            speed_up = (
                Estimate(1.0, None, None, len(own), None, "one by definition")
                if cell is single
                else ratio(own, alone, shared(cell, single or cell))
            )
        except ValueError as error:
            cell.absent |= {"speed_up": str(error), "efficiency": str(error)}
            continue
        cell.speed_up = speed_up
        cell.efficiency = speed_up.scaled(1 / cell.replicas)


def _unfinished(
    folder: Path,
    spec: CampaignSpec | None,
    done: set[str],
    stress_series: Sequence[StressSeries],
    progress: RepeatProgress | None,
) -> list[Unfinished]:
    if spec is None:
        return []
    stories = last_steps(folder)
    if spec.stress is not None:
        points = [series.following for series in stress_series if series.following is not None]
        names = [cell.experiment_id(repeat) for cell, repeat in points]
    elif progress is not None:
        following = [] if has_ended(folder) else progress.following
        names = [cell.experiment_id(progress.blocks + 1) for cell in following]
    else:
        names = [cell.experiment_id(repeat) for cell in spec.cells() for repeat in range(1, spec.most_repeats + 1)]
    return [Unfinished(name, stories.get(name, "not begun yet")) for name in names if name not in done]
