"""The plots of report and comparison: against the number of replicas, the load or the seconds of a run; and bars beside each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple, Self

import numpy as np
import pandas as pd

from harness.analysis.campaign import CampaignAnalysis, Cell, MeasuredRun
from harness.analysis.contrasts.comparison import CellKey, Comparison
from harness.analysis.format import mode_name, replicas_in_words
from harness.analysis.pages.plot import FAINT, INK, Panel, Picture, PlotSeries, ReferenceLine, interval_series
from harness.analysis.read import ExperimentData, NotMeasuredError
from harness.analysis.statistics import Estimate
from harness.analysis.statistics.scaling_models import Fit
from harness.analysis.stress import LoadPoint, StressSeries
from harness.spec import StressLoad, StressSpec

Pick = Callable[[Cell], Estimate | None]
Draw = Callable[[ExperimentData], list[PlotSeries]]
_replica_panel = partial(Panel, x_label="replicas")
_GIB, _MS = 2.0**30, 1e3
_IDEAL_REACH = 1.8
"""The ideal line stops at this multiple of the best throughput, or it would flatten everything."""
_DASHES = {"p50": ":", "p95": "--", "p99": "-"}
_CURVE_POINTS = 100
_BROKEN = 1
_SECONDS, _EVERY = "seconds since the recording began", "each replica"
_MANY_ROWS = 200
_SLOT, _GAP = 5.6, 0.7
"""Height of a dot's line in points, and the room between two rows in lines."""
_QUANTILES = (("latency_p50", "p50", 2), ("latency_p95", "p95", 3), ("latency_p99", "p99", 5))
_PRESSURES = (("cpu_psi", "CPU", 1), ("memory_psi", "memory", 6), ("io_psi", "IO", 7))
_DEVICE_COLOURS = (1, 6, 7, 0, 2, 3, 5)
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
    if len({cell.workload for cells in groups.values() for cell in cells if "speed_up" in cell.estimates}) < 2:
        return None
    ticks = _counts([cell for cells in groups.values() for cell in cells])
    ideal = PlotSeries(x=ticks, y=ticks, name="ideal", colour=FAINT, dashes=":")
    speed_up = Curve("speed_up", pick=lambda cell: cell.estimates.get("speed_up"), of="throughput")
    left, right = [ideal], []
    for index, (label, cells) in enumerate(groups.items()):
        left += speed_up.series(cells, label, index, "-")
        growth = Curve("p99", pick=_p99_growth(cells), of="latency_p99_exact")
        right += growth.series(cells, label, index, "-")
    panels = [
        _replica_panel(title="Throughput, times that of one replica", series=left, x_ticks=ticks),
        _replica_panel(
            title="p99 latency, times that of one replica", series=right, x_ticks=ticks, rules=[ReferenceLine(1)]
        ),
    ]
    title = "How the workloads scale beside each other"
    return Picture("scaling-overview", title, panels, 2, (360, 220), png=True)


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
    efficiency = Curve("efficiency", scale=100, pick=lambda cell: cell.estimates.get("efficiency"), of="throughput")
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
    title = f"{workload}: against the number of replicas"
    return Picture(f"scaling-{workload}", title, panels, 3, (240, 190), png=True)


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
        return Panel(title=title, absent=reasons[-1] if reasons else "no run gives it")
    series = list(before)
    for position, (label, group) in enumerate(groups.items()):
        for index, curve in enumerate(curves):
            # Several groups are told apart by colour and their curves by dashes; the curves of one by colour.
            if len(groups) > 1:
                series += curve.series(group, label, position, curve.dashes)
            else:
                series += curve.series(group, curve.name, index, "-")
    return _replica_panel(title=title, series=series, x_ticks=_counts(cells), rules=rules, logarithmic=logarithmic)


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


