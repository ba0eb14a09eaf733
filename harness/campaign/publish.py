"""Make a published set of a campaign: verified, described for programs, and one archive."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from harness.campaign.progress import campaign_status
from harness.campaign.verify import verify_campaign
from harness.errors import ConflictError, ResultsPathError, StorageError, UsageError
from harness.results import layout
from harness.results.condensed import condense
from harness.results.files import sha256_of, storage_errors
from harness.results.manifest import FileEntry, read_manifest
from harness.results.published import SUFFIX, Bounds, opened, pack
from harness.results.ro_crate import RO_CRATE, About, Citation, ro_crate

_OF_THE_CAMPAIGN = (layout.CAMPAIGN_JSON, layout.CAMPAIGN_YAML, layout.STATE, layout.SUMMARY_CSV, layout.SUMMARY_JSON)

_ROUNDED = "Instants are rounded to {} ns."


def publish(
    path: Path,
    out: Path | None = None,
    *,
    citation: Citation | None = None,
    resolution_ns: int | None = None,
    bounds: Bounds | None = None,
    say: Callable[[str], None] = lambda _note: None,
    partial: bool = False,
) -> Path:
    """Verify a campaign and make the archive of it; returns its path.

    It holds what the manifests list, the campaign's own files, its summary and its table of experiments, and what describes them
    all (RO-Crate); the report and its plots follow from those.

    Args:
        path: the campaign's folder, or an archive of it.
        out: the archive, a new file ending in ``.tar.xz``; None: beside ``path``, named like the campaign.
        citation: who made it and on what terms; None: nobody says.
        resolution_ns: condense it: instants are rounded to this, in a form that packs well; None: every file as it is.
        say: told what a reader of the set should know, e.g. that experiments are missing.
        partial: publish what is finished of a campaign that is not.

    Raises:
        ResultsPathError: the folder is no campaign, or holds more than an archive may.
        UsageError: the campaign is not finished, ``out`` has another ending, or an archive was condensed to another resolution.
        VerificationError: a file is not what its manifest says, or nothing is finished.
        ConflictError: ``out`` exists, or the campaign runs.
        StorageError: a file cannot be read or written.
    """
    with opened(path) as folder:
        campaign = folder.resolve()
        out = out or path.resolve().with_name(campaign.name + SUFFIX)
        if not out.name.endswith(SUFFIX):
            raise UsageError(f"{out} does not end in {SUFFIX}.", advice=f"E.g. --out {campaign.name}{SUFFIX}")
        if not (campaign / layout.CAMPAIGN_JSON).is_file():
            raise ResultsPathError(
                f"{campaign} is no campaign folder: it holds no {layout.CAMPAIGN_JSON}.",
                advice="Give the folder of a campaign below results/, or a published set.",
            )
        _refuse_unfinished(campaign, partial=partial)
        verified = verify_campaign(campaign)
        verified.refuse()
        for note in verified.notes:
            say(note)
        with tempfile.TemporaryDirectory(prefix="harness-") as temporary:
            files = _files(campaign, Path(temporary), resolution_ns)
            files |= _described(campaign, files, Path(temporary), citation or Citation())
            try:
                pack({f"{campaign.name}/{name}": content for name, content in files.items()}, out, bounds=bounds)
            except StorageError as error:
                advice = "Give another place with --out, or free some space."
                raise StorageError(error.message, advice=advice) from error
    return out


def _refuse_unfinished(campaign: Path, *, partial: bool) -> None:
    """Raise ConflictError for a campaign that runs, and UsageError where experiments are left to run and nobody said ``partial``."""
    status = campaign_status(campaign)
    if status.running:
        raise ConflictError(
            f"{campaign} is running: more experiments are to come.",
            advice=f"Publish it when it has ended: harness status {campaign}",
        )
    if status.done < len(status.experiments) and not partial:
        raise UsageError(
            f"{campaign} is not finished: {status.done} of {len(status.experiments)} experiments are.",
            advice=f"Go on with it: harness resume {campaign}; or publish what is finished, with --partial.",
        )


def _files(campaign: Path, into: Path, resolution_ns: int | None) -> dict[str, Path]:
    """What is published but for what describes it, by its name below the campaign's folder."""
    files = {name: campaign / name for name in _OF_THE_CAMPAIGN if (campaign / name).is_file()}
    for folder in layout.experiment_folders(campaign):
        if resolution_ns is None:
            found = {name: folder / name for name in (layout.MANIFEST, *read_manifest(folder).files)}
        else:
            found = condense(folder, into / folder.name, resolution_ns)
        files |= {f"{folder.name}/{name}": path for name, path in found.items()}
    return files


def _described(campaign: Path, files: dict[str, Path], into: Path, citation: Citation) -> dict[str, Path]:
    """Write the table of experiments and what describes the files; returns their paths by name.

    Of one campaign and citation always the same bytes: nothing here says when it was published.
    """
    from harness.analysis import campaign_table
    from harness.analysis.campaign import analyse
    from harness.analysis.comparability import environment

    analysis = analyse(campaign)
    manifests = [experiment.data.manifest for experiment in analysis.experiments]
    description = analysis.spec.description if analysis.spec else ""
    rounded_ns = {
        made.resolution_ns
        for name, path in files.items()
        if name.endswith(layout.MANIFEST) and (made := read_manifest(path.parent).condensed)
    }
    about = About(
        name=campaign.name,
        description=" ".join(
            [description or f"Measurements of the campaign {campaign.name}.", *map(_ROUNDED.format, rounded_ns)]
        ),
        begun=layout.iso(min(manifest.start_s for manifest in manifests)),
        ended=layout.iso(
            max(each.data.manifest.start_s + max(0, each.data.duration_s) for each in analysis.experiments)
        ),
        version=manifests[0].provenance.software.harness,
        facts=environment(manifests),
        citation=citation,
    )
    described = {layout.CAMPAIGN_PARQUET: into / layout.CAMPAIGN_PARQUET, RO_CRATE: into / RO_CRATE}
    with storage_errors(into):
        described[layout.CAMPAIGN_PARQUET].write_bytes(campaign_table.to_parquet(analysis))
        entries = {
            name: FileEntry(sha256=sha256_of(path), bytes=path.stat().st_size)
            for name, path in {**files, layout.CAMPAIGN_PARQUET: described[layout.CAMPAIGN_PARQUET]}.items()
        }
        described[RO_CRATE].write_text(ro_crate(about, entries), encoding="utf-8")
    return described
