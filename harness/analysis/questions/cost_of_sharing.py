"""What does each mode cost? Every mode against one replica that has the GPU to itself, and against the other modes."""

from __future__ import annotations

from harness.analysis.campaign import Cell
from harness.analysis.comparison_model import Answer, ComparisonQuery
from harness.analysis.contrasts.comparison import CellKey, Comparison, Tested
from harness.analysis.contrasts.outcome import Outcome
from harness.analysis.format import number, ratio_interval, replicas_in_words, times
from harness.analysis.pages.table import Entry, Table, figure_entry, ratio_entry

_FULLNESS = {"gpu_utilization": "GPU busy", "gpu_sm_active": "SM active"}


def answer(comparison: Comparison, _query: ComparisonQuery) -> Answer:
    """Throughput and latency of every mode and count, and what differs significantly."""
    rows: list[list[str | Entry]] = []
    measured = {name for *_, cell in comparison.cells() for name in cell.estimates}
    fullness = [name for name in _FULLNESS if name in measured or name == "gpu_utilization"]
    for workload, arm, count, cell in comparison.cells():
        alone = comparison.gpu_alone(arm, workload)
        rows.append(
            [
                workload,
                arm.label,
                str(count),
                figure_entry(cell.estimates.get("throughput"), "req/s", cell.absent.get("throughput", "")),
                _against(comparison, cell, alone, "throughput"),
                figure_entry(cell.estimates.get("latency_p50_exact"), "s", cell.absent.get("latency_p50_exact", "")),
                figure_entry(cell.estimates.get("latency_p99_exact"), "s", cell.absent.get("latency_p99_exact", "")),
                _against(comparison, cell, alone, "latency_p99_exact"),
                *(figure_entry(cell.estimates.get(name), "%", cell.absent.get(name, "")) for name in fullness),
            ]
        )
    headers = [
        "Workload",
        "Run as",
        "Replicas",
        "Throughput",
        "throughput against alone",
        "p50",
        "p99",
        "p99 against alone",
        *(_FULLNESS[name] for name in fullness),
    ]
    return Answer(
        "cost",
        "What does each mode cost?",
        "Throughput is that of all replicas together. Alone is one replica with the GPU to itself: of the exclusive mode "
        "where it was measured, else one replica under the same mode.",
        _sentences(comparison),
        Table.of(headers, rows, words=3),
        missing=comparison.missing_modes(),
    )


def _against(comparison: Comparison, cell: Cell, alone: tuple[Cell, str] | None, measure: str) -> Entry:
    if alone is None:
        return ratio_entry(None, "one replica alone was not measured")
    if alone[0] is cell:
        return Entry("1", reason="")
    contrast = comparison.contrasts.of(alone[0], cell, measure)
    return ratio_entry(contrast.ratio if contrast else None, cell.absent.get(measure, "not measured alone"))


def _sentences(comparison: Comparison) -> list[str]:
    found = []
    for workload in comparison.workloads():
        many = comparison.counts(workload)[-1]
        parts = []
        for arm in comparison.arms:
            cell, alone = arm.cells.get(CellKey(workload, many)), comparison.gpu_alone(arm, workload)
            if cell is None or cell.paced or alone is None or cell is alone[0]:
                continue
            gain = comparison.contrasts.of(alone[0], cell, "throughput")
            if gain is not None:
                each = f"{100 * gain.ratio.mean / many:.0f} %"
                parts.append(f"{times(gain.ratio)} under {arm.label}, so each works at {each} of its speed alone")
        if parts:
            found.append(
                f"{workload}: {replicas_in_words(many)} together serve, against one alone, {'; '.join(parts)}."
            )
        found += [
            _versus(tested)
            for tested in comparison.tests
            if tested.key.workload == workload and tested.contrast.metric == "throughput"
        ]
    return found


def _versus(tested: Tested) -> str:
    """One comparison in words, whatever its outcome."""
    contrast, (workload, replicas) = tested.contrast, tested.key
    head = f"{workload}, {replicas_in_words(replicas)}: throughput under {tested.b} against {tested.a}"
    if contrast.outcome is Outcome.UNKNOWN:
        return f"{head}: {contrast.sentence}."
    interval = ratio_interval(contrast.ratio)
    ratio = number(contrast.ratio.mean) + (f", 95 % interval {interval}" if interval else "")
    return f"{head}: {contrast.sentence} (ratio {ratio})."
