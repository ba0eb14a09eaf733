"""What neighbours and interposed layers cost: the contrast of every condition with the campaign's first one.

One repeat runs all conditions of a cell one after another, so that a pair shares whatever the machine was like at that time.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import pandas as pd

from harness.analysis.campaign import CampaignAnalysis, Cell, ConfigurationKey, MeasuredRun, measure, shared
from harness.analysis.contrasts.comparison import CellKey
from harness.analysis.contrasts.contrast import Contrast, Contrasts
from harness.analysis.format import mode_name, number, ratio_interval, replicas_in_words, whole_interval
from harness.analysis.metrics.catalogue import METRICS
from harness.analysis.pages.curves import Row, dots
from harness.analysis.pages.plot import Picture
from harness.analysis.read import ExperimentData, NotMeasuredError
from harness.analysis.statistics import Estimate, Outcome, keeps, student, t_interval
from harness.errors import ReasonCode
from harness.metrics.rows import neighbour_of
from harness.results.layout import metric_files, neighbour_folder
from harness.spec.sharing import ON_CPU

JUDGED = ("throughput", "latency_p50_exact", "latency_p95_exact", "latency_p99_exact")
OF_NEIGHBOURS = ("throughput", "latency_p50_exact", "latency_p95_exact", "latency_p99_exact", "fairness", "jain")
MAX_REPEATS = 100
"""Beyond these no number of repeats is advised: the overhead is the limit."""


@dataclass(frozen=True, slots=True)
class Overhead:
    """One measure of one cell under one condition, against the baseline. ``percent`` is how much worse the condition is; ``kept`` the ratio by repeat."""

    key: ConfigurationKey
    contrast: Contrast
    percent: Estimate
    outcome: Outcome
    why: str
    kept: dict[int, float]


@dataclass(frozen=True, slots=True)
class Kept:
    """What one mode leaves of a service beside its worst neighbour. ``deaths``: in how many of how many runs, by condition."""

    mode: str
    worst: Overhead | None
    deaths: dict[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def rank(self) -> tuple[float, float]:
        """The lower the better: a service that lives before one that dies, then the one that keeps more."""
        dies = max((died / runs for died, runs in self.deaths.values()), default=0.0)
        return dies, self.worst.percent.mean if self.worst else 100.0

    @property
    def in_words(self) -> str:
        """``MPS keeps 62.2% of the throughput (58.5 to 66.2%, beside-hog) and dies under beside-crash in 2 of 2 runs``."""
        deaths = [f"under {name} in {died} of {runs} runs" for name, (died, runs) in self.deaths.items()]
        died = f"dies {', '.join(deaths)}" if deaths else ""
        kept = "" if died else "has no value"
        if self.worst is not None:
            interval = ratio_interval(self.worst.contrast.ratio.scaled(100))
            interval += "%" if interval[:1].isdigit() else ""
            where = ", ".join(filter(None, [interval, self.worst.key.condition]))
            kept = f"keeps {number(100 - self.worst.percent.mean)}% of the throughput ({where})"
        name = "it" if self.mode == ON_CPU else mode_name(self.mode)
        return f"{name} {' and '.join(filter(None, [kept, died]))}"


@dataclass(frozen=True, slots=True)
class NeighbourCell:
    """A workload beside the measured one, over the repeats of a cell."""

    key: ConfigurationKey
    workload: str
    replicas: int
    estimates: dict[str, Estimate]
    absent: dict[str, str]


@dataclass(frozen=True, slots=True)
class Interference:
    """What the conditions of a campaign did to each other's figures.

    Attributes:
        baseline: name of the condition that the others are held against; ``limit_percent``: overhead that they may have.
        overheads: by cell (with its condition) and measure; the reason where no repeat can be paired.
        modes: by cell, what its sharing mode is called.
        died: by cell, in how many of its runs the measured replicas died with their neighbour, and of how many runs.
        conditions: what each is, by name, in words; empty words where nothing is unlike running alone.
    """

    baseline: str
    limit_percent: float
    overheads: dict[ConfigurationKey, dict[str, Overhead | str]] = field(default_factory=dict)
    neighbours: list[NeighbourCell] = field(default_factory=list)
    modes: dict[ConfigurationKey, str] = field(default_factory=dict)
    died: dict[ConfigurationKey, tuple[int, int]] = field(default_factory=dict)
    conditions: dict[str, str] = field(default_factory=dict)

    def explained(self, sentences: Iterable[str]) -> str:
        """What the conditions are that these name, in their order; empty where their names say it, or none is named."""
        text = " ".join(sentences)
        named = {
            name: words for name, words in self.conditions.items() if re.search(rf"(?<![\w-]){name}(?![\w-])", text)
        }
        return "; ".join(f"{name}: {words}" for name, words in named.items() if words)

    def sentences(self, *, gravest: bool = False) -> list[str]:
        """The answer, one sentence per cell and condition, of every measure or of the one with the gravest outcome."""
        sentences = []
        for key, by_measure in self.overheads.items():
            cell = f"{key.workload}, {replicas_in_words(key.replicas)}, {self.modes[key]}"
            names = [min(by_measure, key=lambda name: _gravity(by_measure[name]))] if gravest else by_measure
            parts = "; ".join(f"{METRICS[name].title}: {in_words(by_measure[name])}" for name in names)
            limit = f"limit {self.limit_percent:g}%"
            sentences.append(f"{key.condition} against {self.baseline} ({cell}), {limit}: {parts}.")
        return sentences

    def services(self) -> list[CellKey]:
        """What was measured under conditions."""
        return list(dict.fromkeys(CellKey(key.workload, key.replicas) for key in self.overheads))

    def kept(self, service: CellKey, conditions: Collection[str] | None = None) -> list[Kept]:
        """What each mode leaves of a service under these conditions (None: all), the best first."""
        by_mode: dict[str, list[ConfigurationKey]] = {}
        for key in self.overheads:
            if (key.workload, key.replicas) == service:
                of_mode = by_mode.setdefault(self.modes[key], [])
                if conditions is None or key.condition in conditions:
                    of_mode.append(key)
        modes = []
        for mode, keys in by_mode.items():
            losses = [loss for key in keys if isinstance(loss := self.overheads[key]["throughput"], Overhead)]
            worst = max(losses, key=lambda loss: loss.percent.mean, default=None)
            modes.append(Kept(mode, worst, {key.condition: self.died[key] for key in keys if key in self.died}))
        return sorted(modes, key=lambda mode: mode.rank)

    def worst(self) -> list[str]:
        """What each mode leaves beside the worst neighbour, and what dies of it: a sentence per service."""
        return [
            f"{service.workload}, {replicas_in_words(service.replicas)}, against {self.baseline}, with its worst neighbour: "
            f"{'; '.join(kept.in_words for kept in self.kept(service))}."
            for service in self.services()
        ]


def neighbour_plot(interference: Interference, order: Sequence[str]) -> Picture | None:
    """What each mode leaves of the throughput beside every neighbour, of the first service; None where nothing was measured."""
    service, *_ = [*interference.services(), None]
    rows = Row.of(
        (
            key.condition,
            mode_name(interference.modes[key]),
            loss.contrast.ratio.scaled(100),
            [100 * it for it in loss.kept.values()],
        )
        for key, by_measure in interference.overheads.items()
        if (key.workload, key.replicas) == service and isinstance(loss := by_measure["throughput"], Overhead)
    )
    if service is None or not rows:
        return None
    panel = "% of its throughput alone", rows
    return dots(
        "comparison-neighbours",
        f"{service.workload}: throughput beside each neighbour",
        [panel],
        order=order,
        rules=[100],
    )


def interference(analysis: CampaignAnalysis) -> Interference | None:
    """Hold every condition of a campaign against its first; None where it names none.

    Raises StorageError or ResultsPathError when a neighbour's file cannot be read.
    """
    if analysis.spec is None or not analysis.spec.conditions:
        return None
    baseline = analysis.spec.conditions[0].name
    words = {condition.name: condition.in_words for condition in analysis.spec.conditions}
    interference = Interference(baseline, analysis.spec.overhead_limit_percent, conditions=words)
    cells, contrasts = {cell.key: cell for cell in analysis.cells}, Contrasts([analysis])
    for cell in analysis.cells:
        interference.modes[cell.key] = cell.mode
        interference.neighbours.extend(_neighbours(cell))
        died = sum(ReasonCode.VICTIM_DIED in run.data.manifest.verdict.codes for run in cell.experiments)
        if died:
            interference.died[cell.key] = died, len(cell.experiments)
        if cell.condition == baseline:
            continue
        against = cells.get(cell.key._replace(condition=baseline))
        interference.overheads[cell.key] = {
            name: _overhead(contrasts, against, cell, name, interference.limit_percent)
            if against
            else f"{baseline} has no such cell"
            for name in JUDGED
        }
    return interference


def _gravity(overhead: Overhead | str) -> int:
    outcome = Outcome.INCONCLUSIVE if isinstance(overhead, str) else overhead.outcome
    return [Outcome.FAIL, Outcome.INCONCLUSIVE, Outcome.PASS].index(outcome)


def in_words(overhead: Overhead | str) -> str:
    """The outcome and what it rests on: ``12.0% overhead (95% interval 9.1 to 14.8%): fail``."""
    if isinstance(overhead, str):
        return f"{Outcome.INCONCLUSIVE.value}, {overhead}"
    percent = overhead.percent
    size = f"{number(percent.mean)}% overhead"
    interval = f" (95% interval {bounds}%)" if (bounds := whole_interval(percent)) else ""
    reason = f", {overhead.why}" if overhead.outcome is Outcome.INCONCLUSIVE else ""
    return f"{size}{interval}: {overhead.outcome.value}{reason}"


def judge(percent: Estimate, limit_percent: float) -> tuple[Outcome, str]:
    """Whether an overhead keeps its limit: only an interval that lies on one side of it says so."""
    outcome = keeps(percent, limit_percent)
    if percent.low is None:
        return outcome, percent.note
    if outcome is not Outcome.INCONCLUSIVE:
        where = "below" if outcome is Outcome.PASS else "above"
        return outcome, f"the whole interval lies {where} {limit_percent:g}%"
    needed = _repeats_needed(percent, limit_percent)
    advice = f"try {needed} repeats" if needed else "it is too close to the limit"
    return outcome, f"the interval includes the limit; {advice}"


def _repeats_needed(percent: Estimate, limit_percent: float) -> int | None:
    """Repeats whose interval would end short of the limit, were mean and spread to stay; None beyond ``MAX_REPEATS``."""

    def width(n: int) -> float:  # half of Student's interval over n values, in standard deviations
        return student(n - 1) / math.sqrt(n)

    distance, half = abs(percent.mean - limit_percent), percent.half_width or 0.0
    further = range(percent.n + 1, MAX_REPEATS + 1)
    return next((repeats for repeats in further if half * width(repeats) / width(percent.n) < distance), None)


def _overhead(contrasts: Contrasts, baseline: Cell, cell: Cell, name: str, limit_percent: float) -> Overhead | str:
    """The overhead of one measure, or why there is none."""
    before, after = contrasts.by_repeat(baseline, name), contrasts.by_repeat(cell, name)
    kept = {repeat: after[repeat] / before[repeat] for repeat in sorted(before.keys() & after.keys()) if before[repeat]}
    if not kept:
        reasons = [side.absent[name] for side in (baseline, cell) if name in side.absent]
        return reasons[0] if reasons else "no repeat can be used under both conditions"
    contrast = contrasts.of(baseline, cell, name)
    if contrast is None:
        return "a ratio needs pairs of positive values"
    percent = _percent_worse(contrast.ratio, higher_is_better=METRICS[name].higher_is_better is True)
    return Overhead(cell.key, contrast, percent, *judge(percent, limit_percent), kept)


def _percent_worse(ratio: Estimate, *, higher_is_better: bool) -> Estimate:
    """The ratio as percent worse: of what the baseline served, or of the time that it took."""
    ends = (ratio.mean, ratio.high, ratio.low) if higher_is_better else (ratio.mean, ratio.low, ratio.high)
    mean, low, high = (None if end is None else 100 * ((1 - end) if higher_is_better else (end - 1)) for end in ends)
    return Estimate(mean or 0.0, low, high, ratio.n, None, ratio.note)


@dataclass(frozen=True)
class NeighbourData(ExperimentData):
    """The files of one neighbour, read as if it were the measured workload of an experiment of its own."""

    neighbour: str = ""

    @cached_property
    def _metric_paths(self) -> dict[str, Path]:
        return metric_files(self.folder.parents[1])

    def table(self, metric: str) -> pd.DataFrame:
        """See ExperimentData.table; of this neighbour's series alone, under the names that measured ones have."""
        table = super().table(metric)
        own = [name for name in table.columns if neighbour_of(name) == self.neighbour]
        if not own:
            raise NotMeasuredError(f"no value of {metric} of {self.neighbour} was recorded")
        return table[own].rename(columns=lambda name: str(name).rpartition("/")[2])


