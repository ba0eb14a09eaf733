"""What does each mode cost? Every mode against one replica that has the GPU to itself, and against the other modes."""

from __future__ import annotations

from harness.analysis.campaign import Cell
from harness.analysis.compare import Comparison, Line, relative
from harness.analysis.comparison_model import Answer, Asked, cells, counts, missing_modes
from harness.analysis.contrasts.comparison import Place, Pool
from harness.analysis.format import number, ratio_interval, replicas_in_words, times
from harness.analysis.pages.table import Entry, Table, figure_entry, ratio_entry
from harness.analysis.statistics import Estimate

_FULLNESS = {"gpu_utilization": "GPU busy", "gpu_sm_active": "SM active"}


def answer(pool: Pool, comparison: Comparison, _asked: Asked) -> Answer:
    """Throughput and latency of every mode and count, and what differs significantly."""
    rows: list[list[str | Entry]] = []
    measured = {name for *_, cell in cells(pool) for name in cell.estimates}
    fullness = [name for name in _FULLNESS if name in measured or name == "gpu_utilization"]
    for workload, setup, count, cell in cells(pool):
        alone = pool.gpu_alone(setup, workload)
        rows.append(
            [
                workload,
                setup.label,
                str(count),
                figure_entry(cell.estimates.get("throughput"), "req/s", cell.absent.get("throughput", "")),
                _against(cell, alone, "throughput"),
                figure_entry(cell.estimates.get("latency_p50_exact"), "s", cell.absent.get("latency_p50_exact", "")),
                figure_entry(cell.estimates.get("latency_p99_exact"), "s", cell.absent.get("latency_p99_exact", "")),
                _against(cell, alone, "latency_p99_exact"),
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
        _sentences(pool, comparison),
        Table.of(headers, rows, words=3),
        missing=missing_modes(pool),
    )


def _against(cell: Cell, alone: tuple[Cell, str] | None, measure: str) -> Entry:
    if alone is None:
        return ratio_entry(None, "one replica alone was not measured")
    if alone[0] is cell:
        return Entry("1", reason="")
    return ratio_entry(relative(cell, alone[0], measure), cell.absent.get(measure, "not measured alone"))


def _sentences(pool: Pool, comparison: Comparison) -> list[str]:
    found = []
    for workload in pool.workloads():
        many = counts(pool, workload)[-1]
        parts = []
        for setup in pool.setups:
            cell, alone = setup.cells.get(Place(workload, many)), pool.gpu_alone(setup, workload)
            if cell is None or cell.paced or alone is None or cell is alone[0]:
                continue
            gain = relative(cell, alone[0], "throughput")
            if gain is not None:
                parts.append(
                    f"{times(gain)} under {setup.label}, so each works at {_share(gain, many)} of its speed alone"
                )
        if parts:
            found.append(
                f"{workload}: {replicas_in_words(many)} together serve, against one alone, {'; '.join(parts)}."
            )
        found += [
            _versus(line)
            for line in comparison.lines
            if line.place.workload == workload and line.measure == "throughput"
        ]
    return found


def _versus(line: Line) -> str:
    """One comparison in words, whatever its outcome."""
    head = (
        f"{line.place.workload}, {replicas_in_words(line.place.replicas)}: throughput under {line.b} against {line.a}"
    )
    if line.difference.significant is None or line.ratio is None:
        return f"{head}: {line.difference.sentence}."
    return f"{head}: {line.difference.sentence} (ratio {_ratio(line.ratio)})."


def _ratio(estimate: Estimate) -> str:
    interval = ratio_interval(estimate)
    return number(estimate.mean) + (f", 95 % interval {interval}" if interval else "")


def _share(gain: Estimate, replicas: int) -> str:
    return f"{100 * gain.mean / replicas:.0f} %"
