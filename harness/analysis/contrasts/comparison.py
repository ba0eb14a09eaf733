"""Results put together to be compared: over campaigns, workloads, sharing modes or conditions."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import combinations, permutations
from pathlib import Path
from typing import NamedTuple

from harness.analysis.campaign import REPEATS_FOLLOWED, CampaignAnalysis, Cell, analyse, pooled_cell
from harness.analysis.comparability import differences, refuse_unlike
from harness.analysis.contrasts.contrast import COMPARED, Contrast, Contrasts
from harness.analysis.metrics.catalogue import STREAM_HEADLINE
from harness.errors import ResultsPathError, UsageError
from harness.results.layout import WIDE
from harness.results.manifest import Manifest
from harness.results.published import opened
from harness.sharing.mode import SharingMode
from harness.sharing.modes import MODES, mode_of
from harness.spec import Order, Sharing


class By(StrEnum):
    """What the arms of a comparison differ in; MPS is one mode for each of its limits."""

    CAMPAIGN = "campaign"
    SHARING = "sharing"
    CONDITION = "condition"
    WORKLOAD = "workload"
    SHARE = "share"
    """Each limit under MPS."""
    TIME_SLICE = "time-slice"


class CellKey(NamedTuple):
    """What is measured in every arm of a comparison; compared by workload, ``workload`` names them all."""

    workload: str
    replicas: int


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to run workloads.

    ``side``: which of the compared ones it is. ``rest``: campaign, workload, sharing mode (with limits of MPS) and condition as far as
    the sides do not differ in them. ``label``: what tells it from the other arms. ``cells``: each has a run that can be used.
    """

    side: str
    rest: tuple[str, ...]
    sharing: str
    label: str
    cells: dict[CellKey, Cell]

    def counts(self, workload: str) -> list[int]:
        """Replica counts measured of a workload, rising."""
        return sorted(key.replicas for key in self.cells if key.workload == workload)

    def figures(self, workload: str, metric: str) -> dict[int, list[float]]:
        """Replica count to one metric of every repeat, where there is any."""
        figures = {count: self.cells[CellKey(workload, count)].figures(metric) for count in self.counts(workload)}
        return {count: values for count, values in figures.items() if values}


class Tested(NamedTuple):
    """One metric of two arms at one place; ``a`` and ``b`` are the labels of baseline and candidate."""

    key: CellKey
    a: str
    b: str
    contrast: Contrast


