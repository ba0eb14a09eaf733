"""How well does it isolate? Fairness between replicas, and what neighbours do to the slow end of latency."""

from __future__ import annotations

from harness.analysis.campaign import Cell
from harness.analysis.comparison_model import Answer, ComparisonQuery
from harness.analysis.contrasts.comparison import Arm, CellKey, Comparison
from harness.analysis.format import times
from harness.analysis.pages.table import Entry, Table, figure_entry, ratio_entry
from harness.analysis.statistics import Estimate

_FAIR = 0.9


def answer(comparison: Comparison, _query: ComparisonQuery) -> Answer:
    """Fairness, Jain's index, and p99 beside others against p99 alone."""
    shared = [found for found in comparison.cells() if found[2] > 1]
    rows: list[list[str | Entry]] = [
        [
            workload,
            arm.label,
            str(count),
            figure_entry(_capped(cell.estimates.get("fairness")), "", cell.absent.get("fairness", "")),
            figure_entry(_capped(cell.estimates.get("jain")), "", cell.absent.get("jain", "")),
            ratio_entry(_growth(comparison, arm, cell), "no p99 alone or beside others"),
            figure_entry(cell.estimates.get("latency_p99_worst"), "s", cell.absent.get("latency_p99_worst", "")),
        ]
        for workload, arm, count, cell in shared
    ]
    headers = [
        "Workload",
        "Run as",
        "Replicas",
        "Slowest / fastest",
        "Jain",
        "p99 against alone",
        "p99 of the worst replica",
    ]
    missing = [] if shared else ["More than one replica in `replicas` would tell how they share."]
    return Answer(
        "isolation",
        "How well does it isolate?",
        "Perfect isolation is a p99 that company does not change (1 against alone) and replicas that all get the same "
        "(slowest over fastest and Jain's index 1).",
        [sentence for workload in comparison.workloads() for sentence in _sentences(comparison, workload)],
        Table.of(headers, rows, words=3) if rows else None,
        missing=missing + comparison.missing_modes(),
    )


def _growth(comparison: Comparison, arm: Arm, cell: Cell) -> Estimate | None:
    alone = comparison.gpu_alone(arm, cell.workload)
    if alone is None or alone[0] is cell:
        return None
    contrast = comparison.contrasts.of(alone[0], cell, "latency_p99_exact")
    return contrast.ratio if contrast else None


def _sentences(comparison: Comparison, workload: str) -> list[str]:
    many = comparison.counts(workload)[-1]
    found = []
    for arm in comparison.arms:
        cell = arm.cells.get(CellKey(workload, many))
        if cell is None or many == 1:
            continue
        fairness, growth = cell.estimates.get("fairness"), _growth(comparison, arm, cell)
        parts = []
        if growth is not None:
            parts.append(f"p99 is {times(growth)} what it is alone")
        if fairness is not None and not cell.paced:
            fair = "fair" if fairness.mean >= _FAIR else "unfair"
            parts.append(f"the slowest replica serves {100 * fairness.mean:.1f} % of what the fastest does ({fair})")
        if parts:
            found.append(f"{workload} under {arm.label}, {many} replicas: {'; '.join(parts)}.")
    return found


def _capped(estimate: Estimate | None) -> Estimate | None:
    """An index that cannot exceed 1 has no interval beyond it."""
    if estimate is None or estimate.half_width is None or estimate.low is None:
        return estimate
    half = min(estimate.half_width, max(estimate.mean - estimate.low, 0.0))
    return Estimate(estimate.mean, estimate.mean - half, min(1.0, estimate.mean + half), estimate.n, estimate.cv)
