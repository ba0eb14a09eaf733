"""The analysis as plain tables: ``summary.csv`` for a spreadsheet, ``summary.json`` for a program."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from collections.abc import Iterator
from typing import Any

from harness.analysis.campaign import CampaignAnalysis, Cell, Experiment
from harness.analysis.goodput import bests
from harness.analysis.interference_tables import documents
from harness.analysis.metrics.catalogue import ALL, METRICS, OF_CONFIGURATIONS
from harness.analysis.questions.condition_overhead import interference
from harness.analysis.statistics import Estimate

FORMAT = 2
_HEAD = ("workload", "sharing", "replicas", "condition", "mps_limits", "time_slice", "verdict")
HEADLINE = ("throughput", "latency_p50_exact", "latency_p99_exact", "energy")
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
)


def to_csv(analysis: CampaignAnalysis) -> str:
    """One line per cell and measure; what is missing has its reason and no number."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows([_cell(value) for value in row] for row in rows(analysis))
    return text.getvalue()


def rows(analysis: CampaignAnalysis) -> Iterator[tuple[str | float | None, ...]]:
    """The values of ``COLUMNS``, of every cell and measure; None where there is no number."""
    for cell in analysis.cells:
        for name, unit, estimate in _lines(cell):
            head = (cell.workload, cell.sharing, cell.replicas, name, unit)
            tail = (cell.condition, cell.key.mps_limits, cell.key.time_slice)
            if estimate is None:
                reason = cell.absent.get(name, "no run can be used")
                yield (*head, None, None, None, None, 0, cell.badge, reason, *tail)
                continue
            numbers = (estimate.mean, estimate.low, estimate.high, estimate.cv)
            yield (*head, *numbers, estimate.n, cell.badge, estimate.note, *tail)


def to_json(analysis: CampaignAnalysis) -> str:
    """The same, with every experiment's own figures, verdict and damage."""
    document = {
        "format": FORMAT,
        "campaign": analysis.name,
        "planned": analysis.planned,
        "unfinished": [dataclasses.asdict(item) for item in analysis.unfinished],
        "overheads": documents(interference(analysis)),
        "goodput": [each.to_dict() for each in bests(analysis.spec, analysis.ladders)],
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


def _experiment_document(experiment: Experiment) -> dict[str, Any]:
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


def _cell(value: str | float | None) -> str:
    return value if isinstance(value, str) else "" if value is None else repr(value)
