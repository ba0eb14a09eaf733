"""The tables of a campaign: by number of replicas, of overheads and neighbours, of goodput, and the short one of a terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from harness.analysis.campaign import CampaignAnalysis, Cell, load_state
from harness.analysis.comparability import places, spread
from harness.analysis.contrasts.comparison import Comparison
from harness.analysis.format import DASH, TIMES, number, percent, whole_interval, with_interval
from harness.analysis.goodput import Best
from harness.analysis.metrics.catalogue import ALL, METRICS, OF_CONFIGURATIONS, STREAM_HEADLINE, exact_of
from harness.analysis.pages.table import Column, Entry, Table, absent, figure_entry, ratio_entry
from harness.analysis.questions.condition_overhead import JUDGED, OF_NEIGHBOURS, Interference, Overhead
from harness.analysis.statistics import Estimate, Outcome
from harness.errors import counted

_LATENCIES = ("p50_exact", "mean", "p90_exact", "p95_exact")
_FIRST = ("throughput", "latency_p99_exact")
_MORE = ("speed_up", "efficiency", "fairness", "cv", "inputs", *(f"latency_{name}" for name in _LATENCIES))
_ON_GPU, _MORE_ON_GPU = ("energy",), ("gpu_utilization", "gpu_memory", "cpu_psi")
_ON_CPU, _MORE_ON_CPU = ("cpu_usage",), ("memory_usage", "cpu_psi")
_SM_ACTIVE = "gpu_sm_active"
_RATIOS = {"speed_up", "efficiency"}
_LOADS = {"cpu_psi", "gpu_utilization"}


def scaling_tables(analysis: CampaignAnalysis, workload: str) -> list[Table]:
    """A workload's configurations by number of replicas: first figures, further ones, and what this one publishes besides."""
    cells = [cell for cell in analysis.cells if cell.workload == workload]
    own = list(dict.fromkeys(name for cell in cells for name in cell.own if exact_of(name) not in ALL))
    return [_scaling_table(analysis, workload, cells, names) for names in (*_scaling_metrics(analysis), own) if names]


def _scaling_metrics(analysis: CampaignAnalysis) -> tuple[list[str], list[str]]:
    """Those that a reader wants first, and the others."""
    measured = {name for cell in analysis.cells for name in cell.estimates}
    on_gpu = bool(measured & {*_ON_GPU, *_MORE_ON_GPU[:2], _SM_ACTIVE})
    first = [*_FIRST, *(_ON_GPU if on_gpu else _ON_CPU)]
    more = [*_MORE, *(_MORE_ON_GPU if on_gpu else _MORE_ON_CPU)]
    if _SM_ACTIVE in measured:
        more[more.index("gpu_utilization")] = _SM_ACTIVE  # The other is 100% as soon as some kernel always runs.
    if all(experiment.data.manifest.inputs_per_request == 1 for experiment in analysis.experiments):
        more.remove("inputs")  # The same number twice.
    return first, more


def _scaling_table(analysis: CampaignAnalysis, workload: str, cells: Sequence[Cell], names: Sequence[str]) -> Table:
    has_modes = len({cell.sharing for cell in analysis.cells}) > 1 or any(
        cell.key.mps_limits or cell.key.time_slice for cell in analysis.cells
    )
    has_places = any(len(places(run.data.manifest)) > 1 for run in analysis.experiments)
    columns: list[tuple[Column, Callable[[Cell], object]]] = [
        (Column("Replicas", "replicas"), lambda cell: cell.replicas)
    ]
    if has_modes:
        columns.append((Column("Sharing", "sharing", words=True), lambda cell: cell.mode))
    if any(cell.condition for cell in analysis.cells):
        columns.append((Column("Condition", "condition", words=True), lambda cell: cell.condition))
    if has_places:
        columns.append(
            (Column("Where", "where", words=True), lambda cell: spread(run.data.manifest for run in cell.used))
        )
    if tuple(names[:1]) == _FIRST[:1]:
        columns.append((Column("Verdict", "verdict", words=True), lambda cell: Entry("", badge=cell.badge)))
    else:
        runs = Column("Runs", "runs")
        columns.append((runs, lambda cell: f"{len(cell.used)}{f'/{cell.planned}' if cell.planned else ''}"))
    for name in names:
        heading = (OF_CONFIGURATIONS.get(name) or ALL[name]).heading
        columns.append((Column(heading, name), partial(_scaling_entry, name=name)))
    rows = [[value(cell) for _, value in columns] for cell in cells]
    return Table([column for column, _ in columns], rows, f"{workload} against the number of replicas")


def _scaling_entry(cell: Cell, name: str) -> Entry:
    estimate, unit = _estimate(cell, name)
    if estimate is None:
        return absent(cell.absent.get(name, "it takes two runs that can be used"))
    if name in _RATIOS:
        return ratio_entry(estimate, unit=unit)
    few = name in cell.estimates and estimate.n < len(cell.used)
    remarks = [
        f"{load_state(estimate.mean)}" if name in _LOADS else "",
        f"of {counted(estimate.n, 'run')}" if few else "",
    ]
    return figure_entry(estimate, unit.replace("requests/s", "req/s"), remarks=remarks)


def _estimate(cell: Cell, name: str) -> tuple[Estimate | None, str]:
    """What a column shows of a configuration, and its unit."""
    estimate = cell.estimates.get(name)
    if name == "speed_up":
        return estimate, TIMES
    if name == "efficiency":
        return estimate and estimate.scaled(100), "%"
    if name == "cv":
        throughput = cell.estimates.get("throughput")
        spread = throughput.cv if throughput else None
        return None if spread is None else Estimate(100 * spread, None, None, 1, None), "%"
    return estimate, ALL[name].shown_unit