def stress_curve(series: StressSeries, stress: StressSpec) -> Picture | None:
    """Throughput and limited percentiles (p99 without a limit) of every point; None before any has figures."""
    measured = [point for point in series.points if point.run.figures]
    if not measured:
        return None
    limits: dict[str, float] = dict(stress.latency_limit_ms.items())
    latencies = [(name, f"latency_{name}_exact", _MS, colour) for colour, name in enumerate(limits or ["p99"], start=2)]
    rules = [
        ReferenceLine(limits[name], f"limit of {name}", colour) for name, _, _, colour in latencies if name in limits
    ]
    panels = [
        _load_panel("Throughput (requests/s)", series, measured, [("throughput", "throughput", 1.0, 0)]),
        _load_panel("Latency (ms)", series, measured, latencies, rules),
    ]
    name = f"stress-{series.name.replace(' under ', '-').replace(', ', '-').replace(' ', '-')}"
    return Picture(name, f"{series.name}: load until it breaks", panels, 2, (360, 220), png=True)


def _load_panel(
    title: str,
    series: StressSeries,
    points: Sequence[LoadPoint],
    lines: Sequence[tuple[str, str, float, int]],
    rules: Sequence[ReferenceLine] = (),
) -> Panel:
    """Lines (name, metric, scale, colour) against the load, with the last good point, and the broken one even where it has no figures."""
    drawn = []
    for label, name, scale, colour in lines:
        known = [(point.load, it) for point in points if (it := point.run.figures.get(name)) and it.mean > 0]
        if known:
            loads, estimates = zip(*known, strict=True)
            drawn.append(interval_series(loads, estimates, scale, colour, label))
    if not drawn:
        notes = [figure.note for figure in points[-1].run.figures.values() if figure.note]
        return Panel(title=title, absent=notes[0] if notes else "no run gives it")
    marks = list(rules)
    if series.last_good is not None:
        marks.append(ReferenceLine(series.last_good.load, "last good point", FAINT, "--", vertical=True))
    if series.broken is not None:
        broken = f"breaks: {series.broken.failure_mode}"
        marks.append(ReferenceLine(series.broken.load, broken, _BROKEN, "--", vertical=True))
    return Panel(title=title, x_label=_LOADS[series.unit], series=drawn, rules=marks, doubling=True)


@dataclass(frozen=True, slots=True)
class CurveRow:
    """One row of panels of a comparison: a curve with its label and unit, a horizontal line, fitted laws by workload and arm."""

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
    size = (min(360.0, max(240.0, 720.0 / len(workloads))), 150.0)
    return Picture(f"comparison-{name}", title, panels, len(workloads), size)


def _compared(comparison: Comparison, workload: str, row: CurveRow) -> Panel:
    arms = {
        mode_name(arm.label): [arm.cells[CellKey(workload, count)] for count in arm.counts(workload)]
        for arm in comparison.arms
    }
    rules = [] if row.line is None else [ReferenceLine(row.line * row.curve.scale, colour=INK)]
    title = f"{workload}: {row.label}"
    panel = _group_panel(title, arms, [row.curve], rules=rules, logarithmic=row.logarithmic)
    laws = [
        _law(fit, max(cell.replicas for cell in cells), label, colour, row.curve.scale)
        for colour, ((label, cells), arm) in enumerate(zip(arms.items(), comparison.arms, strict=True))
        if cells and (fit := row.laws.get((workload, arm.label)))
    ]
    return replace(panel, series=[*panel.series, *laws])


def _law(fit: Fit, most: int, name: str, colour: int, scale: float) -> PlotSeries:
    n = np.linspace(1, most, _CURVE_POINTS)
    values = np.array([estimate.mean for estimate in fit.parameters.values()])
    y = (fit.law.curve(n, values) * scale).tolist()
    return PlotSeries(x=n.tolist(), y=y, name=name, colour=colour, dashes="--", thin=True, silent=True)


