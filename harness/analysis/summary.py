"""The analysis as plain tables: ``summary.csv`` for a spreadsheet, ``summary.json`` for a program."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

from harness.analysis.campaign import CampaignAnalysis, Cell, Experiment
from harness.analysis.goodput import bests
from harness.analysis.metrics.catalogue import ALL, METRICS, OF_CONFIGURATIONS
from harness.analysis.pages.table import Column, Table
from harness.analysis.questions.condition_overhead import Interference, Outcome, Overhead, interference
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


def table(analysis: CampaignAnalysis) -> Table:
    """One line per configuration and metric; what is missing has its reason and no number."""
    return Table([Column(name) for name in COLUMNS], list(_rows(analysis)))


def _rows(analysis: CampaignAnalysis) -> Iterator[list[str | float | None]]:
    for cell in analysis.cells:
        for name, unit, estimate in _lines(cell):
            head = (cell.workload, cell.sharing, cell.replicas, name, unit)
            tail = (cell.condition, cell.key.mps_limits, cell.key.time_slice)
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


def _overheads(found: Interference | None) -> list[dict[str, Any]]:
    """One object per configuration, condition and metric."""
    if found is None:
        return []
    return [
        {
            **key._asdict(),
            "baseline": found.baseline,
            "limit_percent": found.limit_percent,
            "measure": name,
            **_overhead(overhead),
        }
        for key, by_metric in found.overheads.items()
        for name, overhead in by_metric.items()
    ]


def _overhead(overhead: Overhead | str) -> dict[str, Any]:
    if isinstance(overhead, str):
        return {"outcome": Outcome.NOT_DECIDABLE.value, "why": overhead}
    return {
        "pairs": overhead.pairs,
        "ratio": dataclasses.asdict(overhead.ratio),
        "percent": dataclasses.asdict(overhead.percent),
        "outcome": overhead.outcome.value,
        "why": overhead.why,
    }
