"""Results put together to be compared: over campaigns, sharing modes or conditions."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

from harness.analysis.campaign import REPEATS_FOLLOWED, CampaignAnalysis, Cell, analyse, pooled_cell
from harness.analysis.comparability import differences, refuse_unlike
from harness.errors import ResultsPathError, UsageError
from harness.results.layout import WIDE
from harness.results.manifest import Manifest
from harness.results.published import opened
from harness.sharing.modes import mode_of
from harness.spec import Order, Sharing


class By(StrEnum):
    """What the sides of a comparison differ in."""

    CAMPAIGN = "campaign"
    """Each campaign given is a side."""
    SHARING = "sharing"
    """Each sharing mode is a side, whichever campaign measured it; MPS is one for each of its limits."""
    CONDITION = "condition"
    """Each condition is a side, whichever campaign measured it."""


class Place(NamedTuple):
    """What is measured on every side of a comparison."""

    workload: str
    replicas: int


@dataclass(frozen=True, slots=True)
class Setup:
    """One way to run workloads.

    Attributes:
        side: which of the compared ones it is.
        rest: campaign, sharing mode (with limits of MPS) and condition as far as the sides do not differ in them.
        sharing: its mode.
        label: for people; names what tells it from the other setups.
        cells: by workload and replicas; each has a run that can be used.
    """

    side: str
    rest: tuple[str, ...]
    sharing: str
    label: str
    cells: dict[Place, Cell]

    def alone(self, workload: str) -> Cell | None:
        """The cell of one replica; None when it was not measured."""
        return self.cells.get(Place(workload, 1))

    def counts(self, workload: str) -> list[int]:
        """Replica counts measured of a workload, rising."""
        return sorted(place.replicas for place in self.cells if place.workload == workload)


@dataclass(frozen=True, slots=True)
class Pool:
    """What is compared.

    Attributes:
        by: what the sides differ in.
        analyses: the campaigns, as given.
        setups: in the order of the sides.
        unlike: what is not the same everywhere, in sentences.
        beside: a campaign with conditions among others without: it is compared with nothing but its own first condition, so that
            it may be of another machine.
    """

    by: By
    analyses: list[CampaignAnalysis]
    setups: list[Setup]
    unlike: list[str]
    beside: CampaignAnalysis | None = None

    @property
    def sides(self) -> list[str]:
        """The compared ones; the first that has a cell is what the others are held against."""
        return list(dict.fromkeys(setup.side for setup in self.setups))

    def workloads(self) -> list[str]:
        """Names of the workloads with a run that can be used, in the campaigns' order."""
        usable = {place.workload for setup in self.setups for place in setup.cells}
        every = dict.fromkeys(name for analysis in self.analyses for name in analysis.workloads())
        return [name for name in every if name in usable]

    def manifests(self) -> list[Manifest]:
        """Of every run that is used."""
        return _manifests(self.analyses)

    def alike(self, a: Setup, b: Setup) -> bool:
        """Whether two setups differ in nothing but the sharing mode."""
        if self.by is By.SHARING:
            return a.rest == b.rest
        same_condition = a.rest[-1] == b.rest[-1] or self.by is By.CONDITION
        return a.side == b.side and same_condition

    def gpu_alone(self, setup: Setup, workload: str) -> tuple[Cell, str] | None:
        """The cell of one replica with the GPU to itself, and what that is; None when nothing of the kind was measured.

        One of the exclusive mode where there is one, else one replica under the setup's own mode.
        """
        for other in self.setups:
            if mode_of(other.sharing).own_gpu and self.alike(other, setup):
                cell = other.alone(workload)
                if cell is not None:
                    return cell, other.sharing
        own = setup.alone(workload)
        return None if own is None else (own, "one replica")


class _Axes(NamedTuple):
    campaign: str
    mode: str
    condition: str


