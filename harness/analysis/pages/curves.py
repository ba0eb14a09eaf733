"""Curves against the number of replicas or the load, for the report and the comparison; and bars beside each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from harness.analysis.campaign import CampaignAnalysis, Cell
from harness.analysis.contrasts.comparison import CellKey, Comparison
from harness.analysis.format import number, with_interval
from harness.analysis.pages.plot import FAINT, INK, Panel, Picture, PlotSeries, ReferenceLine, interval_series
from harness.analysis.statistics import Estimate
from harness.analysis.statistics.scaling_models import Fit
from harness.analysis.stress import LoadPoint, StressSeries, in_words
from harness.errors import counted
from harness.spec import StressLoad, StressSpec

Pick = Callable[[Cell], Estimate | None]
_GIB, _MS = 2.0**30, 1e3
_IDEAL_REACH = 1.8
"""The ideal line stops at this multiple of the best throughput, or it would flatten everything."""
_DASHES = {"p50": ":", "p95": "--", "p99": "-"}
_CURVE_POINTS = 100
_BROKEN = 1
_LOADS = {StressLoad.REPLICAS: "replicas", StressLoad.RATE: "requests/s per replica", StressLoad.BATCH: "batch size"}


@dataclass(frozen=True, slots=True)
class Curve:
    """One line against the replicas: where its points come from, how they are scaled, its name among others of a panel.

    ``of``: the metric that a picked value is proportional to, whose single runs are shown.
    """

    metric: str
    name: str = ""
    scale: float = 1.0
    pick: Pick | None = None
    dashes: str = "-"
    of: str = ""

    def estimate(self, cell: Cell) -> Estimate | None:
        """What it shows of a configuration."""
        return self.pick(cell) if self.pick else cell.estimates.get(self.metric)

    def runs(self, cell: Cell) -> list[float]:
        """The same of each single run: of a ratio, what the run's own value makes of it."""
        if self.pick is None:
            return cell.figures(self.metric)
        picked, whole = self.pick(cell), cell.estimates.get(self.of)
        if picked is None or whole is None or not whole.mean:
            return []
        return [picked.mean * value / whole.mean for value in cell.figures(self.of)]

    def series(self, cells: Sequence[Cell], name: str, colour: int, dashes: str) -> list[PlotSeries]:
        """The line with its intervals, and the single runs as dots; nothing where nothing was measured."""
        known = [(cell, estimate) for cell in cells if (estimate := self.estimate(cell))]
        if not known:
            return []
        x = [float(cell.replicas) for cell, _ in known]
        dots = [(float(cell.replicas), self.scale * value) for cell in cells for value in self.runs(cell)]
        runs = PlotSeries(x=[x for x, _ in dots], y=[y for _, y in dots], name=name, colour=colour, runs=True)
        line = interval_series(x, [estimate for _, estimate in known], self.scale, colour, name, dashes)
        return [line, *([runs] if dots else [])]


def overview(analysis: CampaignAnalysis) -> Picture | None:
    """Speed-up and p99 of all workloads side by side; None when there are fewer than two to show."""
    groups = _groups(analysis)
    if len({cell.workload for cells in groups.values() for cell in cells if cell.speed_up}) < 2:
        return None
    ticks = _counts([cell for cells in groups.values() for cell in cells])
    ideal = PlotSeries(x=ticks, y=ticks, name="ideal", colour=FAINT, dashes=":")
    speed_up = Curve("speed_up", pick=lambda cell: cell.speed_up, of="throughput")
    left, right = [ideal], []
    for index, (label, cells) in enumerate(groups.items()):
        left += speed_up.series(cells, label, index, "-")
        growth = Curve("p99", pick=_p99_growth(cells), of="latency_p99_exact")
        right += growth.series(cells, label, index, "-")
    alt = "Speed-up over replicas: " + "; ".join(
        f"{label}: " + ", ".join(_spoken(cell, cell.speed_up, "x") for cell in cells if cell.speed_up)
        for label, cells in groups.items()
    )
    panels = [
        _replica_panel("Throughput, times that of one replica", left, ticks),
        _replica_panel("p99 latency, times that of one replica", right, ticks, rules=[ReferenceLine(1)]),
    ]
    title = "How the workloads scale beside each other"
    return Picture("scaling-overview", title, alt, panels, 2, (360, 220), png=True)


