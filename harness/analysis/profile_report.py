"""The report of a profile: one page that needs no network, a Markdown twin, the plots and a summary beside them."""

from __future__ import annotations

import csv
import json
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Any

import harness
from harness.analysis.pages.table import Column, Table, figure_entry
from harness.analysis.profile import CellProfile, ProfileAnalysis
from harness.analysis.profile_plots import curves, where_time_goes
from harness.analysis.report import PLOTS, REPORT_MD, environment
from harness.results.files import atomic_write, sha256_of, storage_errors
from harness.results.layout import REPORT_HTML, REPORT_SUMS, SUMMARY_JSON
from harness.results.profile import POINTS

LIMIT_PERCENT = 85.0
_TOP = 12
_KERNELS = "kernels.csv"
_TABLE = (
    ("throughput_inputs_per_s", "inputs/s", "Throughput"),
    ("latency_mean_s", "s", "Mean latency"),
    ("latency_p99_s", "s", "p99"),
    ("gpu_memory_peak_percent", "%", "GPU memory"),
    ("gpu_sm_active_percent", "%", "SM active"),
    ("gpu_dram_active_percent", "%", "DRAM active"),
    ("gpu_power_w", "W", "Power"),
    ("process_cpu_cores", "cores", "CPU"),
)
_LEARNT = (("loss_first", "", "First loss"), ("loss", "", "Loss"), ("accuracy", "", "Accuracy"))


def write_profile_report(analysis: ProfileAnalysis, out: Path | None = None) -> Path:
    """Write the report; one that is there already is replaced.

    Args:
        analysis: of the profile.
        out: folder to write into; None: the profile's.

    Returns:
        Path of ``report.html``.

    Raises:
        StorageError: a file cannot be written.
    """
    out = out or analysis.folder
    with storage_errors(out / REPORT_SUMS):
        (out / PLOTS).mkdir(parents=True, exist_ok=True)
        (out / REPORT_SUMS).unlink(missing_ok=True)  # Killed from here on, the report is one that was not finished.
    pictures = [picture for picture in (curves(analysis, LIMIT_PERCENT), where_time_goes(analysis)) if picture]
    columns = [*_TABLE, *(column for column in _LEARNT if any(column[0] in cell.estimates for cell in analysis.cells))]
    rows = [(cell, [_entry(cell, name, unit) for name, unit, _ in columns]) for cell in analysis.cells]
    content = {
        "analysis": analysis,
        "plan": analysis.manifest.plan,
        "pictures": pictures,
        "titles": [title for _, _, title in columns],
        "rows": rows,
        "settings": Table(
            [
                Column("Setting", words=True),
                *(Column(title, name) for name, _, title in columns),
                Column("What holds it back", words=True),
            ],
            [[cell.cell.name, *entries, cell.held_back] for cell, entries in rows],
            "Every setting with its figures",
        ),
        "kernels": _kernels(analysis),
        "command": shlex.join(analysis.manifest.plan.command),
        "version": harness.__version__,
    }
    templates = environment()
    files: dict[str, bytes | str] = {
        REPORT_HTML: templates.get_template("profile.html.j2").render(content),
        REPORT_MD: templates.get_template("profile.md.j2").render(content),
        SUMMARY_JSON: json.dumps(summary(analysis), indent=1) + "\n",
    }
    for picture in pictures:
        files[f"{PLOTS}/{picture.file}"] = picture.image
    for name, data in files.items():
        atomic_write(out / name, data, replace=True)
    with storage_errors(out, "read"):
        sums = "".join(f"{sha256_of(out / name)}  {name}\n" for name in files)
    atomic_write(out / REPORT_SUMS, sums, replace=True)
    return out / REPORT_HTML


def summary(analysis: ProfileAnalysis) -> dict[str, Any]:
    """The same as plain data: means and intervals in the units that the names say, and every finding."""
    cells = [
        {
            "cell": cell.cell.model_dump(mode="json"),
            "failure": cell.failure,
            "figures": {name: asdict(estimate) for name, estimate in cell.estimates.items()},
            "missing": dict(cell.missing),
            "bottleneck": None if cell.finding is None else asdict(cell.finding),
        }
        for cell in analysis.cells
    ]
    found = [curve.model_dump(mode="json") for curve in analysis.manifest.curves]
    return {
        "workload": analysis.manifest.plan.spec.workload.target,
        "answers": analysis.answers(),
        "cells": cells,
        "capacity": found,
    }


def _entry(cell: CellProfile, name: str, unit: str) -> Any:
    return figure_entry(cell.estimates.get(name), unit, cell.missing.get(name) or cell.failure or "not measured")


def _kernels(analysis: ProfileAnalysis) -> dict[str, list[list[str]]]:
    """The longest kernels of every point that was traced, as their tables have them."""
    found = {}
    for point in analysis.manifest.points:
        path = analysis.folder / POINTS / point.name / _KERNELS
        if path.is_file():
            with storage_errors(path, "read"), path.open(encoding="utf-8", newline="") as file:
                found[point.name] = list(csv.reader(file))[1 : _TOP + 1]
    return found
