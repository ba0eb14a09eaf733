"""The campaign of a published set, exactly as it ran, to run it again."""

from __future__ import annotations

from pathlib import Path

from harness.backends import capabilities
from harness.campaign.folder import open_folder
from harness.campaign.source import GIVEN, CampaignSource
from harness.campaign.verify import verify_campaign
from harness.errors import UsageError
from harness.results.files import read_document
from harness.results.layout import CAMPAIGN_YAML


def published_source(folder: Path, said: Path) -> CampaignSource:
    """What a verified campaign ran: with the defaults of then, not with those of this version.

    Args:
        folder: of the campaign.
        said: what the user gave: the folder, or the archive that it was unpacked from.

    Raises:
        VerificationError: a file is not what it should be, or nothing is finished.
        ResultsPathError: it is no campaign, or of a version that this one cannot run.
        CampaignFileError: its backend cannot do what it asks for.
    """
    verify_campaign(folder).of(said).refuse()
    began = open_folder(folder)
    capabilities.require(began.spec, origin=str(said))
    return CampaignSource(began.spec, read_document(folder / CAMPAIGN_YAML).decode(errors="replace"), GIVEN)


def refuse_same(published: Path, again: Path) -> None:
    """Raise UsageError where a campaign would be held against itself."""
    if open_folder(published).campaign_id == open_folder(again).campaign_id:
        raise UsageError(
            f"{again} is the published campaign itself, which reproduces nothing.",
            advice="Give a campaign that ran again, or leave --against out to run it.",
        )
