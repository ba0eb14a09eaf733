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
from harness.analysis.campaign import CampaignAnalysis, Cell, MeasuredRun
from harness.analysis.contrasts.outcome import Outcome
from harness.analysis.format import with_interval
from harness.analysis.goodput import bests
from harness.analysis.metrics.catalogue import ALL, METRICS, OF_CONFIGURATIONS, STREAM_HEADLINE
from harness.analysis.pages.table import Column, Table
from harness.analysis.questions.condition_overhead import Interference, Overhead, interference
from harness.analysis.statistics import Estimate
from harness.errors import ResultsPathError, StorageError, printable
from harness.results.files import storage_errors
from harness.results.layout import CAMPAIGN_JSON, REPORT_SUMS, SUMMARY_CSV
from harness.results.published import SUFFIX
from harness.spec.sharing import mode_in_words

FORMAT = 2
CELL = ("workload", "sharing", "replicas", "condition", "mps_limits", "time_slice")
_HEAD = ("workload", "sharing", "replicas", "condition", "mps_limits", "time_slice", "verdict")
HEADLINE = ("throughput", "latency_p50_exact", "latency_p99_exact", "energy", *STREAM_HEADLINE)
COLUMNS = (
    "workload",
    "sharing",
    "replicas",
    "measure",
    "unit",
    "mean",
    "ci95_low",
    "ci95_high",
    "cv",
    "runs",
    "verdict",
    "reason",
    "condition",
    "mps_limits",
    "time_slice",
    "device",
)
"""``device`` is ``CPU`` where no replica was on a GPU, so that its sharing mode shared none; else empty."""


def table(analysis: CampaignAnalysis) -> Table:
    """One line per configuration and metric; what is missing has its reason and no number."""
    return Table([Column(name) for name in COLUMNS], list(_rows(analysis)))


def _rows(analysis: CampaignAnalysis) -> Iterator[list[str | float | None]]:
    for cell in analysis.cells:
        for name, unit, estimate in _lines(cell):
            head = (cell.workload, cell.sharing, cell.replicas, name, unit)
            tail = (cell.condition, cell.key.mps_limits, cell.key.time_slice, "CPU" if cell.mode_shown == "CPU" else "")
            if estimate is None:
                reason = cell.absent.get(name, "no run can be used")
                yield [*head, None, None, None, None, 0, cell.badge, reason, *tail]
                continue
            numbers = (estimate.mean, estimate.low, estimate.high, estimate.cv)
            yield [*head, *numbers, estimate.n, cell.badge, estimate.note, *tail]


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
    cells = [_cell_document(cell) for cell in analysis.cells]
    return [
        {name: cell[name] for name in _HEAD}
        | {kind: {name: cell[kind][name] for name in HEADLINE if name in cell[kind]} for kind in ("measures", "absent")}
        for cell in cells
    ]


def _lines(cell: Cell) -> Iterator[tuple[str, str, Estimate | None]]:
    for name in (*METRICS, *cell.own):
        yield name, ALL[name].unit, cell.estimates.get(name)
    for name, estimate in (("speed_up", cell.speed_up), ("efficiency", cell.efficiency)):
        yield name, OF_CONFIGURATIONS[name].unit, estimate


def _cell_document(cell: Cell) -> dict[str, Any]:
    return {
        "workload": cell.workload,
        "sharing": cell.sharing,
        "replicas": cell.replicas,
        "condition": cell.condition,
        "mps_limits": cell.key.mps_limits,
        "time_slice": cell.key.time_slice,
        "verdict": cell.badge,
        "runs": [experiment.name for experiment in cell.used],
        "left_out": [experiment.name for experiment in cell.experiments if not experiment.used],
        "planned": cell.planned,
        "measures": {
            name: {"unit": unit, **dataclasses.asdict(estimate)}
            for name, unit, estimate in _lines(cell)
            if estimate is not None
        },
        "absent": cell.absent,
    }


