"""How well does it isolate? Fairness between replicas, and what company does to the slow end of latency."""

from __future__ import annotations

from harness.analysis.campaign import Cell
from harness.analysis.compare import Comparison, relative
from harness.analysis.comparison_model import Answer, Asked, cells, counts, missing_modes
from harness.analysis.contrasts.comparison import Place, Pool, Setup
from harness.analysis.format import times
from harness.analysis.pages.table import Entry, Table, figure_entry, ratio_entry
from harness.analysis.statistics import Estimate

_FAIR = 0.9


def answer(pool: Pool, _comparison: Comparison, _asked: Asked) -> Answer:
    """Fairness, Jain's index, and p99 beside others against p99 alone."""
    shared = [found for found in cells(pool) if found[2] > 1]
    rows: list[list[str | Entry]] = [
        [
            workload,
            setup.label,
            str(count),
            figure_entry(_capped(cell.estimates.get("fairness")), "", cell.absent.get("fairness", "")),
            figure_entry(_capped(cell.estimates.get("jain")), "", cell.absent.get("jain", "")),
            ratio_entry(_growth(pool, setup, cell), "no p99 alone or beside others"),
            figure_entry(cell.estimates.get("latency_p99_worst"), "s", cell.absent.get("latency_p99_worst", "")),
        ]
        for workload, setup, count, cell in shared
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
        [sentence for workload in pool.workloads() for sentence in _sentences(pool, workload)],
        Table.of(headers, rows, words=3) if rows else None,
        missing=missing + missing_modes(pool),
    )


def _growth(pool: Pool, setup: Setup, cell: Cell) -> Estimate | None:
    alone = pool.gpu_alone(setup, cell.workload)
    return None if alone is None else relative(cell, alone[0], "latency_p99_exact")


def _sentences(pool: Pool, workload: str) -> list[str]:
    many = counts(pool, workload)[-1]
    found = []
    for setup in pool.setups:
        cell = setup.cells.get(Place(workload, many))
        if cell is None or many == 1:
            continue
        fairness, growth = cell.estimates.get("fairness"), _growth(pool, setup, cell)
        parts = []
        if growth is not None:
            parts.append(f"p99 is {times(growth)} what it is alone")
        if fairness is not None and not cell.paced:
            fair = "fair" if fairness.mean >= _FAIR else "unfair"
            parts.append(f"the slowest replica serves {100 * fairness.mean:.1f} % of what the fastest does ({fair})")
        if parts:
            found.append(f"{workload} under {setup.label}, {many} replicas: {'; '.join(parts)}.")
    return found


def _capped(estimate: Estimate | None) -> Estimate | None:
    """An index that cannot exceed 1 has no interval beyond it."""
    if estimate is None or estimate.half_width is None or estimate.low is None:
        return estimate
    half = min(estimate.half_width, max(estimate.mean - estimate.low, 0.0))
    return Estimate(estimate.mean, estimate.mean - half, min(1.0, estimate.mean + half), estimate.n, estimate.cv)
