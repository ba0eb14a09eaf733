"""The campaign of a published set, exactly as it ran, to run it again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from harness.campaign.folder import open_folder
from harness.campaign.source import GIVEN, CampaignSource
from harness.campaign.verify import verify_campaign
from harness.errors import UsageError
from harness.results.files import read_document
from harness.results.layout import CAMPAIGN_YAML
from harness.spec import MOST_REPEATS
from harness.spec.backends import require

TIMES = 4
"""As many repeats as were published, at most: more narrow the interval little, for which the published ones stay as they are."""

if TYPE_CHECKING:
    from harness.analysis.campaign import Key


def published_source(folder: Path, said: Path) -> CampaignSource:
    """What a verified campaign ran: with the defaults of then, not with those of this version.

    ``said`` is what the user gave: the folder, or the archive that it was unpacked from.

    Raises:
        VerificationError: a file is not what it should be, or nothing is finished.
        ResultsPathError: it is no campaign, or of a version that this one cannot run.
        CampaignFileError: it asks for what its backend cannot do, or what was removed.
    """
    verify_campaign(folder).of(said).refuse()
    began = open_folder(folder)
    require(began.spec, origin=str(said))
    return CampaignSource(began.spec, read_document(folder / CAMPAIGN_YAML).decode(errors="replace"), GIVEN)


def most_repeats(source: CampaignSource, limit: int | None) -> int:
    """Repeats of a cell that there may be here: ``limit``, or four times those of the campaign.

    Raises UsageError for a limit of a campaign that finds their number itself.
    """
    if not source.spec.open_ended:
        return limit or min(TIMES * source.spec.most_repeats, MOST_REPEATS)
    if limit:
        raise UsageError(
            "the published campaign finds the number of its repeats itself, so --max-repeats has no effect.",
            advice="Leave it out.",
        )
    return 0


def with_more_repeats(source: CampaignSource, more: Mapping[Key, int]) -> CampaignSource:
    """What ran, for the cells that need ``more`` repeats (one cell at least) and those between them in its matrix; as many of each."""
    spec, repeats = source.spec, max(more.values())
    names = {
        "workloads": [workload for workload in spec.workloads if workload.name in {key.workload for key in more}],
        "sharing": [mode for mode in spec.sharing if mode.value in {key.sharing for key in more}],
        "replicas": [replicas for replicas in spec.replicas if replicas in {key.replicas for key in more}],
        "conditions": [beside for beside in spec.conditions if beside.name in {key.condition for key in more}],
    }
    cells = spec.model_copy(update={**names, "repeats": repeats})
    return CampaignSource(
        cells, f"# {repeats} more repeats of a part of its cells, see campaign.json\n{source.text}", source.origin
    )


def refuse_same(published: Path, *again: Path) -> None:
    """Raise UsageError where a campaign would be held against itself, or counted twice."""
    ids = [open_folder(folder).campaign_id for folder in (published, *again)]
    for index, folder in enumerate(again, start=1):
        if ids[index] in ids[:index]:
            what = "the campaign that it is to be compared with" if ids[index] == ids[0] else "given twice"
            raise UsageError(f"{folder} is {what}.", advice="Give one that ran again.")
