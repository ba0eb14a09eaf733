"""The tables of a campaign: by number of replicas, of overheads and neighbours, of goodput, and the short one of a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis import placement
from harness.analysis.campaign import CampaignAnalysis, Cell
from harness.analysis.contrasts.outcome import Outcome
from harness.analysis.format import DASH, TIMES, clipped, number, ratio_interval, whole_interval, with_interval
from harness.analysis.goodput import Best
from harness.analysis.metrics.catalogue import ALL, METRICS, OF_CONFIGURATIONS, exact_of
from harness.analysis.metrics.measured import load_state
from harness.analysis.pages.table import Column, Entry, Table, absent, figure_entry
from harness.analysis.questions.condition_overhead import JUDGED, OF_NEIGHBOURS, Interference, Overhead
from harness.analysis.statistics import Estimate
from harness.errors import counted

_FIRST = ("throughput", "speed_up", "latency_p50_exact", "latency_p99_exact", "fairness")
_MORE = ("cv", "inputs", "efficiency", "latency_mean", "latency_p90_exact", "latency_p95_exact")
_ON_GPU, _MORE_ON_GPU = ("energy", "gpu_utilization"), ("gpu_memory", "cpu_psi")
_ON_CPU, _MORE_ON_CPU = ("cpu_usage", "memory_usage"), ("cpu_psi",)
_SM_ACTIVE = "gpu_sm_active"
_RATIOS = {"speed_up": TIMES, "efficiency": "%"}
_LOADS = {"cpu_psi", "gpu_utilization"}


def scaling_tables(analysis: CampaignAnalysis, workload: str) -> list[Table]:
    """A workload's configurations by number of replicas: first figures, further ones, and what this one publishes besides."""
    cells = [cell for cell in analysis.cells if cell.workload == workload]
    own = list(dict.fromkeys(name for cell in cells for name in cell.own if exact_of(name) not in ALL))
    return [_scaling_table(analysis, workload, cells, names) for names in (*_scaling_metrics(analysis), own) if names]


def _scaling_metrics(analysis: CampaignAnalysis) -> tuple[list[str], list[str]]:
    """Those that a reader wants first, and the others."""
    measured = {name for cell in analysis.cells for name in cell.estimates}
    on_gpu = bool(measured & {*_ON_GPU, *_MORE_ON_GPU[:1], _SM_ACTIVE})
    first = [*_FIRST, *(_ON_GPU if on_gpu else _ON_CPU)]
    more = [*_MORE, *(_MORE_ON_GPU if on_gpu else _MORE_ON_CPU)]
    if _SM_ACTIVE in measured:
        first[-1] = _SM_ACTIVE  # The other is 100 % as soon as some kernel always runs.
    if all(experiment.data.manifest.inputs_per_request == 1 for experiment in analysis.experiments):
        more.remove("inputs")  # The same number twice.
    return first, more


def _scaling_table(analysis: CampaignAnalysis, workload: str, cells: Sequence[Cell], names: Sequence[str]) -> Table:
    has_modes = len({cell.sharing for cell in analysis.cells}) > 1 or any(
        cell.key.mps_limits or cell.key.time_slice for cell in analysis.cells
    )
    has_places = placement.several(experiment.data.manifest for experiment in analysis.experiments)
    columns = [
        Column("Replicas", "replicas"),
        *([Column("Sharing", "sharing", words=True)] if has_modes else []),
        *([Column("Condition", "condition", words=True)] if any(cell.condition for cell in analysis.cells) else []),
        *([Column("Where", "where", words=True)] if has_places else []),
        Column("Verdict", "verdict", words=True),
        Column("Runs", "runs"),
        *(Column((OF_CONFIGURATIONS.get(name) or ALL[name]).heading, name) for name in names),
    ]
    rows: list[list[object]] = []
    for cell in cells:
        runs = f"{len(cell.used)}/{cell.planned}" if cell.planned else str(len(cell.used))
        values: dict[str, object] = {
            "replicas": cell.replicas,
            "sharing": cell.mode_shown,
            "condition": cell.condition,
            "where": placement.of_cell(cell),
            "verdict": Entry("", badge=cell.badge),
            "runs": runs,
        }
        values |= {name: _scaling_entry(cell, name) for name in names}
        rows.append([values[column.name] for column in columns])
    return Table(columns, rows, f"{workload} against the number of replicas")


def _scaling_entry(cell: Cell, name: str) -> Entry:
    estimate, unit = _estimate(cell, name)
    if estimate is None:
        return absent(cell.absent.get(name, "it takes two runs that can be used"))
    few = name in cell.estimates and estimate.n < len(cell.used)
    remarks = [
        f"{load_state(estimate.mean)}" if name in _LOADS else "",
        f"of {counted(estimate.n, 'run')}" if few else "",
    ]
    if name in _RATIOS:
        interval = ratio_interval(estimate) if estimate.half_width is not None else ""
        return Entry(f"{number(estimate.mean)} {unit}", (interval,) if interval else (), value=estimate.mean)
    return figure_entry(estimate, unit.replace("requests/s", "req/s"), remarks=remarks)


