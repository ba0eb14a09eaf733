"""A folder of metric CSVs from a Prometheus server, in the form that a recording leaves."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from harness.errors import ConflictError, NoDataError, ResultsPathError, UsageError
from harness.metrics.catalogue import Metric, select
from harness.metrics.prometheus.client import PrometheusServer
from harness.metrics.prometheus.exporter import export, query_pool
from harness.metrics.prometheus.series import natural
from harness.metrics.prometheus.telemetry import collect_telemetry
from harness.metrics.promql import Dialect, PrometheusSource, ReplicaGroup, cluster, local
from harness.results.files import atomic_write, read_object, storage_errors, sync_folder
from harness.results.layout import PROMETHEUS, TELEMETRY
from harness.results.manifest import read_manifest
from harness.results.writers import ExperimentWriter

EXPORT_JSON = "export.json"
_PARTIAL = ".partial"
MIN_STEP_S = 0.001
MAX_STEPS = 10_000_000
AT_ONCE = 2
"""Windows collected at a time: while the server works on the questions of one, the answers of the other are written."""


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """What to export from where.

    Attributes:
        start: ISO-8601 with a zone; floored to the step.
        namespace: of the pods, in a cluster; None: ``job`` names a scrape job without one.
        by: label that tells replicas apart, without a cluster.
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


@dataclass(frozen=True, slots=True)
class RecordedWindow:
    """What to collect: which replicas, which grid, which metrics.

    Attributes:
        replicas: label values, in the order of ``replica-0``...
        start_s: grid time of row 0, seconds since the epoch.
        on_gpus: the dialect selects the GPUs in use, whose telemetry is collected, too.
    """

    workload: str
    dialect: Dialect
    replicas: Sequence[str]
    start_s: float
    rows: int
    step_s: float
    window_s: float
    metrics: Sequence[Metric]
    neighbours: Sequence[ReplicaGroup] = ()
    on_gpus: bool = False


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
    if request.step_s < MIN_STEP_S or request.duration_s > MAX_STEPS * request.step_s:
        raise UsageError(
            f"{request.duration_s:g} s in steps of {request.step_s:g} s cannot be exported: a step has {MIN_STEP_S:g} s or more, "
            f"and an export at most {MAX_STEPS:,} of them.",
            advice="Choose a longer step, or a shorter duration.",
        )
    start_s = math.floor(_start_s(request.start) / request.step_s) * request.step_s
    steps = request.duration_s / request.step_s
    if not math.isclose(steps, round(steps), abs_tol=1e-6):
        raise UsageError(
            f"a step of {request.step_s:g} s does not divide {request.duration_s:g} s.",
            advice="Choose a duration of whole steps.",
        )
    _refuse_existing(request.out)
    with PrometheusServer(request.url, timeout_s=request.timeout_s) as server:
        replicas = _replicas(server, dialect, start_s, request)
        window = RecordedWindow(
            request.workload, dialect, replicas, start_s, round(steps) + 1, request.step_s, request.window_s, metrics
        )
        return collect(server, request.out, window)


def collect_each(wanted: Sequence[tuple[PrometheusServer, Path, RecordedWindow]]) -> list[dict[str, Any]]:
    """Collect windows into a folder each, as ``collect`` does, with no more queries at once than one alone asks.

    Raises what ``collect`` raises, for the first of them that failed; those before it are whole by then.
    """
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="collect") as windows, query_pool() as pool:
        pending = [windows.submit(collect, *window, pool=pool) for window in wanted]
        try:
            return [window.result() for window in pending]
        except BaseException:
            windows.shutdown(wait=False, cancel_futures=True)
            raise


def collect(
    server: PrometheusServer, out: Path, window: RecordedWindow, *, pool: ThreadPoolExecutor | None = None
) -> dict[str, Any]:
    """Collect one window: one CSV per metric, the GPUs' telemetry, and ``export.json``, whose content is returned.

    The folder appears whole.

    Raises:
        ConflictError: the folder exists.
        PrometheusError: the server refused, timed out or answered with an error.
        StorageError: the folder cannot be written.
    """
    _refuse_existing(out)
    partial = out.with_name(out.name + _PARTIAL)
    with storage_errors(out):
        shutil.rmtree(partial, ignore_errors=True)  # of a collector that was killed
    try:
        document = _collect_into(server, partial, window, pool)
        with storage_errors(out):
            partial.rename(out)
            sync_folder(out.parent)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return document


def _collect_into(
    server: PrometheusServer, folder: Path, window: RecordedWindow, pool: ThreadPoolExecutor | None
) -> dict[str, Any]:
    with ExperimentWriter(
        folder,
        workload=window.workload,
        replicas=len(window.replicas),
        metrics=[metric.name for metric in window.metrics],
        start_s=window.start_s,
        step_s=window.step_s,
    ) as writer:
        summary = export(
            server,
            metrics=window.metrics,
            dialect=window.dialect,
            start_s=window.start_s,
            rows=window.rows,
            step_s=window.step_s,
            window_s=window.window_s,
            sink=writer,
            replicas=window.replicas,
            neighbours=window.neighbours,
            pool=pool,
        )
    document = dataclasses.asdict(summary)
    if window.on_gpus:
        telemetry = collect_telemetry(
            folder / TELEMETRY,
            server,
            window.dialect,
            start_s=summary.start_s,
            end_s=summary.end_s,
            interval_s=window.step_s,
            pool=pool,
        )
        document["telemetry"] = telemetry.to_dict()
    atomic_write(folder / EXPORT_JSON, json.dumps(document, indent=2) + "\n")
    return document


def recorded_window(folder: Path) -> tuple[PrometheusSource, RecordedWindow]:
    """The window of a finished experiment, by its manifest, and where its metrics are.

    Raises:
        ResultsPathError: ``folder`` is no experiment, or one that no Prometheus recorded.
    """
    manifest, origin = read_manifest(folder), read_source(folder)
    spec = manifest.experiment
    return origin, RecordedWindow(
        workload=spec.workload.name,
        dialect=origin.dialect(),
        replicas=origin.pods,
        start_s=manifest.start_s,
        rows=manifest.rows,
        step_s=spec.timing.step_s,
        window_s=spec.timing.window_s,
        metrics=select(spec.metrics),
        neighbours=origin.neighbour_replicas(),
        on_gpus=origin.on_gpus,
    )


def save_source(folder: Path, origin: PrometheusSource) -> None:
    """Write it into an attempt's folder. Raises StorageError, ConflictError when there is one."""
    atomic_write(folder / PROMETHEUS, json.dumps(origin.to_dict(), indent=2) + "\n")


def read_source(folder: Path) -> PrometheusSource:
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
    return PrometheusSource.from_dict(read_object(path))


def _refuse_existing(out: Path) -> None:
    if out.exists():
        raise ConflictError(f"{out} exists already and results are never overwritten.", advice="Choose another folder.")


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