@dataclass(frozen=True)
class Comparison:
    """What is compared: the arms in the order of the sides, and what is ``unlike`` in them, in sentences.

    ``beside``: a campaign with conditions among others without; it is compared with nothing but its own first condition, so that it
    may be of another machine.
    """

    by: By
    analyses: list[CampaignAnalysis]
    arms: list[Arm]
    unlike: list[str]
    beside: CampaignAnalysis | None = None

    @cached_property
    def contrasts(self) -> Contrasts:
        """What answers about two of their cells."""
        return Contrasts([*self.analyses, *([self.beside] if self.beside else [])])

    @cached_property
    def tests(self) -> list[Tested]:
        """Every arm against the first side that measured the same, in every metric that both have."""
        return [
            Tested(key, first.label, other.label, contrast)
            for key, (first, *others) in self._rivals
            for other in others
            for metric in (*COMPARED, *STREAM_HEADLINE)
            if (contrast := self.contrasts.of(first.cells[key], other.cells[key], metric))
        ]

    @property
    def lonely(self) -> list[tuple[CellKey, str]]:
        """Cells of one arm only, where there are several sides."""
        return [(key, first.label) for key, (first, *others) in self._rivals if not others and len(self.sides) > 1]

    @property
    def _rivals(self) -> Iterator[tuple[CellKey, list[Arm]]]:
        """Each cell with the arms that have it and differ in the side alone."""
        for rest in dict.fromkeys(arm.rest for arm in self.arms):
            rivals = [arm for arm in self.arms if arm.rest == rest]
            for key in dict.fromkeys(key for arm in rivals for key in arm.cells):
                yield key, [arm for arm in rivals if key in arm.cells]

    @property
    def sides(self) -> list[str]:
        """The compared ones; the first that has a cell is what the others are held against."""
        return list(dict.fromkeys(arm.side for arm in self.arms))

    def workloads(self) -> list[str]:
        """Names of the workloads with a run that can be used, in the campaigns' order."""
        usable = {key.workload for arm in self.arms for key in arm.cells}
        every = dict.fromkeys(name for analysis in self.analyses for name in analysis.workloads())
        return [*(name for name in every if name in usable), *(usable - every.keys())]

    def cells(self) -> Iterator[tuple[str, Arm, int, Cell]]:
        """Every cell that is compared: workload, arm, replicas, cell; by workload, then replicas, then arm."""
        for workload in self.workloads():
            for count in self.counts(workload):
                for arm, cell in self.with_replicas(workload, count):
                    yield workload, arm, count, cell

    def counts(self, workload: str) -> list[int]:
        """Replica counts that some arm measured of a workload, rising."""
        return sorted({count for arm in self.arms for count in arm.counts(workload)})

    def manifests(self) -> list[Manifest]:
        """Of every run that is used."""
        return _manifests(self.analyses)

    def alike(self, a: Arm, b: Arm) -> bool:
        """Whether two arms differ in nothing but the sharing mode."""
        if self.by is By.SHARING:
            return a.rest == b.rest
        same_condition = a.rest[-1] == b.rest[-1] or self.by is By.CONDITION
        return a.side == b.side and same_condition

    def name_of(self, cell: Cell) -> str:
        """Of its workload here."""
        return _across(cell) if self.by is By.WORKLOAD else cell.workload

    def gpu_alone(self, arm: Arm, workload: str) -> Cell | None:
        """The configuration of one replica with the GPU to itself: of the exclusive mode, else under the arm's own; None without one."""
        alone = CellKey(workload, 1)
        exclusive = (other for other in self.arms if mode_of(other.sharing).own_gpu and self.alike(other, arm))
        return next((other.cells[alone] for other in (*exclusive, arm) if alone in other.cells), None)

    def against_alone(self, arm: Arm, cell: Cell, metric: str) -> Contrast | None:
        """A configuration against one replica alone; None where it is that one, or one of them does not have the metric."""
        alone = self.gpu_alone(arm, self.name_of(cell))
        return None if alone is None or alone is cell else self.contrasts.of(alone, cell, metric)

    def with_replicas(self, workload: str, count: int) -> Iterator[tuple[Arm, Cell]]:
        """Every arm that measured a workload with so many replicas, and what it measured."""
        key = CellKey(workload, count)
        return ((arm, arm.cells[key]) for arm in self.arms if key in arm.cells)

    def missing_modes(self) -> list[str]:
        """Sharing modes that were not measured, and how to measure them."""
        settable = [mode for mode in MODES.values() if mode.switch_command]
        measured = [mode.sharing.value for mode in settable if mode.sharing in {arm.sharing for arm in self.arms}]
        wanted = [mode.sharing.value for mode in settable if not mode.own_instance and mode.sharing not in measured]
        if not wanted or not measured:
            return []  # all were, or there are only servers whose mode is not the harness's to set
        if all(cell.on_cpu for arm in self.arms for cell in arm.cells.values()):
            return ["Sharing modes need a GPU: these replicas ran on the CPU."]
        every = ", ".join(measured + wanted)
        return [f"Not measured: {', '.join(wanted)}. Run a campaign with sharing: [{every}]."]


def settings_of(manifests: Sequence[Manifest]) -> dict[str, str]:
    """Of each workload, what of its settings decides its speed, in a few words; all that there are."""
    loads: dict[str, list[str]] = {}
    for manifest in manifests:
        workload = manifest.experiment.workload
        size = f"batch {workload.batch_size}"
        if workload.batch_size > 1 and round(manifest.inputs_per_request or 0) == workload.batch_size:
            size += f" ({workload.batch_size} inputs a request)"
        own = f"{size}, {workload.precision}, {workload.execution.value}"
        loads.setdefault(workload.name, []).append(workload.server.load_in_words() if workload.server else own)
    return {name: " or ".join(dict.fromkeys(words)) for name, words in loads.items()}


ALL_WORKLOADS = "all workloads"
MODE = 2
"""Place of the sharing mode among the axes of an arm: campaign, workload, mode, condition."""


