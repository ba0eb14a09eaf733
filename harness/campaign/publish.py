"""Make a published set of a campaign: verified, described for programs, and one archive."""

from __future__ import annotations

import tempfile
from pathlib import Path

from harness.campaign.verify import verify_campaign
from harness.errors import ResultsPathError, StorageError, UsageError
from harness.results import layout
from harness.results.citation import Citation
from harness.results.crate import CROISSANT, RO_CRATE, About, croissant, ro_crate
from harness.results.files import sha256_of, storage_errors
from harness.results.manifest import FileEntry, read_manifest
from harness.results.published import SUFFIX, Bounds, pack

_OF_THE_CAMPAIGN = (layout.CAMPAIGN_JSON, layout.CAMPAIGN_YAML, layout.STATE, layout.SUMMARY_CSV, layout.SUMMARY_JSON)


def publish(
    campaign: Path, out: Path | None = None, *, citation: Citation | None = None, bounds: Bounds | None = None
) -> Path:
    """Verify a campaign and make the archive of it; returns its path.

    It holds what the manifests list, the campaign's own files, its summary and its table of experiments, and what describes them
    all (RO-Crate, Croissant); the report and its plots follow from those.

    Args:
        campaign: its folder.
        out: the archive, a new file ending in ``.tar.xz``; None: beside the folder, named like it.
        citation: who made it and on what terms; None: nobody says.
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
    with tempfile.TemporaryDirectory(prefix="harness-") as temporary:
        files = _files(campaign) | _described(campaign, Path(temporary), citation or Citation())
        try:
            pack({f"{campaign.name}/{name}": path for name, path in files.items()}, out, bounds=bounds)
        except StorageError as error:
            raise StorageError(error.message, advice="Give another place with --out, or free some space.") from error
    return out


def _files(campaign: Path) -> dict[str, Path]:
    """What is there already, by its name below the campaign's folder."""
    found = [campaign / name for name in _OF_THE_CAMPAIGN if (campaign / name).is_file()]
    for folder in layout.experiment_folders(campaign):
        found += [folder / name for name in (layout.MANIFEST, *read_manifest(folder).files)]
    return {path.relative_to(campaign).as_posix(): path for path in found}


def _described(campaign: Path, into: Path, citation: Citation) -> dict[str, Path]:
    """Write the table of experiments and what describes the files; returns their paths by name.

    Of one campaign and citation always the same bytes: nothing here says when it was published.
    """
    from harness.analysis import campaign_table
    from harness.analysis.campaign import analyse
    from harness.analysis.comparability import environment

    analysis = analyse(campaign)
    manifests = [experiment.data.manifest for experiment in analysis.experiments]
    about = About(
        name=campaign.name,
        description=(analysis.spec.description if analysis.spec else "")
        or f"Measurements of the campaign {campaign.name}.",
        begun=layout.iso(min(manifest.start_s for manifest in manifests)),
        ended=layout.iso(
            max(each.data.manifest.start_s + max(0, each.data.duration_s) for each in analysis.experiments)
        ),
        version=manifests[0].provenance.software.harness,
        facts=environment(manifests),
        columns=campaign_table.dictionary(),
        citation=citation,
    )
    entries = {name: _entry(path) for name, path in _files(campaign).items()}
    written: dict[str, Path] = {}

    def write(name: str, content: bytes) -> None:
        written[name] = into / name
        with storage_errors(written[name]):
            written[name].write_bytes(content)
        entries[name] = _entry(written[name])

    write(layout.CAMPAIGN_PARQUET, campaign_table.to_parquet(analysis))
    write(CROISSANT, croissant(about, entries).encode())
    write(RO_CRATE, ro_crate(about, entries).encode())
    return written


def _entry(path: Path) -> FileEntry:
    with storage_errors(path, "read"):
        return FileEntry(sha256=sha256_of(path), bytes=path.stat().st_size)
