"""Repeats until what is asked is known, in blocks; every block is in the journal before it runs, with what was known then."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from harness.analysis.contrasts.until_known import Figures, Progress, judge
from harness.analysis.read import read_experiment
from harness.campaign.folder import CampaignFolder
from harness.campaign.journal import Event, Journal, read_events
from harness.campaign.plan import estimate, expand
from harness.errors import HarnessError
from harness.results import layout
from harness.results.manifest import Status
from harness.spec import ExperimentSpec, UntilKnown

BLOCK, ENDS = "repeats-block", "repeats-end"


def blocks(
    folder: CampaignFolder, wanted: UntilKnown, journal: Journal, say: Callable[[str], None]
) -> Iterator[list[ExperimentSpec]]:
    """What is finished already, and then block after block, until everything is known or the time is spent."""
    planned = expand(folder.spec)
    yield [each for each in planned if folder.final_folder(each.experiment_id).exists()]
    found: dict[str, Figures] = {}
    asked: set[str] = set()
    while True:
        for each in planned:
            path = folder.final_folder(each.experiment_id)
            if each.experiment_id not in found and path.exists():
                found[each.experiment_id] = _figures(path)
        progress = judge(wanted, folder.spec.cells(), found)
        names = {cell.experiment_id(progress.blocks + 1) for cell in progress.following} - set(found)
        block = [each for each in planned if each.experiment_id in names]
        why = _why_it_ends(folder, wanted, progress, block)
        journal.append(
            ENDS if why else BLOCK,
            experiments=[each.experiment_id for each in block],
            why=why,
            answers=progress.sentences(),
        )
        say(f"{progress.summary} {why}".strip())
        if why:
            return
        if names & asked:
            raise HarnessError(
                f"{min(names & asked)} was run and left no result.",
                advice=f"Look into {folder.path / layout.ATTEMPTS}, then resume.",
            )
        asked |= names
        yield block


def out_of_time(folder: CampaignFolder) -> bool:
    """Whether the steps so far have taken all of the campaign's budget; never without one."""
    wanted = folder.spec.until_known
    return wanted is not None and wanted.budget is not None and _spent_s(folder) >= wanted.budget_s


def known_experiments(folder: CampaignFolder) -> list[ExperimentSpec]:
    """The experiments that the blocks came to so far; those of a block that the budget cut short are not waited for."""
    events = _events(folder)
    ended = bool(events) and events[-1]["event"] == ENDS
    names = set() if ended else {name for event in events for name in event["experiments"]}
    return [
        each
        for each in expand(folder.spec)
        if each.experiment_id in names or folder.final_folder(each.experiment_id).exists()
    ]


def told(folder: CampaignFolder) -> list[str]:
    """What is known by now, in sentences; nothing before the first block, or of another kind of campaign."""
    return [sentence for event in _events(folder)[-1:] for sentence in (*event["answers"], event["why"]) if sentence]


def _events(folder: CampaignFolder) -> list[Event]:
    return [event for event in read_events(folder.state) if event["event"] in (BLOCK, ENDS)]


def _why_it_ends(folder: CampaignFolder, wanted: UntilKnown, progress: Progress, block: list[ExperimentSpec]) -> str:
    """Why no other block is begun; empty when one is."""
    if not progress.following:
        return "No repeats are left to do."
    if wanted.budget is None:
        return ""
    cost = estimate(block)
    if _spent_s(folder) + cost.duration_s + cost.starts_s <= wanted.budget_s:
        return ""
    return f"The budget of {wanted.budget} leaves no time for what comes next."


def _spent_s(folder: CampaignFolder) -> float:
    """Seconds of all steps that have ended, those of failed attempts among them."""
    return sum(float(event["seconds"]) for event in read_events(folder.state) if event["event"] == "step-ends")


def _figures(path: Path) -> Figures:
    from harness.analysis.metrics.measured import measure  # with pandas: no other campaign waits for that

    data = read_experiment(path)
    return {} if data.manifest.verdict.status is Status.INVALID else measure(data).figures
