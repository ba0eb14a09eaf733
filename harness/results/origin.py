"""``prometheus.json``: which Prometheus recorded an experiment, so that its window can be collected again."""

from __future__ import annotations

import json
from pathlib import Path

from harness.errors import ResultsPathError
from harness.metrics.prometheus.recording_target import Origin
from harness.results.files import atomic_write, read_object, storage_errors
from harness.results.layout import PROMETHEUS


def save_origin(folder: Path, origin: Origin) -> None:
    """Write it into an attempt's folder. Raises StorageError, ConflictError when there is one."""
    atomic_write(folder / PROMETHEUS, json.dumps(origin.to_dict(), indent=2) + "\n")


def read_origin(folder: Path) -> Origin:
    """Where the experiment in ``folder`` was recorded.

    Raises:
        ResultsPathError: it does not say; an experiment of local processes has no server to ask.
        UsageError: it says something else.
    """
    path = folder / PROMETHEUS
    with storage_errors(path, "read"):
        if not path.is_file():
            raise ResultsPathError(
                f"{folder} holds no {PROMETHEUS}: it was not recorded by a Prometheus server.",
                advice="Only experiments on a cluster can be collected again; local ones lie in their files alone.",
            )
    return Origin.from_dict(read_object(path))
