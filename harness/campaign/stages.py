"""Which experiments come next: all at once, or as results come in, under a rising load or until enough is known."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from harness.analysis import goodput
from harness.campaign import repeats, stress
from harness.campaign.folder import CampaignFolder
from harness.campaign.journal import Journal
from harness.campaign.plan import expand
from harness.spec import ExperimentSpec


def stages(folder: CampaignFolder, journal: Journal, say: Callable[[str], None]) -> Iterator[list[ExperimentSpec]]:
    """What to run next, one list after another; ask for the next list when this one is done.

    Args:
        folder: of the campaign.
        journal: told of what is decided on the way.
        say: likewise, for people.
    """
    spec = folder.spec
    if spec.stress is not None:
        yield from stress.points(folder, journal)
    elif spec.until_known is not None:
        yield from repeats.blocks(folder, spec.until_known, journal, say)
    else:
        yield expand(spec)


def known_experiments(folder: CampaignFolder) -> list[ExperimentSpec]:
    """What a campaign has run or runs next, as far as that is known."""
    if folder.spec.stress is not None:
        return stress.known_points(folder)
    if folder.spec.until_known is not None:
        return repeats.known_experiments(folder)
    return expand(folder.spec)


def answers(folder: CampaignFolder) -> dict[str, list[str]]:
    """What a campaign whose plan follows from its results has found by now, in sentences, by what it looks for."""
    ladders = stress.ladders(folder)
    best = goodput.sentences(goodput.bests(folder.spec, ladders))
    found = {
        "stress": [*(sentence for ladder in ladders for sentence in ladder.sentences()), *best],
        "until_known": repeats.told(folder),
    }
    return {name: sentences for name, sentences in found.items() if sentences}
