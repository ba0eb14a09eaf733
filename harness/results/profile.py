"""The results of a profile: a folder for every point, one table of all of them, and a manifest with the hash of every file.

results/<profile>/
  plan.json                            what is measured, by which command, where
  points/<cell>-<repeat>/              appears by one rename when its process has ended
    figures.json  point.json  telemetry.csv  replica.log  (on request: trace.json.gz  kernels.csv)
  points.csv  profile.json  report.html  report.md  summary.json  plots/  report.sha256
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import Field, ValidationError

from harness.errors import ResultsPathError
from harness.metrics.throttling import power_capped
from harness.results.files import atomic_write, read_document, sha256_of, storage_errors
from harness.results.layout import from_iso
from harness.results.manifest import FileEntry, Provenance, content_digest
from harness.spec import KubernetesSpec
from harness.spec.faults import first_in_words
from harness.spec.model import StrictModel
from harness.spec.profile import ProfileCell, ProfileSpec

PLAN, MANIFEST, POINTS, POINTS_CSV = "plan.json", "profile.json", "points", "points.csv"
FIGURES, MEASURED, LOG = "figures.json", "point.json", "replica.log"
_CLOCK_S = 1e-3
"""Timestamps are in whole milliseconds."""
_NO_TRACE = (
    "kernel_busy_share",
    "copy_in_share",
    "copy_out_share",
    "idle_launch_share",
    "idle_sync_share",
    "idle_host_share",
    "kernels_per_request",
    "kernel_mean_s",
)
_TELEMETRY = {
    "gpu_utilization_percent": "utilization_percent",
    "gpu_power_w": "power_w",
    "gpu_sm_clock_mhz": "sm_clock_mhz",
    "gpu_sm_active_percent": "sm_active_percent",
    "gpu_sm_occupancy_percent": "sm_occupancy_percent",
    "gpu_tensor_active_percent": "tensor_active_percent",
    "gpu_dram_active_percent": "dram_active_percent",
    "gpu_pcie_received_bytes_per_s": "pcie_received_bytes_per_s",
}
"""Means over the window, by their column of the telemetry."""
_OUTCOME = ("loss_first", "loss_last", "loss", "accuracy")
COLUMNS = (
    "throughput_inputs_per_s",
    "latency_mean_s",
    "latency_p50_s",
    "latency_p99_s",
    "requests",
    "load_s",
    "warmup_s",
    "process_cpu_cores",
    "host_cpu_percent",
    *_TELEMETRY,
    "gpu_power_cap_share",
    "gpu_memory_peak_bytes",
    "gpu_memory_peak_percent",
    "gpu_memory_allocated_bytes",
    *_NO_TRACE,
    *_OUTCOME,
)
"""Every figure of a point, with its unit in the name."""
_P50_REQUESTS, _P99_REQUESTS = 3, 100

M = TypeVar("M", bound=StrictModel)


class Outcome(StrEnum):
    """How a point ended."""

    MEASURED = "measured"
    OUT_OF_MEMORY = "out of memory"
    REFUSED = "refused"
    FAILED = "failed"


class Point(StrictModel):
    """One process that measured one cell once.

    Attributes:
        cell: what ran.
        repeat: from 1.
        outcome: how it ended.
        message: why it was not measured; empty when it was.
        figures: by name with its unit; what was not measured is not there.
        missing: reasons, by figure.
        device: what it ran on.
    """

    cell: ProfileCell
    repeat: int = Field(ge=1)
    outcome: Outcome
    message: str = ""
    figures: dict[str, float] = Field(default_factory=dict)
    missing: dict[str, str] = Field(default_factory=dict)
    device: str = ""

    @property
    def name(self) -> str:
        """Of its folder."""
        return f"{self.cell.name}-{self.repeat}"


class Curve(StrictModel):
    """How far the batch of one series can be raised.

    Attributes:
        series: as ``ProfileCell.series`` names it.
        batch_size: that was found; None: none was.
        sentence: the answer.
        tried: every batch size on the way, in its order.
    """

    series: str
    batch_size: int | None
    sentence: str
    tried: list[int]


class Plan(StrictModel):
    """``plan.json``: written first.

    Attributes:
        provenance: of the machine that measures.
        kubernetes: the cluster on which a Job measures; None: this machine does.
    """

    schema_version: Literal[1] = 1
    name: str
    spec: ProfileSpec
    provenance: Provenance
    command: list[str]
    started_at: str
    kubernetes: KubernetesSpec | None = None


class ProfileManifest(StrictModel):
    """``profile.json``: written last."""

    plan: Plan
    points: list[Point]
    curves: list[Curve]
    files: dict[str, FileEntry]
    digest: str = ""


def read_plan(folder: Path) -> Plan:
    """Raises ResultsPathError when it is none of ours."""
    return _read(folder / PLAN, Plan)


def read_manifest(folder: Path) -> ProfileManifest:
    """The whole profile. Raises ResultsPathError where it is not finished or none of ours."""
    return _read(folder / MANIFEST, ProfileManifest)


def read_point(folder: Path) -> Point:
    """One finished point. Raises ResultsPathError."""
    return _read(folder / FIGURES, Point)


def _read(path: Path, model: type[M]) -> M:
    try:
        return model.model_validate_json(read_document(path))
    except ValidationError as error:
        raise ResultsPathError(
            f"{path} is no file of a profile of this harness: {first_in_words(error)}.",
            advice="Restore it from a backup.",
        ) from error


def write_manifest(folder: Path, plan: Plan, points: Sequence[Point], curves: Sequence[Curve]) -> None:
    """Write ``points.csv`` and ``profile.json``; those of an earlier run are replaced. Raises StorageError."""
    atomic_write(folder / POINTS_CSV, _table(points), replace=True)
    with storage_errors(folder, "read"):
        names = [PLAN, POINTS_CSV, *(str(path.relative_to(folder)) for path in _point_files(folder, points))]
        files = {
            name: FileEntry(sha256=sha256_of(folder / name), bytes=(folder / name).stat().st_size) for name in names
        }
    found = ProfileManifest(plan=plan, points=list(points), curves=list(curves), files=files)
    sealed = found.model_copy(update={"digest": content_digest(json.loads(found.model_dump_json()))})
    atomic_write(folder / MANIFEST, sealed.model_dump_json(indent=1) + "\n", replace=True)


def _point_files(folder: Path, points: Iterable[Point]) -> list[Path]:
    return sorted(path for point in points for path in (folder / POINTS / point.name).iterdir())


def _table(points: Iterable[Point]) -> str:
    """One line a point: what ran, how it ended, every figure or nothing, and why not."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    settings = ("batch_size", "precision", "execution", "size", "epochs", "samples")
    writer.writerow([*settings, "repeat", "outcome", *COLUMNS, "message"])
    for point in points:
        values = point.cell.model_dump(mode="json")
        figures = [repr(point.figures[name]) if name in point.figures else "" for name in COLUMNS]
        row = ["" if values[name] is None else values[name] for name in settings]
        writer.writerow([*row, point.repeat, point.outcome.value, *figures, point.message])
    return text.getvalue()


