"""Collect recorded experiments again: their CSVs, or everything that Prometheus knows of their time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from harness.campaign.folder import open_folder
from harness.errors import ResultsPathError
from harness.metrics.prometheus.adapter import PrometheusServer
from harness.metrics.prometheus.recording_target import Origin
from harness.results import layout
from harness.results.archive import EVERYTHING, Archive, archive
from harness.results.files import storage_errors
from harness.results.from_prometheus import collect_each, recorded_window

ARCHIVES = "archive"


def experiments_in(path: Path) -> list[Path]:
    """The finished experiments of a campaign, or the one that ``path`` is. Raises ResultsPathError."""
    if (path / layout.MANIFEST).is_file():
        return [path]
    if not path.is_dir():
        raise ResultsPathError(f"{path} is not a folder.", advice="Give the folder of a campaign or an experiment.")
    with storage_errors(path, "read"):
        found = list(layout.experiment_folders(path))
    if not found:
        raise ResultsPathError(
            f"{path} holds no finished experiment.", advice=f"See how far it has come: harness status {path}"
        )
    return found


def collect_again(source: Path, out: Path, *, url: str | None, timeout_s: float) -> dict[str, dict[str, Any]]:
    """Export the windows of the experiments in ``source`` once more, into ``out``; returns the summaries by folder.

    Args:
        source: an experiment, whose CSVs come to lie in ``out``; or a campaign: in a folder each below it.
        out: new folder.
        url: of the server that has the samples; None: the one that recorded them.
        timeout_s: of one query.
    """
    folders = experiments_in(source)
    recorded = [recorded_window(folder) for folder in folders]
    targets = [out if folder == source else out / folder.name for folder in folders]
    with contextlib.ExitStack() as stack:
        servers: dict[str, PrometheusServer] = {}  # one for all that it recorded: each keeps connections open
        for folder, (origin, _) in zip(folders, recorded, strict=True):
            if origin.url not in servers:
                servers[origin.url] = stack.enter_context(_server(folder, origin, url, timeout_s))
        wanted = [
            (servers[origin.url], target, window) for target, (origin, window) in zip(targets, recorded, strict=True)
        ]
        return dict(zip(map(str, targets), collect_each(wanted), strict=True))


def archive_all(
    source: Path,
    out: Path | None,
    *,
    url: str | None,
    selectors: list[str] | None,
    timeout_s: float,
    say: Callable[[str], None],
) -> dict[str, Archive]:
    """Keep the samples of every experiment in ``source``; those that are kept already are left as they are.

    Args:
        source: a campaign or an experiment.
        out: folder of the archives; None: ``archive`` in the campaign's folder.
        url: of the server that has the samples; None: the one that recorded them.
        selectors: of the series; None: all.
        timeout_s: of one query.
        say: told how far it has come.
    """
    found = {}
    for folder in experiments_in(source):
        target = (out or folder.parent / ARCHIVES) / folder.name
        if target.exists() and folder != source:
            say(f"{target} is there already.")
            continue
        origin, window = recorded_window(folder)
        end_s = window.start_s + window.rows * window.step_s
        with _server(folder, origin, url, timeout_s) as server:
            say(f"{folder.name} from {server}")
            found[str(target)] = archive(
                server, target, window.start_s - window.window_s, end_s, selectors=selectors or [EVERYTHING], say=say
            )
    return found


@contextlib.contextmanager
def _server(folder: Path, origin: Origin, url: str | None, timeout_s: float) -> Iterator[PrometheusServer]:
    """The server given; else the one that recorded, reached as the campaign reached it."""
    if url is None and (folder.parent / layout.CAMPAIGN_JSON).is_file():
        spec = open_folder(folder.parent).spec.kubernetes
        if spec is not None:
            from harness.backends.kubernetes.client import KubernetesApi
            from harness.backends.kubernetes.prometheus import direct, server

            at, access = spec.prometheus_url, spec.prometheus_access
            recorded = direct(at, access) if at and not access.secret else server(KubernetesApi(spec), spec)
            with recorded.impatient(timeout_s) as its:
                yield its
                return
    with PrometheusServer(url or origin.url, timeout_s=timeout_s) as given:
        yield given
