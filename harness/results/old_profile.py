"""Reads what ``harness profile`` left before a profile was a campaign: plan.json, profile.json and a folder for every point.

Figures come under the names and in the units that the metrics of a campaign have.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.errors import ResultsPathError, UsageError
from harness.results.files import read_object, storage_errors

PLAN, MANIFEST, POINTS = "plan.json", "profile.json", "points"
_KERNELS, _TOP = "kernels.csv", 12
_MEASURED = "measured"
_AXES = {"batch_size": "batch_size", "precision": "precision", "execution": "execution", "size": "model_size"}
_AXES |= {"epochs": "epochs", "samples": "samples"}
_METRICS = {
    "throughput_inputs_per_s": "inputs",
    "latency_mean_s": "latency_mean",
    "latency_p50_s": "latency_p50_exact",
    "latency_p99_s": "latency_p99_exact",
    "process_cpu_cores": "cpu_usage",
    "gpu_utilization_percent": "gpu_utilization",
    "gpu_power_w": "gpu_power",
    "gpu_sm_active_percent": "gpu_sm_active",
    "gpu_power_cap_share": "gpu_power_capped",
}
"""What has another name now; everything else kept its own."""


@dataclass(frozen=True, slots=True)
class OldPoint:
    """One process that measured one setting once; ``failure`` says why it did not, ``kernels`` are those that ran longest."""

    name: str
    values: Mapping[str, Any]
    figures: Mapping[str, float]
    missing: Mapping[str, str]
    failure: str
    kernels: list[list[str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class OldProfile:
    """The whole: what ran, where, its points, how far the batch could be raised in sentences; hash and bytes of its files."""

    folder: Path
    name: str
    workload: str
    gpus: str
    started_at: str
    points: list[OldPoint]
    capacity: list[str]
    files: dict[str, tuple[str, int]]


def is_old_profile(folder: Path) -> bool:
    """Whether it is one, finished or not."""
    return (folder / PLAN).is_file()


def refuse_to_resume(folder: Path) -> None:
    """Raise UsageError for one: what measured it is gone."""
    if is_old_profile(folder):
        raise UsageError(
            f"{folder} is a profile of an earlier version, which this one reads and does not go on with.",
            advice="Measure it again: harness profile WORKLOAD. What is finished there: harness report",
        )


def read_old_profile(folder: Path) -> OldProfile:
    """Read a finished one. Raises ResultsPathError, StorageError."""
    content = read_object(folder / MANIFEST)
    try:
        plan = content["plan"]
        workload, provenance = plan["spec"]["workload"], plan["provenance"]
        return OldProfile(
            folder=folder,
            name=str(plan["name"]),
            workload=str(workload.get("factory") or workload.get("model") or workload["name"]),
            gpus=", ".join(str(gpu["name"]) for gpu in provenance["gpus"]) or f"No GPU ({provenance['gpus_absent']})",
            started_at=str(plan["started_at"]),
            points=[_point(folder, point) for point in content["points"]],
            capacity=[f"{curve['series']}: {curve['sentence']}" for curve in content["curves"]],
            files={name: (str(entry["sha256"]), int(entry["bytes"])) for name, entry in content["files"].items()},
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ResultsPathError(
            f"{folder / MANIFEST} is not a profile file of this harness: {error}.", advice="Restore it from a backup."
        ) from error


def _point(folder: Path, point: Mapping[str, Any]) -> OldPoint:
    values = {new: point["cell"][old] for old, new in _AXES.items() if point["cell"].get(old) is not None}
    marks = {"batch_size": "b{}", "epochs": "e{}", "samples": "s{}"}
    name = "-".join(marks.get(axis, "{}").format(value) for axis, value in values.items())
    figures = {_METRICS.get(key, key): float(value) for key, value in point["figures"].items()}
    if "gpu_power_capped" in figures:
        figures["gpu_power_capped"] *= 100
    if "inputs" in figures:
        figures["throughput"] = figures["inputs"] / values["batch_size"]
    missing = {_METRICS.get(key, key): str(reason) for key, reason in point["missing"].items()}
    failure = "" if point["outcome"] == _MEASURED else f"{point['outcome']}: {point['message']}"
    return OldPoint(name, values, figures, missing, failure, _kernels(folder, f"{name}-{point['repeat']}"))


def _kernels(folder: Path, name: str) -> list[list[str]]:
    path = folder / POINTS / name / _KERNELS
    if not path.is_file():
        return []
    with storage_errors(path, "read"), path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))[1 : _TOP + 1]