def _experiment_document(experiment: MeasuredRun) -> dict[str, Any]:
    measured, manifest = experiment.measured, experiment.data.manifest
    return {
        "experiment": experiment.name,
        "verdict": manifest.verdict.model_dump(mode="json"),
        "used": experiment.used,
        "damage": experiment.damage,
        "figures": measured.figures,
        "absent": measured.absent,
        "replica_throughput": measured.replica_throughput,
        "throughput_within_run": None if measured.within is None else dataclasses.asdict(measured.within),
        "steady": None if measured.steady is None else dataclasses.asdict(measured.steady),
        "loads": {name: state.value for name, state in measured.loads.items()},
        "notes": measured.notes,
    }


def _overheads(interference: Interference | None) -> list[dict[str, Any]]:
    """One object per configuration, condition and metric."""
    if interference is None:
        return []
    return [
        {
            **key._asdict(),
            "baseline": interference.baseline,
            "limit_percent": interference.limit_percent,
            "measure": name,
            **_overhead(overhead),
        }
        for key, by_metric in interference.overheads.items()
        for name, overhead in by_metric.items()
    ]


def _overhead(overhead: Overhead | str) -> dict[str, Any]:
    if isinstance(overhead, str):
        return {"outcome": Outcome.NOT_DECIDABLE.value, "why": overhead}
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
    """What the campaigns in a folder measured.

    Attributes:
        rows: lines of their ``summary.csv``, one configuration's figures each, with ``campaign``.
        refused: name of a campaign or archive to the reason why it is not there.
    """

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

    Raises:
        ResultsPathError: it is no folder, or holds no campaign with a summary.
        StorageError: it cannot be read.
    """
    with storage_errors(folder, "read"):
        paths = sorted(folder.iterdir()) if folder.is_dir() else []
        campaigns = [path for path in paths if path.name.endswith(SUFFIX) or (path / CAMPAIGN_JSON).is_file()]
    table = Index([], {})
    for path in campaigns:
        try:
            table.rows.extend(_index_rows(path))
        except (ValueError, KeyError, EOFError, tarfile.TarError, lzma.LZMAError, StorageError) as error:
            table.refused[path.name] = f"its {SUMMARY_CSV} cannot be read ({error})"
    if not table.rows:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in table.refused.items()) or "it holds none"
        raise ResultsPathError(
            f"{folder} has no campaign with a summary: {printable(reasons)}.",
            advice="Give the folder of campaigns or archives; `harness report` writes the summary of a campaign.",
        )
    table.rows.sort(key=lambda row: (row["workload"], row["campaign"], -float(row["order"])))
    return table


def _index_rows(path: Path) -> Iterator[dict[str, str]]:
    lines = list(csv.DictReader(io.StringIO(_summary_of(path).decode())))
    for key, group in itertools.groupby(lines, key=lambda line: tuple(line.get(name, "") for name in CELL)):
        by_metric = {line["measure"]: line for line in group}
        known = {
            name: Estimate(float(line["mean"]), _float(line["ci95_low"]), _float(line["ci95_high"]), 1, None)
            for _, name, _ in _INDEXED
            if (line := by_metric.get(name)) and line["mean"]
        }
        first = next(iter(by_metric.values()))
        shown = {name: with_interval(known[name], unit) if name in known else "" for _, name, unit in _INDEXED}
        cell = dict(zip(CELL, key, strict=True))
        shown_mode = mode_in_words(cell["sharing"], cell["mps_limits"], cell["time_slice"])
        cell["sharing"] = first.get("device") or shown_mode
        rate = by_metric.get("throughput", {})
        yield (
            cell
            | shown
            | {
                "runs": rate.get("runs", ""),
                "verdict": first["verdict"],
                "campaign": path.name,
                "order": str(known["throughput"].mean if "throughput" in known else 0.0),
            }
        )


def _float(text: str) -> float | None:
    return float(text) if text else None


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