def overhead_table(interference: Interference) -> Table:
    """How much worse each condition is than the baseline, with its outcome."""
    columns = [
        Column("Condition", words=True),
        Column("Workload", words=True),
        Column("Replicas"),
        Column("Sharing", words=True),
        Column("Pairs"),
        *(Column(METRICS[name].title, name) for name in JUDGED),
    ]
    rows: list[list[object]] = []
    for key, by_metric in interference.overheads.items():
        pairs = max(
            (len(overhead.kept) for overhead in by_metric.values() if isinstance(overhead, Overhead)), default=0
        )
        entries = [_overhead_entry(by_metric[name]) for name in JUDGED]
        rows.append([key.condition, key.workload, key.replicas, interference.modes[key], pairs, *entries])
    return Table(columns, rows, f"Overhead of each condition against {interference.baseline}")


def _overhead_entry(overhead: Overhead | str) -> Entry:
    if isinstance(overhead, str):
        return Entry(DASH, reason=overhead, badge=Outcome.INCONCLUSIVE.value)
    interval = whole_interval(overhead.percent)
    return Entry(
        f"{number(overhead.percent.mean)}%",
        (interval,) if interval else (),
        overhead.why if overhead.outcome is Outcome.INCONCLUSIVE else "",
        overhead.percent.mean,
        overhead.outcome.value,
    )


def neighbour_table(interference: Interference) -> Table:
    """The workloads that ran beside the measured one."""
    columns = [
        Column("Condition", words=True),
        Column("Beside", words=True),
        Column("Neighbour", words=True),
        Column("Replicas"),
        *(Column(METRICS[name].title, name) for name in OF_NEIGHBOURS),
    ]
    rows: list[list[object]] = [
        [
            cell.key.condition,
            f"{cell.key.workload} r{cell.key.replicas} {interference.modes[cell.key]}",
            cell.workload,
            cell.replicas,
            *(
                figure_entry(cell.estimates.get(name), METRICS[name].shown_unit, cell.absent.get(name, ""))
                for name in OF_NEIGHBOURS
            ),
        ]
        for cell in interference.neighbours
    ]
    return Table(columns, rows, "What ran beside")


def goodput_table(best: Sequence[Best]) -> Table:
    """The highest goodput of each ladder, without the columns that nobody asked for or that hold nothing."""

    def plain(estimate: Estimate | None) -> str:
        return with_interval(estimate, "").strip() if estimate else ""

    rows = [
        {
            "workload": ladder.workload,
            "sharing": ladder.mode,
            "servers": str(ladder.servers),
            "each/s": number(ladder.rate) if ladder.rate else "",
            "goodput/s": plain(ladder.goodput),
            "limit": ladder.limit,
            "J/1,000 tokens": plain(ladder.energy_j),
            "cost/million tokens": plain(ladder.cost),
        }
        for ladder in best
    ]
    kept = Table.of(rows, len(rows[0]), "Highest goodput within the objective").without_empty()
    return Table(kept.columns, [[cell or DASH for cell in row] for row in kept.rows], kept.caption)


def table_of_tests(comparison: Comparison) -> Table:
    """Every comparison with its tests."""
    columns = [
        Column("Workload", words=True),
        Column("Replicas"),
        *(Column(title, words=True) for title in ("Metric", "Of", "Against")),
        Column("Difference"),
        Column("Answer", words=True),
        Column("p, Holm"),
    ]
    rows = []
    for key, a, b, contrast in comparison.tests:
        p = DASH if contrast.corrected_p is None else f"{contrast.corrected_p:.2g}"
        change, interval = percent(contrast.ratio)
        entry = Entry(change, (interval,) if interval else (), value=contrast.ratio.mean)
        metric = OF_CONFIGURATIONS.get(contrast.metric) or ALL[contrast.metric]
        rows.append([key.workload, key.replicas, metric.heading, b, a, entry, contrast.sentence, p])
    return Table(columns, rows, "Every comparison with its tests")


_SHORT = (("p50 ms", "latency_p50_exact", 1e3), ("p99 ms", "latency_p99_exact", 1e3), ("J/req", "energy", 1.0))
"""Column, metric, and what its unit is multiplied by."""
_STREAMS = tuple((" ".join(name.split("_")[:2]), name, 1e3) for name in STREAM_HEADLINE)


def short_tables(analysis: CampaignAnalysis) -> list[Table]:
    """A line per configuration for a terminal, then those of streams."""
    energies = any("energy" in cell.estimates for cell in analysis.cells)
    columns = [column for column in _SHORT if energies or column[1] != "energy"]
    streams = [cell for cell in analysis.cells if any(name in cell.estimates for name in STREAM_HEADLINE)]
    caption = "Streams in ms, as the client measured every token:"
    first = _short_table(analysis.cells, columns, speed=True)
    return [first, *([_short_table(streams, _STREAMS, caption=caption)] if streams else [])]


def _short_table(
    cells: Sequence[Cell], columns: Sequence[tuple[str, str, float]], *, speed: bool = False, caption: str = ""
) -> Table:
    rows = []
    for cell in cells:
        row = {"workload": cell.workload, "sharing": cell.mode, "replicas": str(cell.replicas)}
        row["condition"] = cell.condition
        rate = cell.estimates.get("throughput")
        row |= {"requests/s": with_interval(rate, "") if rate else DASH} if speed else {}
        for title, name, scale in columns:
            row[title] = number(scale * cell.estimates[name].mean) if name in cell.estimates else DASH
        rows.append(row | ({"verdict": cell.badge} if speed else {}))
    return Table.of(rows, 2, caption).without_empty()