def _neighbours(cell: Cell) -> list[NeighbourCell]:
    """The figures of everything that ran beside a cell, over the repeats that are used."""
    if not cell.used:
        return []
    measured: dict[str, list[MeasuredRun]] = {}
    for data in (data for run in cell.used for data in _neighbour_data(run.data)):
        measured.setdefault(data.neighbour, []).append(measure(data))
    cells = []
    for neighbour in cell.used[0].data.manifest.experiment.neighbours:
        runs = measured[neighbour.workload.name]
        figures = {name: [run.figures[name] for run in runs if name in run.figures] for name in OF_NEIGHBOURS}
        estimates = {name: t_interval(values, shared(cell)) for name, values in figures.items() if values}
        absent = {name: reason for run in runs for name, reason in run.absent.items()}
        reasons = {name: absent.get(name, "not recorded") for name in OF_NEIGHBOURS if name not in estimates}
        cells.append(NeighbourCell(cell.key, neighbour.workload.name, neighbour.replicas, estimates, reasons))
    return cells


def _neighbour_data(data: ExperimentData) -> list[NeighbourData]:
    manifest = data.manifest
    neighbours = []
    for neighbour in manifest.experiment.neighbours:
        name = neighbour.workload.name
        folder = neighbour_folder(data.folder, name)
        inside = f"{folder.relative_to(data.folder).as_posix()}/"
        files = {path.removeprefix(inside): file for path, file in manifest.files.items() if path.startswith(inside)}
        experiment = manifest.experiment.model_copy(
            update={"workload": neighbour.workload, "replicas": neighbour.replicas, "condition": None}
        )
        own = {"files": files, "experiment": experiment, "replicas": manifest.neighbours.get(name, [])}
        neighbours.append(NeighbourData(folder, manifest.model_copy(update=own), name))
    return neighbours