def gather(
    folders: Sequence[Path],
    by: str | None = None,
    *,
    unlike: bool = False,
    read: Callable[[Path], CampaignAnalysis] = analyse,
) -> Comparison:
    """Read campaigns and sort what they measured into the sides of a comparison; ``read`` gives the analysis of a folder.

    ``by``: one of ``By``; None: campaigns when several measured the same, else sharing modes, else conditions, else servers. Unless campaigns or
    conditions are asked for, one campaign with conditions among others without stands beside them. ``unlike``: compare even what
    was measured on unlike machines.

    Raises:
        UsageError: the same campaign twice, or sides that cannot be.
        UnlikeResultsError: the machines differ, and ``unlike`` is not set.
        ResultsPathError: one of the folders is no campaign, or none has a run that can be used.
        StorageError: a file cannot be read.
    """
    if by is not None and by not in set(By):
        raise UsageError(f"--by {by} is not a way to compare.", advice=f"Use one of: {', '.join(By)}.")
    _refuse_twice(folders)
    analyses = [read(folder) for folder in folders]
    _refuse_the_same_recordings(analyses)
    beside = _apart(analyses) if by in {None, By.SHARING} else None
    analyses = [analysis for analysis in analyses if analysis is not beside]
    manifests = _manifests(analyses)
    if not manifests:
        raise ResultsPathError(
            f"{', '.join(str(folder) for folder in folders)}: no experiment there can be used.",
            advice="See how far it has come: harness status RESULTS/CAMPAIGN",
        )
    if not unlike:
        refuse_unlike(manifests)
    sides = By(by) if by else _natural(analyses)
    arms = _arms(analyses, sides)
    if not arms:
        modes = ", ".join(mode.sharing for mode in MODES.values() if _has_side(mode, sides))
        raise UsageError(
            f"--by {sides}: no run of these campaigns has one.",
            advice=f"It takes a campaign with `sharing: [{modes}]`.",
        )
    followed = [REPEATS_FOLLOWED] if any(analysis.progress for analysis in analyses) else []
    return Comparison(sides, analyses, arms, [*differences(manifests), *_one_after_another(arms), *followed], beside)


def _apart(analyses: Sequence[CampaignAnalysis]) -> CampaignAnalysis | None:
    """The one campaign with conditions among several; None where more have some, or none has."""
    with_conditions = [analysis for analysis in analyses if analysis.spec is not None and analysis.spec.conditions]
    return with_conditions[0] if len(with_conditions) == 1 < len(analyses) else None


def _one_after_another(arms: Sequence[Arm]) -> list[str]:
    """A sentence where all repeats of a cell on one side ran before those on another: drift looks like a difference."""
    drifted = []
    for key in dict.fromkeys(key for arm in arms for key in arm.cells):
        starts = [[run.data.manifest.start_s for run in arm.cells[key].used] for arm in arms if key in arm.cells]
        several = [side for side in starts if len(side) > 1]
        if any(max(first) < min(second) for first, second in permutations(several, 2)):
            drifted.append(f"{key.workload} with {key.replicas}")
    if not drifted:
        return []
    return [
        (
            f"All repeats of one side ran before those of another, so that drift looks like a difference: {', '.join(drifted)}. "
            f"Run the sides in one campaign, with `order: {Order.INTERLEAVED}` or `{Order.RANDOM}`."
        )
    ]


@contextmanager
def gathered(
    paths: Sequence[Path],
    by: str | None = None,
    *,
    unlike: bool = False,
    read: Callable[[Path], CampaignAnalysis] = analyse,
) -> Iterator[Comparison]:
    """``gather``, also of published sets, which stay unpacked as long as the block lasts."""
    _refuse_twice(paths)
    with ExitStack() as stack:
        yield gather([stack.enter_context(opened(path)) for path in paths], by, unlike=unlike, read=read)


def _refuse_twice(paths: Sequence[Path]) -> None:
    if len({os.path.realpath(path) for path in paths}) < len(paths):  # which no loop of links stops
        raise UsageError("the same campaign is given twice.", advice="Give each campaign once.")