class Row(NamedTuple):
    """One row of dots: its name, and each series' estimate with its single runs, by the name of the series."""

    name: str
    dots: Mapping[str, tuple[Estimate, Sequence[float]]]

    @classmethod
    def of(cls, values: Iterable[tuple[str, str, Estimate, Sequence[float]]]) -> list[Self]:
        """Of values by row and series, each with its single runs, in their order."""
        rows: dict[str, dict[str, tuple[Estimate, Sequence[float]]]] = {}
        for row, series, estimate, runs in values:
            rows.setdefault(row, {})[series] = estimate, runs
        return [cls(name, of_row) for name, of_row in rows.items()]

    @classmethod
    def by_replicas(cls, cells: Iterable[tuple[str, Cell]], metric: str, scale: float = 1.0) -> list[Self]:
        """One metric of configurations, a row for each number of replicas, with their single runs; by name of the series."""
        measured = sorted(
            ((name, cell) for name, cell in cells if metric in cell.estimates), key=lambda named: named[1].replicas
        )
        return cls.of(
            (
                replicas_in_words(cell.replicas),
                name,
                cell.estimates[metric].scaled(scale),
                [scale * value for value in cell.figures(metric)],
            )
            for name, cell in measured
        )


def dots(
    name: str,
    title: str,
    panels: Sequence[tuple[str, Sequence[Row]]],
    *,
    order: Sequence[str] = (),
    columns: int = 1,
    rules: Sequence[float] = (),
) -> Picture:
    """Estimates as dots with lying intervals, a panel each, in which the series of a row lie below each other.

    ``order``: names of series, which have one colour in every picture of a page.
    """
    names = list(dict.fromkeys([*order, *(series for _, rows in panels for row in rows for series in row.dots)]))
    drawn = [_dot_panel(title, rows, names, rules) for title, rows in panels]
    columns = min(columns, len(panels))
    height = 37 + _SLOT * max(panel.depth for panel in drawn)
    return Picture(name, title, drawn, columns, (240.0 if columns > 1 else 360.0, height))


def _dot_panel(title: str, rows: Sequence[Row], names: Sequence[str], rules: Sequence[float]) -> Panel:
    depth, middles = 0.0, {}
    places: dict[str, list[tuple[str, float, Estimate, Sequence[float]]]] = {}
    for row in rows:
        middles[row.name] = depth + (len(row.dots) + _GAP) / 2
        for number, (name, (estimate, runs)) in enumerate(row.dots.items()):
            places.setdefault(name, []).append((row.name, depth + number + (1 + _GAP) / 2, estimate, runs))
        depth += len(row.dots) + _GAP
    series: list[PlotSeries] = []
    for name, dots in places.items():
        colour = names.index(name)
        single = [(run, y, row) for row, y, _, runs in dots for run in runs]
        if single:
            x, heights, of = zip(*single, strict=True)
            series.append(PlotSeries(x=x, y=heights, name=name, colour=colour, runs=True, labels=of))
        estimates = [estimate for *_, estimate, _ in dots]
        marks = PlotSeries(
            x=[estimate.mean for estimate in estimates],
            y=[y for _, y, *_ in dots],
            name=name,
            low=[estimate.mean if estimate.low is None else estimate.low for estimate in estimates],
            high=[estimate.mean if estimate.high is None else estimate.high for estimate in estimates],
            colour=colour,
            markers=True,
            labels=[row for row, *_ in dots],
        )
        series.append(marks)
    lines = [ReferenceLine(at, vertical=True, dashes="-") for at in rules]
    return Panel(title=title, rows=middles, depth=depth, series=series, rules=lines)


def runs_strip(analysis: CampaignAnalysis) -> Picture | None:
    """Every run as a dot in the row of its configuration, throughput and p99 of each workload; None without any."""
    panels = []
    for workload in analysis.workloads():
        for title, metric, scale in (("requests/s", "throughput", 1.0), ("p99, ms", "latency_p99_exact", _MS)):
            cells = (
                (", ".join(filter(None, [mode_name(cell.mode), cell.condition])), cell)
                for cell in analysis.cells
                if cell.workload == workload
            )
            if rows := Row.by_replicas(cells, metric, scale):
                panels.append((f"{workload}: {title}", rows))
    return dots("runs", "Every run, with the mean and its 95% interval", panels, columns=2) if panels else None