def scaling(analysis: CampaignAnalysis, workload: str) -> Picture | None:
    """Six panels against the replica count for one workload; None when no run of it can be used."""
    groups = {
        label.removeprefix(f"{workload}, "): cells
        for label, cells in _groups(analysis).items()
        if cells[0].workload == workload
    }
    cells = [cell for group in groups.values() for cell in group]
    if not any(cell.used for cell in cells):
        return None
    latencies = [Curve(f"latency_{name}_exact", name, _MS, dashes=dashes) for name, dashes in _DASHES.items()]
    kinds = "p50 dotted, p95 dashed" if len(groups) > 1 else ""
    efficiency = Curve("efficiency", scale=100, pick=lambda cell: cell.efficiency, of="throughput")
    panels = [
        _group_panel("Throughput (requests/s)", groups, [Curve("throughput")], before=_ideal(cells)),
        replace(_group_panel("Latency (ms)", groups, latencies, logarithmic=True), note=kinds),
        _group_panel("Efficiency (% of ideal)", groups, [efficiency], rules=[ReferenceLine(100)]),
        _group_panel("Fairness (slowest / fastest)", groups, [Curve("fairness")], rules=[ReferenceLine(1)]),
    ]
    if any("gpu_memory" in cell.estimates for cell in cells):
        panels.append(_group_panel("GPU energy per request (J)", groups, [Curve("energy")]))
        panels.append(_group_panel("GPU memory (GiB)", groups, [Curve("gpu_memory", scale=1 / _GIB)]))
    else:
        panels.append(_group_panel("CPU (cores)", groups, [Curve("cpu_usage")]))
        panels.append(_group_panel("CPU pressure (% of time)", groups, [Curve("cpu_psi")]))
    rates = [(cell, cell.estimates["throughput"]) for cell in cells if "throughput" in cell.estimates]
    alt = f"{workload}, throughput: {', '.join(_spoken(cell, rate, 'requests/s') for cell, rate in rates)}"
    title = f"{workload}: against the number of replicas"
    return Picture(f"scaling-{workload}", title, alt, panels, 3, (240, 190), png=True)


def _groups(analysis: CampaignAnalysis) -> dict[str, list[Cell]]:
    """Cells of one line, by its label: the workload, the sharing mode where there are several, and the condition."""
    several = len({cell.mode for cell in analysis.cells}) > 1
    groups: dict[str, list[Cell]] = {}
    for cell in sorted(analysis.cells, key=lambda cell: (analysis.workloads().index(cell.workload), cell.replicas)):
        label = ", ".join(filter(None, [cell.workload, cell.mode if several else "", cell.condition]))
        groups.setdefault(label, []).append(cell)
    return groups


def _group_panel(
    title: str,
    groups: Mapping[str, Sequence[Cell]],
    curves: Sequence[Curve],
    before: Sequence[PlotSeries] = (),
    rules: Sequence[ReferenceLine] = (),
    *,
    logarithmic: bool = False,
) -> Panel:
    cells = [cell for group in groups.values() for cell in group]
    if not any(curve.estimate(cell) for curve in curves for cell in cells):
        reasons = [cell.absent[curves[0].metric] for cell in cells if curves[0].metric in cell.absent]
        return Panel(title=title, absent=reasons[-1] if reasons else "no run can be used")
    series = list(before)
    for position, (label, group) in enumerate(groups.items()):
        for index, curve in enumerate(curves):
            # Several groups are told apart by colour and their curves by dashes; the curves of one by colour.
            if len(groups) > 1:
                series += curve.series(group, label, position, curve.dashes)
            else:
                series += curve.series(group, curve.name, index, "-")
    return _replica_panel(title, series, _counts(cells), rules, logarithmic=logarithmic)


