"""What leaves a campaign's folder: a published set, verified, described and in one archive; and CSVs collected once more from Prometheus."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from harness.campaign.folder import open_folder
from harness.campaign.progress import campaign_status
from harness.campaign.verify import verify_campaign
from harness.errors import ConflictError, ResultsPathError, StorageError, UsageError
from harness.metrics.prometheus.client import PrometheusServer
from harness.metrics.promql import PrometheusSource
from harness.results import layout
from harness.results.files import storage_errors
from harness.results.from_prometheus import collect_each, recorded_window
from harness.results.manifest import FileEntry, read_manifest
from harness.results.published import SUFFIX, condense, opened, pack
from harness.results.ro_crate import RO_CRATE, About, Citation, ro_crate

_OF_THE_CAMPAIGN = (layout.CAMPAIGN_JSON, layout.CAMPAIGN_YAML, layout.STATE, layout.SUMMARY_CSV, layout.SUMMARY_JSON)

_ROUNDED = "Instants are rounded to {} ns."


def publish(
    path: Path,
    out: Path | None = None,
    *,
    citation: Citation | None = None,
    resolution_ns: int | None = None,
    say: Callable[[str], None] = lambda _note: None,
    partial: bool = False,
) -> Path:
    """Verify a campaign and make the archive of it (default: beside ``path``, named like the campaign); returns its path.

    It holds what the manifests list, the campaign's own files, its summary and its table of experiments, and what describes them
    all (RO-Crate). ``resolution_ns``: instants are rounded to this, in a form that packs well; None: every file as it is.

    Raises ResultsPathError, UsageError (not finished, or another ending), VerificationError, ConflictError (it runs) and StorageError.
    """
    with opened(path) as folder:
        campaign = folder.resolve()
        out = out or path.resolve().with_name(campaign.name + SUFFIX)
        if not out.name.endswith(SUFFIX):
            raise UsageError(f"{out} does not end in {SUFFIX}.", advice=f"E.g. --out {campaign.name}{SUFFIX}")
        _refuse_unfinished(campaign, partial=partial)
        verified = verify_campaign(campaign)
        verified.refuse()
        for note in verified.notes:
            say(note)
        with tempfile.TemporaryDirectory(prefix="harness-") as temporary:
            files = _files(campaign, Path(temporary), resolution_ns)
            files |= _described(campaign, files, Path(temporary), citation or Citation())
            try:
                pack({f"{campaign.name}/{name}": content for name, content in files.items()}, out)
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
            published = {name: folder / name for name in (layout.MANIFEST, *read_manifest(folder).files)}
        else:
            published = condense(folder, into / folder.name, resolution_ns)
        files |= {f"{folder.name}/{name}": path for name, path in published.items()}
    return files


def _described(campaign: Path, files: dict[str, Path], into: Path, citation: Citation) -> dict[str, Path]:
    """Write the table of experiments and what describes the files, always the same bytes; returns their paths by name."""
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
        ended=layout.iso(max(run.data.manifest.start_s + max(0, run.data.duration_s) for run in analysis.experiments)),
        version=manifests[0].provenance.software.harness,
        facts=environment(manifests),
        citation=citation,
    )
    described = {layout.CAMPAIGN_PARQUET: into / layout.CAMPAIGN_PARQUET, RO_CRATE: into / RO_CRATE}
    with storage_errors(into):
        described[layout.CAMPAIGN_PARQUET].write_bytes(campaign_table.to_parquet(analysis))
        entries = {
            name: FileEntry.of(path)
            for name, path in {**files, layout.CAMPAIGN_PARQUET: described[layout.CAMPAIGN_PARQUET]}.items()
        }
        described[RO_CRATE].write_text(ro_crate(about, entries), encoding="utf-8")
    return described


def experiments_in(path: Path) -> list[Path]:
    """The finished experiments of a campaign, or the one that ``path`` is. Raises ResultsPathError."""
    if (path / layout.MANIFEST).is_file():
        return [path]
    with storage_errors(path, "read"):
        folders = list(layout.experiment_folders(path)) if path.is_dir() else []
    if not folders:
        advice = f"Give the folder of a campaign or an experiment; how far one has come: harness status {path}"
        raise ResultsPathError(f"{path} holds no finished experiment.", advice=advice)
    return folders


def collect_again(source: Path, out: Path, *, url: str | None, timeout_s: float) -> dict[str, dict[str, Any]]:
    """Export the windows of the experiments in ``source`` once more, into ``out`` or a folder each below it; the summaries by folder.

    ``url``: of the server that has the samples; None: the one that recorded them.
    """
    folders = experiments_in(source)
    recorded = [recorded_window(folder) for folder in folders]
    targets = [out if folder == source else out / folder.name for folder in folders]
    with contextlib.ExitStack() as stack:
        servers: dict[str, PrometheusServer] = {}  # one for all that it recorded: each keeps connections open
        wanted = []
        for folder, target, (origin, window) in zip(folders, targets, recorded, strict=True):
            if origin.url not in servers:
                servers[origin.url] = stack.enter_context(_server(folder, origin, url, timeout_s))
            wanted.append((servers[origin.url], target, window))
        return dict(zip(map(str, targets), collect_each(wanted), strict=True))


@contextlib.contextmanager
def _server(folder: Path, origin: PrometheusSource, url: str | None, timeout_s: float) -> Iterator[PrometheusServer]:
    """The server given; else the one that recorded, reached as the campaign reached it."""
    if url is None and (folder.parent / layout.CAMPAIGN_JSON).is_file():
        spec = open_folder(folder.parent).spec.kubernetes
        if spec is not None:
            from harness.backends.kubernetes.api import KubernetesApi
            from harness.backends.kubernetes.monitoring import direct, server

            at, access = spec.prometheus_url, spec.prometheus_access
            recorded = direct(at, access) if at and not access.secret else server(KubernetesApi(spec), spec)
            with recorded.impatient(timeout_s) as its:
                yield its
                return
    with PrometheusServer(url or origin.url, timeout_s=timeout_s) as given:
        yield given
