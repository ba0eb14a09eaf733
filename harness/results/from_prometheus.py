"""A folder of metric CSVs from a Prometheus server, in the form that a recording leaves."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
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
from harness.results.layout import PROMETHEUS, TELEMETRY, from_iso
from harness.results.manifest import read_manifest
from harness.results.writers import ExperimentWriter

EXPORT_JSON = "export.json"
_PARTIAL = ".partial"
MIN_STEP_S = 0.001
MAX_STEPS = 10_000_000
AT_ONCE = 2
"""Windows collected at a time: while the server works on the questions of one, the answers of the other are written."""


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


def export_folder(
    out: Path,
    server: PrometheusServer,
    dialect: Dialect,
    *,
    workload: str,
    start: str,
    duration_s: float,
    step_s: float,
    window_s: float,
    metrics: Sequence[str] | None,
) -> dict[str, Any]:
    """Write one CSV per metric (None: of all) and ``export.json``, whose content is returned, of the replicas that are there.

    ``start`` is ISO-8601 with a zone, and is floored to the step.

    Raises UsageError where the window cannot be, ConflictError where the folder exists, PrometheusError (NoDataError where no
    replica matches), StorageError.
    """
    chosen = select(list(metrics) if metrics else "all")
    if step_s < MIN_STEP_S or duration_s > MAX_STEPS * step_s:
        raise UsageError(
            f"{duration_s:g} s in steps of {step_s:g} s cannot be exported: a step has {MIN_STEP_S:g} s or more, "
            f"and an export at most {MAX_STEPS:,} of them.",
            advice="Choose a longer step, or a shorter duration.",
        )
    try:
        start_s = math.floor(from_iso(start) / step_s) * step_s
    except ValueError as error:
        advice = "Write it as 2026-01-31T12:00:00Z, or with an offset such as +01:00."
        raise UsageError(f"{start!r} is not an ISO-8601 time with a time zone.", advice=advice) from error
    steps = duration_s / step_s
    if not math.isclose(steps, round(steps), abs_tol=1e-6):
        raise UsageError(
            f"a step of {step_s:g} s does not divide {duration_s:g} s.", advice="Choose a duration of whole steps."
        )
    _refuse_existing(out)
    replicas = _replicas(server, dialect, start_s, duration_s)
    rows = round(steps) + 1
    return collect(server, out, RecordedWindow(workload, dialect, replicas, start_s, rows, step_s, window_s, chosen))


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

    The folder appears whole. Raises as ``export_folder`` does.
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
    """The window of a finished experiment, by its manifest, and where its metrics are; raises as ``read_source``."""
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
    """Where the experiment in ``folder`` was recorded; raises ResultsPathError where no Prometheus recorded it."""
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


def dialect_of(namespace: str | None, pods: str, job: str | None, by: str) -> Dialect:
    """How replicas are named: as pods of a cluster, or by a scrape job and the label ``by``. Raises UsageError."""
    if namespace is not None and job is None:
        return cluster(namespace, pods)
    if job is not None and namespace is None:
        return local(job, by=by)
    raise UsageError(
        "the export needs either a namespace (pods of a cluster) or a job (replicas without one).",
        advice="Give --namespace NAMESPACE --pods REGEX, or --job JOB.",
    )


def _replicas(server: PrometheusServer, dialect: Dialect, start_s: float, duration_s: float) -> list[str]:
    """Label values of the replicas that were there in the range; file names carry their number."""
    selector = f"inference_requests_total{{{dialect.replicas}}}"
    range_ms = max(round(duration_s * 1000), 1)
    query = f"group by ({dialect.by}) (last_over_time({selector}[{range_ms}ms]))"
    try:
        answer = server.query(query, start_s + duration_s)
    except NoDataError as error:
        raise NoDataError(
            f"{server} holds no series {selector} in that range.",
            advice="Check the selector, the times, and that the server scrapes the replicas (its page /targets).",
        ) from error
    return sorted((series.labels.get(dialect.by, "") for series in answer.series), key=natural)
