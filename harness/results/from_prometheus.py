"""A folder of metric CSVs from a Prometheus server, in the form that a recording leaves."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from harness.errors import ConflictError, NoDataError, UsageError
from harness.metrics.catalogue import select
from harness.metrics.prometheus.adapter import PrometheusServer
from harness.metrics.prometheus.exporter import export
from harness.metrics.prometheus.naming import natural
from harness.metrics.promql import Dialect, cluster, local
from harness.results.files import atomic_write
from harness.results.writers import ExperimentWriter

EXPORT_JSON = "export.json"


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """What to export from where.

    Attributes:
        start: ISO-8601 with a zone; floored to the step.
        namespace: of the pods, in a cluster; None: ``job`` names a scrape job without one.
        by: label that tells replicas apart, without a cluster.
        metrics: names in the catalogue; None: all.
    """

    url: str
    out: Path
    workload: str
    start: str
    duration_s: float
    step_s: float
    window_s: float
    namespace: str | None = None
    pods: str = ".+"
    job: str | None = None
    by: str = "instance"
    metrics: Sequence[str] | None = None
    timeout_s: float = 30.0


def export_folder(request: ExportRequest) -> dict[str, Any]:
    """Write one CSV per metric and ``export.json``; returns the summary that the latter holds.

    Raises:
        UsageError: the request contradicts itself.
        ConflictError: the folder exists.
        PrometheusError: the server refused, timed out or answered with an error.
        NoDataError: no replica matches.
        StorageError: the folder cannot be written.
    """
    dialect = _dialect(request)
    metrics = select(list(request.metrics) if request.metrics else "all")
    start_s = math.floor(_start_s(request.start) / request.step_s) * request.step_s
    steps = request.duration_s / request.step_s
    if not math.isclose(steps, round(steps), abs_tol=1e-6):
        raise UsageError(
            f"a step of {request.step_s:g} s does not divide {request.duration_s:g} s.",
            advice="Choose a duration of whole steps.",
        )
    if request.out.exists():
        raise ConflictError(
            f"{request.out} exists already and results are never overwritten.", advice="Choose another folder."
        )
    writer_options = {
        "workload": request.workload,
        "metrics": [m.name for m in metrics],
        "start_s": start_s,
        "step_s": request.step_s,
    }
    with PrometheusServer(request.url, timeout_s=request.timeout_s) as server:
        replicas = _replicas(server, dialect, start_s, request)
        with ExperimentWriter(request.out, replicas=len(replicas), **writer_options) as writer:  # type: ignore[arg-type]
            summary = export(
                server,
                metrics=metrics,
                dialect=dialect,
                start_s=start_s,
                rows=round(steps) + 1,
                step_s=request.step_s,
                window_s=request.window_s,
                sink=writer,
                replicas=replicas,
            )
    found = dataclasses.asdict(summary)
    atomic_write(request.out / EXPORT_JSON, json.dumps(found, indent=2) + "\n")
    return found


def _dialect(request: ExportRequest) -> Dialect:
    if (request.namespace is None) == (request.job is None):
        raise UsageError(
            "the export needs either a namespace (pods of a cluster) or a job (replicas without one).",
            advice="Give --namespace NAMESPACE --pods REGEX, or --job JOB.",
        )
    if request.namespace is not None:
        return cluster(request.namespace, request.pods)
    return local(str(request.job), by=request.by)


def _start_s(text: str) -> float:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"{text!r} is not an ISO-8601 time.", advice="E.g. 2026-01-31T12:00:00Z") from error
    if moment.tzinfo is None:
        raise UsageError(
            f"{text!r} has no time zone, so it names no moment.", advice="Add Z for UTC, or an offset such as +01:00."
        )
    return moment.timestamp()


def _replicas(server: PrometheusServer, dialect: Dialect, start_s: float, request: ExportRequest) -> list[str]:
    """Label values of the replicas that were there in the range; file names carry their number."""
    selector = f"inference_requests_total{{{dialect.replicas}}}"
    range_ms = max(round(request.duration_s * 1000), 1)
    query = f"group by ({dialect.by}) (last_over_time({selector}[{range_ms}ms]))"
    try:
        answer = server.query(query, start_s + request.duration_s)
    except NoDataError as error:
        raise NoDataError(
            f"{request.url} holds no series {selector} in that range.",
            advice="Check the selector, the times, and that the server scrapes the replicas (its page /targets).",
        ) from error
    return sorted((series.labels.get(dialect.by, "") for series in answer.series), key=natural)
