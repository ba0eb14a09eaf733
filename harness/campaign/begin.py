"""What comes before a new campaign's first experiment: limits, preflight, its folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from harness.backends.choose import make_backend
from harness.campaign import preflight
from harness.campaign.folder import CampaignFolder, create
from harness.campaign.plan import certain, check_limits, most
from harness.campaign.source import CampaignSource
from harness.errors import Severity


def begin(source: CampaignSource, results: Path, *, force: bool, say: Callable[[str], None]) -> CampaignFolder:
    """Look at everything that speaks against a campaign, and make its folder.

    Args:
        source: the campaign.
        results: folder that holds the campaigns' folders.
        force: begin although preflight found errors.
        say: told what preflight found.

    Raises:
        CampaignFileError: it is larger than it may be.
        PreflightError: this machine cannot run it, and ``force`` is not set.
        StorageError: ``results`` cannot be written.
    """
    check_limits(source.spec, most(source.spec))
    findings = preflight.check(certain(source.spec), results, make_backend(source.spec, campaign_id="preflight"))
    for finding in findings if force else [each for each in findings if each.severity is not Severity.ERROR]:
        say(f"{finding.severity.value}: {finding.message} {finding.advice}".rstrip())
    if not force:
        preflight.refuse_errors(findings)
    return create(results, source.spec, text=source.text, source=source.origin)