def figures_of(
    measured: Mapping[str, Any], telemetry: Path, provenance: Provenance, unread: Mapping[str, str]
) -> tuple[dict[str, float], dict[str, str]]:
    """The figures of a point, and the reasons for those that are missing.

    Args:
        measured: what its process wrote.
        telemetry: the series beside it.
        provenance: of this machine.
        unread: what the driver did not give, as a column of the telemetry, with the reason.
    """
    wall_s, requests = float(measured["wall_s"]), int(measured["requests"])
    figures = {
        "throughput_inputs_per_s": measured["inputs"] / wall_s,
        "latency_mean_s": sum(measured["latencies_s"]) / requests,
        "requests": float(requests),
        "load_s": float(measured["load_s"]),
        "warmup_s": float(measured["warmup_s"]),
        "process_cpu_cores": measured["cpu_s"] / wall_s,
    }
    figures |= {name: float(value) for name in _OUTCOME if (value := measured["outcome"].get(name)) is not None}
    missing = dict.fromkeys(_OUTCOME, "the workload says nothing of it")
    latencies = sorted(measured["latencies_s"])
    for name, share, fewest in (("latency_p50_s", 0.5, _P50_REQUESTS), ("latency_p99_s", 0.99, _P99_REQUESTS)):
        if requests >= fewest:
            figures[name] = latencies[min(int(share * requests), requests - 1)]
        else:
            missing[name] = f"it takes {fewest} requests, and there were {requests}"
    _add_telemetry(figures, missing, measured, telemetry, provenance, unread)
    _add_memory(figures, missing, measured["memory"])
    _add_trace(figures, missing, measured["trace"], wall_s / requests)
    return figures, {name: reason for name, reason in missing.items() if name not in figures}