def timeline(experiment: MeasuredRun) -> Picture:
    """What happened during one run: six panels over the seconds of its recording; one without data says why."""
    data = experiment.data.keeping()
    span, panels, further = (0.0, data.duration_s or 1.0), [], _ON_GPU
    try:
        data.table("gpu_utilization")
    except NotMeasuredError:
        further = _ON_CPU
    for title, draw, top in (*_COMMON, *further):
        try:
            series = draw(data)
        except NotMeasuredError as error:
            panels.append(Panel(title=title, absent=str(error)))
        else:
            panels.append(Panel(title=title, x_label=_SECONDS, series=series, x_range=span, top=top))
    return Picture(f"timeline-{experiment.name}", f"{experiment.name} over time", panels, 2, (360, 150))


def _line(
    values: pd.Series[float], scale: float, name: str, colour: int, *, silent: bool = False, thin: bool = False
) -> PlotSeries:
    x, y = values.index.to_numpy(dtype=float).tolist(), (values * scale).to_numpy(dtype=float).tolist()
    return PlotSeries(x=x, y=y, name=name, colour=colour, silent=silent, thin=thin or len(x) > _MANY_ROWS)


def _of_replicas(metric: str, scale: float = 1.0) -> Draw:
    """All replicas together over each of them."""

    def draw(data: ExperimentData) -> list[PlotSeries]:
        table = data.table(metric)
        replicas = [name for name in table.columns if name.startswith("replica-")]
        single = [_line(table[name], scale, _EVERY, 4, silent=True, thin=True) for name in replicas]
        pooled = [_line(table["all"], scale, "all", 0)] if "all" in table else []
        return [*(single if len(single) > 1 else []), *pooled]

    return draw


def _together(column: str, lines: Sequence[tuple[str, str, int]], scale: float = 1.0) -> Draw:
    """The same column of several metrics: lines of metric, name and colour."""

    def draw(data: ExperimentData) -> list[PlotSeries]:
        tables = [(data.table(metric), label, colour) for metric, label, colour in lines]
        return [_line(table[column], scale, label, colour) for table, label, colour in tables if column in table]

    return draw


def _host_cpu(data: ExperimentData) -> list[PlotSeries]:
    return [_line(data.telemetry()["host_cpu_percent"], 1.0, "whole machine", INK)]


def _device(metric: str, column: str, scale: float = 1.0) -> Draw:
    """One line a GPU at the recording's step, over the fast telemetry where there is some."""

    def draw(data: ExperimentData) -> list[PlotSeries]:
        table = data.table(metric)
        try:
            frame = data.telemetry().filter(regex=rf"^gpu\d+_{column}$").dropna(axis="columns", how="all")
        except NotMeasuredError:
            frame = pd.DataFrame()
        fast = [_line(frame[name], scale, "", FAINT, silent=True, thin=True) for name in frame.columns]
        devices = [name for name in table.columns if name.startswith("gpu-")]
        return fast + [
            _line(table[name], scale, name, _DEVICE_COLOURS[index % len(_DEVICE_COLOURS)])
            for index, name in enumerate(devices)
        ]

    return draw


_COMMON: Sequence[tuple[str, Draw, float | None]] = (
    ("Throughput (requests/s)", _of_replicas("throughput"), None),
    ("Latency, histogram estimate (ms)", _together("all", _QUANTILES, 1e3), None),
)
_ON_GPU: Sequence[tuple[str, Draw, float | None]] = (
    ("GPU utilisation (%)", _device("gpu_utilization", "utilization_percent"), 105),
    ("GPU memory (GiB)", _device("gpu_memory", "memory_bytes", 1 / _GIB), None),
    ("GPU power (W)", _device("gpu_power", "power_w"), None),
    ("GPU temperature (°C)", _device("gpu_temperature", "temperature_celsius"), None),
)
_ON_CPU: Sequence[tuple[str, Draw, float | None]] = (
    ("CPU of the replicas (cores)", _of_replicas("cpu_usage"), None),
    ("Memory of the replicas (GiB)", _of_replicas("memory_usage", 1 / _GIB), None),
    ("Pressure (% of time stalled)", _together("node", _PRESSURES), None),
    ("CPU of the whole machine (%)", _host_cpu, 105),
)
