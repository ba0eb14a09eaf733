"""The analysis as plain tables: ``summary.csv`` for a spreadsheet, ``summary.json`` for a program."""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import io
import itertools
import json
import lzma
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.analysis.axes import families
from harness.analysis.campaign import CampaignAnalysis, Cell, ConfigurationKey, MeasuredRun
from harness.analysis.format import with_interval
from harness.analysis.goodput import bests
from harness.analysis.metrics.catalogue import ALL, METRICS, OF_CONFIGURATIONS, STREAM_HEADLINE
from harness.analysis.pages.table import Column, Table
from harness.analysis.questions.condition_overhead import Interference, Overhead, interference
from harness.analysis.statistics import Estimate, Outcome
from harness.errors import ResultsPathError, StorageError, printable
from harness.results.files import storage_errors
from harness.results.layout import CAMPAIGN_JSON, REPORT_SUMS, SUMMARY_CSV
from harness.results.published import SUFFIX
from harness.spec.sharing import ON_CPU, mode_in_words

FORMAT = 2
CELL = ConfigurationKey._fields
_HEAD = (*CELL, "verdict")
HEADLINE = ("throughput", "latency_p50_exact", "latency_p99_exact", "energy", *STREAM_HEADLINE)
COLUMNS = (
    *("workload", "sharing", "replicas"),
    *("measure", "unit", "mean", "ci95_low", "ci95_high", "cv", "runs", "verdict", "reason"),
    *("condition", "mps_limits", "time_slice", "device"),
    *("load", "load_unit"),
)
"""``device`` is ``CPU`` where no replica was on a GPU, so that its sharing mode shared none; else empty. ``load`` is of a sweep."""


def table(analysis: CampaignAnalysis) -> Table:
    """One line per configuration and metric; what is missing has its reason and no number."""
    rows = []
    for cell in analysis.cells:
        key = cell.key
        for name, unit, estimate in _lines(cell):
            numbers: list[float | None] = [None, None, None, None, 0]
            if estimate is not None:
                numbers = [estimate.mean, estimate.low, estimate.high, estimate.cv, estimate.n]
            reason = cell.absent.get(name, "no run can be used") if estimate is None else estimate.note
            device = ON_CPU if cell.mode == ON_CPU else ""
            load = (cell.load.value, cell.load.unit) if cell.load else ("", "")
            head = (key.workload, key.sharing, key.replicas, name, unit)
            setting = (key.condition, key.mps_limits, key.time_slice, device, *load)
            rows.append([*head, *numbers, cell.badge, reason, *setting])
    return Table([Column(name) for name in COLUMNS], rows)


def to_json(analysis: CampaignAnalysis) -> str:
    """The same, with every experiment's own figures, verdict and damage."""
    document = {
        "format": FORMAT,
        "campaign": analysis.name,
        "planned": analysis.planned,
        "unfinished": [dataclasses.asdict(item) for item in analysis.unfinished],
        "overheads": _overheads(interference(analysis)),
        "settings": [family.to_dict() for family in families(analysis)],
        "goodput": [best.to_dict() for best in bests(analysis.spec, analysis.stress_series)],
        "cells": [_cell_document(cell) for cell in analysis.cells],
        "experiments": [_experiment_document(experiment) for experiment in analysis.experiments],
    }
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def headline(analysis: CampaignAnalysis) -> list[dict[str, Any]]:
    """The few figures of each cell that a terminal has room for, or the reasons why there are none; as in ``to_json``."""
    return [
        {name: cell[name] for name in _HEAD}
        | {kind: {name: cell[kind][name] for name in HEADLINE if name in cell[kind]} for kind in ("measures", "absent")}
        for cell in map(_cell_document, analysis.cells)
    ]


def _lines(cell: Cell) -> Iterator[tuple[str, str, Estimate | None]]:
    for name in (*METRICS, *cell.own, "speed_up", "efficiency"):
        yield name, (ALL.get(name) or OF_CONFIGURATIONS[name]).unit, cell.estimates.get(name)


def _cell_document(cell: Cell) -> dict[str, Any]:
    lines = [(name, unit, estimate) for name, unit, estimate in _lines(cell) if estimate is not None]
    return {
        **cell.key._asdict(),
        **({"load": cell.load.model_dump(mode="json")} if cell.load else {}),
        "verdict": cell.badge,
        "runs": [experiment.name for experiment in cell.used],
        "left_out": [experiment.name for experiment in cell.experiments if not experiment.used],
        "planned": cell.planned,
        "measures": {name: {"unit": unit, **dataclasses.asdict(estimate)} for name, unit, estimate in lines},
        "absent": cell.absent,
    }


def _experiment_document(run: MeasuredRun) -> dict[str, Any]:
    return {
        "experiment": run.name,
        "verdict": run.data.manifest.verdict.model_dump(mode="json"),
        "used": run.used,
        "damage": run.damage,
        "figures": run.figures,
        "absent": run.absent,
        "replica_throughput": run.replica_throughput,
        "gpu_use": run.gpu_use.to_dict() if run.gpu_use else {"absent": run.gpu_use_absent},
        "throughput_within_run": run.within and dataclasses.asdict(run.within),
        "steady": run.steady and dataclasses.asdict(run.steady),
        "loads": run.loads,
        "notes": run.notes,
    }