def _replica_panel(
    title: str,
    series: Sequence[PlotSeries],
    ticks: Sequence[float],
    rules: Sequence[ReferenceLine] = (),
    *,
    logarithmic: bool = False,
) -> Panel:
    return Panel(title=title, x_label="replicas", series=series, rules=rules, x_ticks=ticks, logarithmic=logarithmic)


def _ideal(cells: Sequence[Cell]) -> list[PlotSeries]:
    rates = [(cell.replicas, cell.estimates["throughput"].mean) for cell in cells if "throughput" in cell.estimates]
    alone = max((rate for count, rate in rates if count == 1), default=None)
    if alone is None:
        return []
    ticks = _counts(cells)
    reach = [ticks[0], min(ticks[-1], _IDEAL_REACH * max(rate for _, rate in rates) / alone)]
    return [PlotSeries(x=reach, y=[alone * count for count in reach], name="ideal", colour=FAINT, dashes=":")]


def _p99_growth(cells: Sequence[Cell]) -> Pick:
    single = next((cell.estimates.get("latency_p99_exact") for cell in cells if cell.replicas == 1), None)

    def pick(cell: Cell) -> Estimate | None:
        own = cell.estimates.get("latency_p99_exact")
        return None if own is None or single is None else Estimate(own.mean / single.mean, None, None, own.n, None)

    return pick


def _counts(cells: Sequence[Cell]) -> list[float]:
    return sorted({float(cell.replicas) for cell in cells})


def _spoken(cell: Cell, estimate: Estimate, unit: str) -> str:
    return f"{counted(cell.replicas, 'replica')} {with_interval(estimate, unit)}"


def stress_curve(series: StressSeries, stress: StressSpec) -> Picture | None:
    """Throughput and limited percentiles (p99 without a limit) of every point; None before any has figures."""
    measured = [point for point in series.points if point.run.figures]
    if not measured:
        return None
    limits: dict[str, float | None] = {percentile.value: limit for percentile, limit in stress.latency_limit_ms.items()}
    percentiles = list((limits or {"p99": None}).items())
    lines = [
        _load_series(measured, f"latency_{name}_exact", _MS, 2 + index, name)
        for index, (name, _) in enumerate(percentiles)
    ]
    rules = [
        ReferenceLine(limit_ms, f"limit of {name}", 2 + index)
        for index, (name, limit_ms) in enumerate(percentiles)
        if limit_ms is not None
    ]
    panels = [
        _load_panel(
            "Throughput (requests/s)", series, measured, [_load_series(measured, "throughput", 1.0, 0, "throughput")]
        ),
        _load_panel("Latency (ms)", series, measured, lines, rules),
    ]
    spoken = ", ".join(
        f"{in_words(point.load, series.unit)} {point.run.figures['throughput'].mean:.4g} requests/s ({point.grade})"
        for point in measured
        if "throughput" in point.run.figures
    )
    name = f"stress-{series.name.replace(' under ', '-').replace(', ', '-').replace(' ', '-')}"
    return Picture(
        name, f"{series.name}: load until it breaks", f"{series.name}: {spoken}", panels, 2, (360, 220), png=True
    )


def _load_series(points: Sequence[LoadPoint], name: str, scale: float, colour: int, label: str) -> PlotSeries | None:
    known = [(point.load, figure) for point in points if (figure := point.run.figures.get(name)) and figure.mean > 0]
    return (
        interval_series([load for load, _ in known], [estimate for _, estimate in known], scale, colour, label)
        if known
        else None
    )


def _load_panel(
    title: str,
    series: StressSeries,
    points: Sequence[LoadPoint],
    lines: Sequence[PlotSeries | None],
    rules: Sequence[ReferenceLine] = (),
) -> Panel:
    """Against the load, with the last good point, and the broken one even where it has no figures."""
    known = [line for line in lines if line]
    if not known:
        notes = [figure.note for figure in points[-1].run.figures.values() if figure.note]
        return Panel(title=title, absent=notes[0] if notes else "no run gives it")
    marks = list(rules)
    if series.last_good is not None:
        marks.append(ReferenceLine(series.last_good.load, "last good point", FAINT, "--", vertical=True))
    if series.broken is not None:
        marks.append(
            ReferenceLine(series.broken.load, f"breaks: {series.broken.failure_mode}", _BROKEN, "--", vertical=True)
        )
    return Panel(title=title, x_label=_LOADS[series.unit], series=known, rules=marks, doubling=True)