def gather(
    folders: Sequence[Path],
    by: str | None = None,
    *,
    unlike: bool = False,
    read: Callable[[Path], CampaignAnalysis] = analyse,
) -> Pool:
    """Read campaigns and sort what they measured into the sides of a comparison.

    Args:
        folders: of campaigns.
        by: campaign, sharing or condition; None: campaigns when several measured
            the same, else sharing modes, else conditions. Unless campaigns or conditions are asked for, one campaign with
            conditions among others without stands beside them.
        unlike: compare even what was measured on unlike machines.
        read: gives the analysis of a folder.

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
    analyses = [one for one in analyses if one is not beside]
    manifests = _manifests(analyses)
    if not manifests:
        raise ResultsPathError(
            f"{', '.join(str(folder) for folder in folders)}: no experiment there can be used.",
            advice="See how far it has come: harness status RESULTS/CAMPAIGN",
        )
    if not unlike:
        refuse_unlike(manifests)
    sides = By(by) if by else _natural(analyses)
    setups = _setups(analyses, sides)
    followed = [REPEATS_FOLLOWED] if any(one.progress for one in analyses) else []
    return Pool(sides, analyses, setups, [*differences(manifests), *_one_after_another(setups), *followed], beside)


def _apart(analyses: Sequence[CampaignAnalysis]) -> CampaignAnalysis | None:
    """The one campaign with conditions among several; None where more have some, or none has."""
    found = [one for one in analyses if one.spec is not None and one.spec.conditions]
    return found[0] if len(found) == 1 < len(analyses) else None


def _one_after_another(setups: Sequence[Setup]) -> list[str]:
    """A sentence where all repeats of a cell on one side ran before those on another: drift looks like a difference."""
    found = []
    for place in dict.fromkeys(place for setup in setups for place in setup.cells):
        spans = [
            (min(starts), max(starts))
            for setup in setups
            if place in setup.cells
            for starts in [[run.data.manifest.start_s for run in setup.cells[place].used]]
            if len(starts) > 1
        ]
        if any(one[1] < other[0] for one, other in itertools.permutations(spans, 2)):
            found.append(f"{place.workload} with {place.replicas}")
    if not found:
        return []
    return [
        (
            f"All repeats of one side ran before those of another, so that drift looks like a difference: {', '.join(found)}. "
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
) -> Iterator[Pool]:
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
    for one in analyses:
        for item in one.experiments:
            rows = item.data.manifest.files.get(WIDE)
            other = first.setdefault(rows.sha256, one) if rows and not item.damage else one
            if other is not one:
                raise UsageError(
                    f"{other.folder} and {one.folder} hold the same recording, of {item.name}.",
                    advice="Give each campaign once, as its folder or as its archive.",
                )


def _natural(analyses: Sequence[CampaignAnalysis]) -> By:
    measured = [
        {(cell.workload, cell.replicas, cell.mode, cell.condition) for cell in one.cells if cell.used}
        for one in analyses
    ]
    if len(analyses) > 1 and any(a & b for a, b in combinations(measured, 2)):
        return By.CAMPAIGN
    *_, modes, conditions = (set(column) for column in zip(*set().union(*measured), strict=True))
    return By.CONDITION if len(modes) < 2 <= len(conditions) else By.SHARING


def _manifests(analyses: Sequence[CampaignAnalysis]) -> list[Manifest]:
    return [item.data.manifest for analysis in analyses for item in analysis.experiments if item.used]


def _setups(analyses: Sequence[CampaignAnalysis], by: By) -> list[Setup]:
    names = _distinct_names(analyses)
    members: dict[_Axes, dict[Place, list[Cell]]] = {}
    sharing: dict[str, str] = {}
    for name, analysis in zip(names, analyses, strict=True):
        for cell in analysis.cells:
            if cell.used:
                axes = _Axes(name if by is By.CAMPAIGN else "", cell.mode, cell.condition)
                sharing[cell.mode] = cell.sharing
                members.setdefault(axes, {}).setdefault(Place(cell.workload, cell.replicas), []).append(cell)
    varying = [index for index in range(3) if len({axes[index] for axes in members}) > 1]
    ordered = sorted(members, key=lambda axes: _rank(axes, by, names, list(members), sharing))
    place = {By.CAMPAIGN: 0, By.SHARING: 1, By.CONDITION: 2}[by]
    return [
        Setup(
            side=axes[place] or "no condition",
            rest=tuple(axes[index] for index in range(3) if index != place),
            sharing=sharing[axes.mode],
            label=", ".join(axes[index] for index in dict.fromkeys([place, *varying]) if axes[index]) or axes.mode,
            cells={where: pooled_cell(cells) for where, cells in members[axes].items()},
        )
        for axes in ordered
    ]


def _rank(axes: _Axes, by: By, names: list[str], order: list[_Axes], sharing: dict[str, str]) -> tuple[int, ...]:
    """Sides in their order; within one, as the campaigns list them."""
    listed = [mode.value for mode in Sharing]
    modes = sorted(sharing, key=lambda mode: listed.index(sharing[mode]))
    conditions = list(dict.fromkeys(other.condition for other in order))
    side = {
        By.CAMPAIGN: names.index(axes.campaign) if axes.campaign else 0,
        By.SHARING: modes.index(axes.mode),
        By.CONDITION: conditions.index(axes.condition),
    }[by]
    return side, modes.index(axes.mode), conditions.index(axes.condition)


def _distinct_names(analyses: Sequence[CampaignAnalysis]) -> list[str]:
    names = [analysis.name for analysis in analyses]
    if len(set(names)) == len(names):
        return names
    return [f"{analysis.folder.resolve().parent.name}/{analysis.name}" for analysis in analyses]