def _overheads(interference: Interference | None) -> list[dict[str, Any]]:
    """One object per configuration, condition and metric."""
    if interference is None:
        return []
    about = {"baseline": interference.baseline, "limit_percent": interference.limit_percent}
    return [
        {**key._asdict(), **about, "measure": name, **_overhead(overhead)}
        for key, by_metric in interference.overheads.items()
        for name, overhead in by_metric.items()
    ]


def _overhead(overhead: Overhead | str) -> dict[str, Any]:
    if isinstance(overhead, str):
        return {"outcome": Outcome.INCONCLUSIVE.value, "why": overhead}
    return {
        "pairs": list(overhead.kept),
        "ratio": dataclasses.asdict(overhead.contrast.ratio),
        "p": overhead.contrast.corrected_p,
        "percent": dataclasses.asdict(overhead.percent),
        "outcome": overhead.outcome.value,
        "why": overhead.why,
    }


@dataclass(frozen=True, slots=True)
class Index:
    """What the campaigns in a folder measured: a row of texts per configuration, and why a campaign or archive is not there."""

    rows: list[dict[str, str]]
    refused: dict[str, str]

    @property
    def table(self) -> Table:
        """By workload and campaign, then the most requests per second first."""
        columns = [
            Column("workload", words=True),
            Column("sharing", words=True),
            Column("replicas"),
            Column("condition", words=True),
            *(Column(title, name) for title, name, _ in _INDEXED),
            Column("runs"),
            Column("verdict", words=True),
            Column("campaign", words=True),
        ]
        return Table(columns, [[row[column.key] for column in columns] for row in self.rows]).without_empty()


_INDEXED = (("requests/s", "throughput", ""), ("exact p99", "latency_p99_exact", "s"), ("J/req", "energy", ""))
"""Column of the index, metric, and the unit that is shown with it."""
_LARGEST, _LARGEST_SUMMARY = 2**32, 2**24
"""Bytes of an archive that are looked through for its summary."""


def index(folder: Path) -> Index:
    """All campaigns and published sets directly in a folder, as their summaries say; none is measured again.

    Raises ResultsPathError where it is no folder or holds no campaign with a summary, StorageError where it cannot be read.
    """
    with storage_errors(folder, "read"):
        paths = sorted(folder.iterdir()) if folder.is_dir() else []
        campaigns = [path for path in paths if path.name.endswith(SUFFIX) or (path / CAMPAIGN_JSON).is_file()]
    listed = Index([], {})
    for path in campaigns:
        try:
            listed.rows.extend(_index_rows(path))
        except (ValueError, KeyError, EOFError, tarfile.TarError, lzma.LZMAError, StorageError) as error:
            listed.refused[path.name] = f"its {SUMMARY_CSV} cannot be read ({error})"
    if not listed.rows:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in listed.refused.items()) or "it holds none"
        raise ResultsPathError(
            f"{folder} has no campaign with a summary: {printable(reasons)}.",
            advice="Give the folder of campaigns or archives; `harness report` writes the summary of a campaign.",
        )
    listed.rows.sort(key=lambda row: (row["workload"], row["campaign"], -float(row["order"])))
    return listed


def _index_rows(path: Path) -> Iterator[dict[str, str]]:
    lines = list(csv.DictReader(io.StringIO(_summary_of(path).decode())))
    for key, group in itertools.groupby(lines, key=lambda line: [line.get(name, "") for name in CELL]):
        by_metric = {line["measure"]: line for line in group}
        first, cell = next(iter(by_metric.values())), dict(zip(CELL, key, strict=True))
        mode = mode_in_words(cell["sharing"], cell["mps_limits"], cell["time_slice"])
        row = {**cell, "sharing": first.get("device") or mode, "verdict": first["verdict"], "campaign": path.name}
        row["runs"] = by_metric.get("throughput", {}).get("runs", "")
        row["order"] = by_metric.get("throughput", {}).get("mean") or "0"
        for _, name, unit in _INDEXED:
            line = by_metric.get(name, {})
            mean, low, high = (float(line[end]) if line.get(end) else None for end in ("mean", "ci95_low", "ci95_high"))
            row[name] = "" if mean is None else with_interval(Estimate(mean, low, high, 1, None), unit)
        yield row


def _summary_of(path: Path) -> bytes:
    """``summary.csv`` of a campaign, whose report's hashes it must agree with; of an archive without unpacking it."""
    with storage_errors(path, "read"):
        if path.is_dir():
            content = (path / SUMMARY_CSV).read_bytes()
            sums = (path / REPORT_SUMS).read_text().split()
            if hashlib.sha256(content).hexdigest() not in sums:
                raise ValueError("it is not the one of the report; harness report writes it anew")
            return content
        with tarfile.open(path, "r|xz") as archive:
            for member in archive:
                if member.offset > _LARGEST:
                    break
                if member.name.count("/") == 1 and member.name.endswith(f"/{SUMMARY_CSV}") and member.isfile():
                    file = archive.extractfile(member)
                    return file.read(_LARGEST_SUMMARY) if file else b""
    raise ValueError("there is none")
