"""Make a published set of a campaign: verified, and one archive."""

from __future__ import annotations

from pathlib import Path

from harness.campaign.verify import verify_campaign
from harness.errors import ResultsPathError, UsageError
from harness.results import layout
from harness.results.manifest import read_manifest
from harness.results.published import SUFFIX, Bounds, pack

_OF_THE_CAMPAIGN = (
    layout.CAMPAIGN_JSON,
    layout.CAMPAIGN_YAML,
    layout.STATE,
    layout.SUMMARY_CSV,
    layout.SUMMARY_JSON,
    layout.CAMPAIGN_PARQUET,
)


def publish(campaign: Path, out: Path | None = None, *, bounds: Bounds | None = None) -> Path:
    """Verify a campaign and make the archive of it; returns its path.

    It holds what the manifests list, the campaign's own files and its summary; the report and its plots follow from those.

    Args:
        campaign: its folder.
        out: the archive, a new file ending in ``.tar.xz``; None: beside the folder, named like it.
        bounds: of what it may hold.

    Raises:
        ResultsPathError: the folder is no campaign, or holds more than an archive may.
        UsageError: ``out`` has another ending.
        VerificationError: a file is not what its manifest says, or nothing is finished.
        ConflictError: ``out`` exists.
        StorageError: a file cannot be read or written.
    """
    campaign = campaign.resolve()
    out = out or campaign.with_name(campaign.name + SUFFIX)
    if not out.name.endswith(SUFFIX):
        raise UsageError(f"{out} does not end in {SUFFIX}.", advice=f"E.g. --out {campaign.name}{SUFFIX}")
    if not (campaign / layout.CAMPAIGN_JSON).is_file():
        raise ResultsPathError(
            f"{campaign} is no campaign folder: it holds no {layout.CAMPAIGN_JSON}.",
            advice="Give the folder of a campaign below results/.",
        )
    verify_campaign(campaign).refuse()
    pack(_files(campaign), out, bounds=bounds)
    return out


def _files(campaign: Path) -> dict[str, Path]:
    """What is published, by its name in the archive."""
    found = [campaign / name for name in _OF_THE_CAMPAIGN if (campaign / name).is_file()]
    for folder in layout.experiment_folders(campaign):
        found += [folder / name for name in (layout.MANIFEST, *read_manifest(folder).files)]
    return {f"{campaign.name}/{path.relative_to(campaign).as_posix()}": path for path in found}