@dataclass(frozen=True, slots=True)
class CurveRow:
    """One row of panels of a comparison.

    Attributes:
        curve: what is shown.
        label: of it, with the unit.
        logarithmic: whether the y axis is.
        line: a horizontal line, in the metric's unit.
        laws: fitted law by workload and label of the arm.
    """

    curve: Curve
    label: str
    logarithmic: bool = False
    line: float | None = None
    laws: Mapping[tuple[str, str], Fit] = field(default_factory=dict)


def by_workload(comparison: Comparison, name: str, title: str, rows: Sequence[CurveRow]) -> Picture | None:
    """Metrics against replicas, a column for each workload; None when there is nothing to show."""
    workloads = comparison.workloads()
    if not workloads:
        return None
    drawn = [[_compared(comparison, workload, row) for workload in workloads] for row in rows]
    # Without a GPU there is no energy, and the answers say why.
    panels = [panel for row in drawn if not all(panel.absent for panel in row) for panel in row] or drawn[0]
    first = rows[0].curve
    spoken = [
        f"{workload} under {arm.label}: "
        + ", ".join(
            f"{count} replicas {number(estimate.mean * first.scale)}"
            for count in arm.counts(workload)
            if (estimate := first.estimate(arm.cells[CellKey(workload, count)]))
        )
        for workload in workloads
        for arm in comparison.arms
        if arm.counts(workload)
    ]
    size = (min(360.0, max(240.0, 720.0 / len(workloads))), 185.0)
    return Picture(f"comparison-{name}", title, f"{title}: {'; '.join(spoken)}", panels, len(workloads), size)


def _compared(comparison: Comparison, workload: str, row: CurveRow) -> Panel:
    title, curve = f"{workload}: {row.label}", row.curve
    series: list[PlotSeries] = []
    for index, arm in enumerate(comparison.arms):
        cells = [arm.cells[CellKey(workload, count)] for count in arm.counts(workload)]
        series += curve.series(cells, arm.label, index, "-")
        fit = row.laws.get((workload, arm.label))
        if fit is not None:
            n = np.linspace(1, max(arm.counts(workload)), _CURVE_POINTS)
            values = np.array([estimate.mean for estimate in fit.parameters.values()])
            y = (fit.law.curve(n, values) * curve.scale).tolist()
            series.append(
                PlotSeries(x=n.tolist(), y=y, name=arm.label, colour=index, dashes="--", thin=True, silent=True)
            )
    if not series:
        cells = [cell for arm in comparison.arms for cell in arm.cells.values()]
        reasons = [cell.absent[curve.metric] for cell in cells if curve.metric in cell.absent]
        return Panel(title=title, absent=reasons[-1] if reasons else "no run gives it")
    rules = [] if row.line is None else [ReferenceLine(row.line * curve.scale, colour=INK)]
    ticks = [float(count) for count in comparison.counts(workload)]
    return _replica_panel(title, series, ticks, rules, logarithmic=row.logarithmic)


def bars(name: str, title: str, label: str, estimates: Sequence[tuple[str, Estimate]]) -> Picture | None:
    """Values by their labels beside each other with their intervals; None without any."""
    if not estimates:
        return None
    series = PlotSeries(
        x=[estimate.mean for _, estimate in estimates],
        y=[float(place) for place in range(len(estimates))],
        low=[estimate.mean if estimate.low is None else estimate.low for _, estimate in estimates],
        high=[estimate.mean if estimate.high is None else estimate.high for _, estimate in estimates],
        colour=4,
        labels=[bar for bar, _ in estimates],
    )
    spoken = ", ".join(f"{bar} {number(estimate.mean)} {label}" for bar, estimate in estimates)
    panel = Panel(title=label, series=[series], rules=[ReferenceLine(0, vertical=True, dashes="-")])
    return Picture(f"comparison-{name}", title, f"{title}: {spoken}", [panel], 1, (420, 32.0 * len(estimates) + 45))