def _add_telemetry(
    figures: dict[str, float],
    missing: dict[str, str],
    measured: Mapping[str, Any],
    telemetry: Path,
    provenance: Provenance,
    unread: Mapping[str, str],
) -> None:
    rows = _rows_within(telemetry, *measured["window_s"])
    gpu, absent = _gpu_of(measured["described"], provenance)
    wanted = {"host_cpu_percent": "host_cpu_percent"}
    wanted |= {name: f"gpu{gpu}_{column}" for name, column in _TELEMETRY.items()}
    for name, column in wanted.items():
        values = [float(row[column]) for row in rows if row.get(column)]
        if absent and name in _TELEMETRY:
            missing[name] = absent
        elif values:
            figures[name] = sum(values) / len(values)
        else:
            few = f"no reading lies within the {measured['wall_s']:.2g} s that were measured"
            missing[name] = unread.get(column, few)
    masks = [float(row[f"gpu{gpu}_throttle_reasons"]) for row in rows if row.get(f"gpu{gpu}_throttle_reasons")]
    if masks and not absent:
        figures["gpu_power_cap_share"] = power_capped(masks)
    else:
        reason = unread.get(f"gpu{gpu}_throttle_reasons", "the driver did not say why the clock was what it was")
        missing["gpu_power_cap_share"] = absent or reason


def _rows_within(telemetry: Path, begin_s: float, end_s: float) -> list[dict[str, str]]:
    """Readings whose interval lies within the window; they are averages since the reading before."""
    with storage_errors(telemetry, "read"), telemetry.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    times = [from_iso(row["timestamp"]) for row in rows]
    return [
        row
        for row, before_s, time_s in zip(rows[1:], times, times[1:], strict=False)
        if before_s >= begin_s - _CLOCK_S and time_s <= end_s + _CLOCK_S
    ]


def _gpu_of(described: Mapping[str, Any], provenance: Provenance) -> tuple[int, str]:
    """Place of the workload's GPU in the telemetry, and why there is none."""
    if described.get("device") == "cpu":
        return 0, "the workload ran on the CPU"
    if not provenance.gpus:
        return 0, provenance.gpus_absent or "there is no GPU"
    uuids = [gpu.uuid for gpu in provenance.gpus]
    if described.get("device_uuid") in uuids:
        return uuids.index(str(described["device_uuid"])), ""
    if len(uuids) == 1:
        return 0, ""
    return 0, f"the workload does not say on which of {len(uuids)} GPUs it ran (device_uuid of describe())"


def _add_memory(figures: dict[str, float], missing: dict[str, str], memory: Mapping[str, int]) -> None:
    names = ("gpu_memory_peak_bytes", "gpu_memory_peak_percent", "gpu_memory_allocated_bytes")
    if not memory:
        missing |= dict.fromkeys(names, "the workload does not use torch on a GPU")
        return
    values = (memory["used"], 100 * memory["used"] / memory["total"], memory["allocated_peak"])
    figures |= {name: float(value) for name, value in zip(names, values, strict=True)}


def _add_trace(figures: dict[str, float], missing: dict[str, str], trace: Mapping[str, Any], request_s: float) -> None:
    """Shares of a request's time as it was without the profiler, which slows the host and not the GPU."""
    if "absent" in trace:
        missing |= dict.fromkeys(_NO_TRACE, str(trace["absent"]))
        return
    busy = {name: trace[f"{name}_s"] / request_s for name in ("kernel", "copy_in", "copy_out")}
    scale = max(sum(busy.values()), 1.0)  # of requests that differ in length, those traced may be the longer ones
    idle = {name: float(trace[f"{name}_s"]) for name in ("launch", "sync", "host")}
    left = max(1.0 - sum(busy.values()), 0.0) / (sum(idle.values()) or 1.0)
    figures["kernel_busy_share"] = busy["kernel"] / scale
    figures |= {f"{name}_share": busy[name] / scale for name in ("copy_in", "copy_out")}
    figures |= {f"idle_{name}_share": idle[name] * left for name in idle}
    figures["kernels_per_request"] = float(trace["kernels"])
    figures["kernel_mean_s"] = trace["kernel_s"] / trace["kernels"]