def _estimate(cell: Cell, name: str) -> tuple[Estimate | None, str]:
    """What a column shows of a configuration, and its unit."""
    if name == "speed_up":
        return cell.speed_up, TIMES
    if name == "efficiency":
        return percent(cell.efficiency), "%"
    if name == "cv":
        throughput = cell.estimates.get("throughput")
        spread = throughput.cv if throughput else None
        return None if spread is None else Estimate(100 * spread, None, None, 1, None), "%"
    return cell.estimates.get(name), ALL[name].shown_unit


def percent(estimate: Estimate | None) -> Estimate | None:
    """A share in percent."""
    if estimate is None:
        return None
    low = None if estimate.low is None else 100 * estimate.low
    high = None if estimate.high is None else 100 * estimate.high
    return Estimate(100 * estimate.mean, low, high, estimate.n, estimate.cv, estimate.note)


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
        pairs = max((len(found.kept) for found in by_metric.values() if isinstance(found, Overhead)), default=0)
        entries = [_overhead_entry(by_metric[name]) for name in JUDGED]
        rows.append([key.condition, key.workload, key.replicas, key.mode, pairs, *entries])
    return Table(columns, rows, f"Overhead of each condition against {interference.baseline}")


def _overhead_entry(overhead: Overhead | str) -> Entry:
    if isinstance(overhead, str):
        return Entry(DASH, reason=overhead, badge=Outcome.NOT_DECIDABLE.value)
    interval = whole_interval(overhead.percent)
    return Entry(
        f"{number(overhead.percent.mean)} %",
        (interval,) if interval else (),
        overhead.why if overhead.outcome is Outcome.NOT_DECIDABLE else "",
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
            f"{cell.key.workload} r{cell.key.replicas} {cell.key.mode}",
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
    titles = (
        "workload",
        "sharing",
        "servers",
        "each/s",
        "goodput/s",
        "limit",
        "J/1,000 tokens",
        "cost/million tokens",
    )
    rows = [
        [
            ladder.workload,
            ladder.sharing,
            str(ladder.servers),
            number(ladder.rate) if ladder.rate else "",
            *(_plain(ladder.goodput), ladder.limit, _plain(ladder.energy_j), _plain(ladder.cost)),
        ]
        for ladder in best
    ]
    kept = Table.of(titles, rows, len(titles), "Highest goodput within the objective").without_empty()
    return Table(kept.columns, [[cell or DASH for cell in row] for row in kept.rows], kept.caption)


def _plain(estimate: Estimate | None) -> str:
    return with_interval(estimate, "").strip() if estimate else ""


_SHORT = (("p50 ms", "latency_p50_exact", 1e3), ("p99 ms", "latency_p99_exact", 1e3), ("J/req", "energy", 1.0))
"""Column, metric, and what its unit is multiplied by."""
_DROPPED_FIRST = ("p50 ms", "J/req", "p99 ms", "sharing")
"""Columns that go, in this order, until the rest fits; ``sharing`` only where all of it is the same."""
_SHORTEST, _GAP = 12, 2


def short_table(analysis: CampaignAnalysis, width: int) -> tuple[Table, list[str]]:
    """A line per configuration that fits in so many characters, and the columns that had to go."""
    energies = any("energy" in cell.estimates for cell in analysis.cells)
    rows = []
    for cell in analysis.cells:
        row = {"workload": cell.workload, "sharing": cell.mode_shown, "replicas": str(cell.replicas)}
        if any(other.condition for other in analysis.cells):
            row["condition"] = cell.condition
        rate = cell.estimates.get("throughput")
        row["requests/s"] = with_interval(rate, "") if rate else DASH
        for header, name, scale in _SHORT:
            estimate = cell.estimates.get(name)
            if name != "energy" or energies:
                row[header] = number(scale * estimate.mean) if estimate else DASH
        rows.append(row | {"verdict": cell.badge})
    dropped = _fit(rows, width)
    return Table.of(list(rows[0]), [list(row.values()) for row in rows], 2), dropped


def _fit(rows: list[dict[str, str]], width: int) -> list[str]:
    """Take columns out of the rows until a line fits, then shorten names. Returns what went."""
    dropped = []
    one_mode = len({row["sharing"] for row in rows}) == 1
    for name in _DROPPED_FIRST:
        if name in rows[0] and _excess(rows, width) > 0 and (one_mode or name != "sharing"):
            dropped.append(name)
            for row in rows:
                del row[name]
    for name in ("workload", "condition"):
        if name in rows[0] and (excess := _excess(rows, width)) > 0:
            length = max(_SHORTEST, max(len(row[name]) for row in rows) - excess)
            for row in rows:
                row[name] = clipped(row[name], length)
    return dropped


def _excess(rows: list[dict[str, str]], width: int) -> int:
    widest = [max(len(name), *(len(row[name]) for row in rows)) for name in rows[0]]
    return sum(widest) + _GAP * (len(widest) - 1) - width
