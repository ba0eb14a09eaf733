"""Collect the CSVs of recorded experiments again, from the Prometheus that has their samples."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.campaign.folder import open_folder
from harness.errors import ResultsPathError
from harness.metrics.prometheus.client import PrometheusServer
from harness.metrics.promql import PrometheusSource
from harness.results import layout
from harness.results.files import storage_errors
from harness.results.from_prometheus import collect_each, recorded_window


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
        url: of the server that has the samples; None: the one that recorded them.
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
