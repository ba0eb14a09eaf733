"""The plan of a stress campaign, which grows as results come in; every new point is in the journal before it runs."""

from __future__ import annotations

from collections.abc import Iterator

from harness.analysis import goodput
from harness.analysis.goodput import Best
from harness.analysis.read import read_experiment
from harness.analysis.stress import Run, StressSeries, run_of, search, series_of
from harness.campaign.folder import CampaignFolder
from harness.campaign.journal import Journal, read_events
from harness.campaign.plan import one_experiment
from harness.errors import HarnessError
from harness.results import layout
from harness.spec import CampaignSpec, CellSpec, ExperimentSpec

POINT, ENDS = "stress-point", "stress-ends"


def points(folder: CampaignFolder, journal: Journal) -> Iterator[list[ExperimentSpec]]:
    """What to run next, point by point; those of an earlier run come first, in its order."""
    spec = folder.spec
    known = [str(event["experiment"]) for event in read_events(folder.state) if event["event"] == POINT]
    planned = {each.experiment_id: each for cell in spec.cells() for each in _repeats(spec, cell)}
    yield [planned[name] for name in known]
    asked: set[str] = set()
    for cells in spec.series():
        while (series := search(spec, cells, _runs(folder, cells))).following:
            cell, repeat = series.following
            experiment = one_experiment(spec, cell, repeat)
            if experiment.experiment_id in asked:
                raise HarnessError(
                    f"the point {experiment.experiment_id} was run and left no result.",
                    advice=f"Look into {folder.path / layout.ATTEMPTS}, then resume.",
                )
            asked.add(experiment.experiment_id)
            journal.append(POINT, experiment=experiment.experiment_id, ladder=series.name)
            yield [experiment]
        journal.append(ENDS, ladder=series.name, answer=series.sentences())


def ladders(folder: CampaignFolder) -> list[StressSeries]:
    """How far every series of a stress campaign has come; none of any other."""
    return series_of(folder.spec, _runs(folder, folder.spec.cells()) if folder.spec.stress else {})


def bests(folder: CampaignFolder) -> list[Best]:
    """The highest goodput of every series of servers with an objective, as far as it is known."""
    return goodput.bests(folder.spec, ladders(folder))


def known_points(folder: CampaignFolder) -> list[ExperimentSpec]:
    """What a stress campaign has run or runs next."""
    spec = folder.spec
    found = [each for cell in spec.cells() for each in _repeats(spec, cell)]
    following = {
        cell.experiment_id(repeat)
        for series in ladders(folder)
        if series.following
        for cell, repeat in [series.following]
    }
    return [
        each for each in found if folder.final_folder(each.experiment_id).exists() or each.experiment_id in following
    ]


def _repeats(spec: CampaignSpec, cell: CellSpec) -> list[ExperimentSpec]:
    return [one_experiment(spec, cell, repeat) for repeat in range(1, spec.most_repeats + 1)]


def _runs(folder: CampaignFolder, cells: list[CellSpec]) -> dict[str, Run]:
    names = [cell.experiment_id(repeat) for cell in cells for repeat in range(1, folder.spec.most_repeats + 1)]
    return {
        name: run_of(read_experiment(folder.final_folder(name))) for name in names if folder.final_folder(name).exists()
    }