def _refuse_the_same_recordings(analyses: Sequence[CampaignAnalysis]) -> None:
    """A campaign and its own archive, or a copy under another name, are one: their rows carry the time."""
    first: dict[str, CampaignAnalysis] = {}
    for analysis in analyses:
        for item in analysis.experiments:
            rows = item.data.manifest.files.get(WIDE)
            other = first.setdefault(rows.sha256, analysis) if rows and not item.damage else analysis
            if other is not analysis:
                raise UsageError(
                    f"{other.folder} and {analysis.folder} hold the same recording, of {item.name}.",
                    advice="Give each campaign once, as its folder or as its archive.",
                )


def _natural(analyses: Sequence[CampaignAnalysis]) -> By:
    measured = [
        {(cell.workload, cell.replicas, cell.mode, cell.condition) for cell in analysis.cells if cell.used}
        for analysis in analyses
    ]
    if len(analyses) > 1 and any(a & b for a, b in combinations(measured, 2)):
        return By.CAMPAIGN
    *_, modes, conditions = (set(column) for column in zip(*set().union(*measured), strict=True))
    if len(modes) < 2 <= len(conditions):
        return By.CONDITION
    return By.WORKLOAD if len(modes) < 2 and _engines(analyses) else By.SHARING


def _engines(analyses: Sequence[CampaignAnalysis]) -> bool:
    """Whether several servers were measured and nothing else: of other workloads the speeds say little of each other."""
    workloads = [manifest.experiment.workload for manifest in _manifests(analyses)]
    return all(workload.server for workload in workloads) and len({workload.family for workload in workloads}) > 1


def _manifests(analyses: Sequence[CampaignAnalysis]) -> list[Manifest]:
    return [item.data.manifest for analysis in analyses for item in analysis.experiments if item.used]


def _arms(analyses: Sequence[CampaignAnalysis], by: By) -> list[Arm]:
    """The arms, by side, then by mode, then as the campaigns list them."""
    names = _distinct_names(analyses)
    members: dict[tuple[str, ...], dict[CellKey, list[Cell]]] = {}
    sharing: dict[str, str] = {}
    for name, analysis in zip(names, analyses, strict=True):
        for cell in analysis.cells:
            if cell.used and _has_side(mode_of(cell.sharing), by):
                of_all = by is By.WORKLOAD
                axes = (name if by is By.CAMPAIGN else "", _family(cell) if of_all else "", cell.mode, cell.condition)
                sharing[cell.mode] = cell.sharing
                key = CellKey(_across(cell) if of_all else cell.workload, cell.replicas)
                members.setdefault(axes, {}).setdefault(key, []).append(cell)
    side = {By.CAMPAIGN: 0, By.WORKLOAD: 1, By.CONDITION: 3}.get(by, MODE)
    varying = [place for place in range(4) if len({axes[place] for axes in members}) > 1]
    orders = [list(dict.fromkeys(axes[place] for axes in members)) for place in range(4)]
    orders[MODE].sort(key=lambda mode: list(Sharing).index(Sharing(sharing[mode])))

    def rank(axes: tuple[str, ...]) -> list[int]:
        return [orders[place].index(axes[place]) if axes[place] else 0 for place in (side, MODE, 3)]

    return [
        Arm(
            side=axes[side] or "no condition",
            rest=tuple(axes[place] for place in range(4) if place != side),
            sharing=sharing[axes[MODE]],
            label=", ".join(axes[place] for place in dict.fromkeys([side, *varying]) if axes[place]) or axes[MODE],
            cells={key: pooled_cell(cells) for key, cells in members[axes].items()},
        )
        for axes in sorted(members, key=rank)
    ]


def _across(cell: Cell) -> str:
    """What workloads are compared under: the load, where the campaign sweeps one."""
    return cell.load.in_words if cell.load else ALL_WORKLOADS


def _family(cell: Cell) -> str:
    """The workload without its load."""
    return cell.experiments[0].data.manifest.experiment.workload.family if cell.load else cell.workload


def _has_side(mode: SharingMode, by: By) -> bool:
    """Whether a mode has what the sides differ in: limits where processes run side by side, slices where they take turns."""
    return mode.takes_limits if by is By.SHARE else mode.takes_turns if by is By.TIME_SLICE else True


def _distinct_names(analyses: Sequence[CampaignAnalysis]) -> list[str]:
    names = [analysis.name for analysis in analyses]
    several = len(set(names)) < len(names)
    return [f"{analysis.folder.resolve().parent.name}/{analysis.name}" for analysis in analyses] if several else names
