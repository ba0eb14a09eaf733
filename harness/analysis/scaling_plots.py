"""Curves against the number of replicas: what more replicas bring, and what they cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from harness.analysis.campaign import CampaignAnalysis, Cell
from harness.analysis.chart import FAINT, INK, PALETTE, PAPER
from harness.analysis.figure_style import (
    MARKERS,
    Picture,
    finished,
    from_zero,
    interval_curve,
    logarithmic,
    new_figure,
    say_absent,
    style,
)
from harness.analysis.format import with_interval
from harness.analysis.statistics import Estimate

Pick = Callable[[Cell], Estimate | None]
Dashes = Literal["-", "--", ":"]
_GIB = 2.0**30
_IDEAL_REACH = 1.8  # The ideal line stops at this multiple of the best throughput, or it would flatten everything.
_LEGEND_COLUMNS = 6
_LATENCIES: tuple[tuple[str, str, Dashes], ...] = (
    ("latency_p50_exact", "p50", ":"),
    ("latency_p95_exact", "p95", "--"),
    ("latency_p99_exact", "p99", "-"),
)


@dataclass(frozen=True, slots=True)
class Curve:
    """One line: where its points come from, how they are scaled, what it is called, how it is dashed among others.

    ``of``: the measure that a picked figure is proportional to, whose single runs are shown.
    """

    measure: str
    label: str
    scale: float = 1.0
    pick: Pick | None = None
    dashes: Dashes = "-"
    of: str = ""

    def estimate(self, cell: Cell) -> Estimate | None:
        """What it shows of a cell."""
        return self.pick(cell) if self.pick else cell.estimates.get(self.measure)

    def each(self, cell: Cell) -> list[float]:
        """The same of each single run: of a ratio, what the run's own figure makes of it."""
        if self.pick is None:
            return cell.figures(self.measure)
        found, whole = self.pick(cell), cell.estimates.get(self.of)
        if found is None or whole is None or not whole.mean:
            return []
        return [found.mean * figure / whole.mean for figure in cell.figures(self.of)]


def overview(analysis: CampaignAnalysis) -> Picture | None:
    """Speed-up and p99 of all workloads side by side; None when there are fewer than two to show."""
    groups = _groups(analysis)
    if len({cell.workload for cells in groups.values() for cell in cells if cell.speed_up}) < 2:
        return None
    with style():
        figure = new_figure(10, 3.7)
        left, right = figure.subplots(1, 2)
        counts = _counts([cell for cells in groups.values() for cell in cells])
        left.plot(counts, counts, color=FAINT, linestyle=":", label="ideal")
        right.axhline(1, color=FAINT, linestyle=":")
        for index, (label, cells) in enumerate(groups.items()):
            draw(left, cells, Curve("speed_up", label, pick=lambda cell: cell.speed_up, of="throughput"), index)
            draw(right, cells, Curve("p99", label, pick=_p99_growth(cells), of="latency_p99_exact"), index)
        left.set_title("Throughput, times that of one replica")
        right.set_title("p99 latency, times that of one replica")
        for axes in (left, right):
            replica_axis(axes, counts)
            from_zero(axes)
        left.legend(loc="upper left")
        figure.subplots_adjust(left=0.05, right=0.985, top=0.9, bottom=0.15, wspace=0.14)
        alt = "Speed-up over replicas: " + "; ".join(
            f"{label}: " + ", ".join(_spoken(cell, cell.speed_up, "x") for cell in cells if cell.speed_up)
            for label, cells in groups.items()
        )
        return finished(figure, "scaling-overview", "How the workloads scale beside each other", alt)


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
    on_gpu = any("gpu_memory" in cell.estimates for cell in cells)
    panels: list[tuple[str, list[Curve], Callable[[Axes, Sequence[Cell]], None] | None]] = [
        ("Throughput (requests/s)", [Curve("throughput", "")], _ideal),
        ("Latency (ms)", [Curve(name, label, 1e3, dashes=dashes) for name, label, dashes in _LATENCIES], None),
        (
            "Efficiency (% of ideal)",
            [Curve("efficiency", "", 100, lambda cell: cell.efficiency, of="throughput")],
            _full,
        ),
        ("Fairness (slowest / fastest)", [Curve("fairness", "")], _one),
    ]
    if on_gpu:
        panels += [
            ("GPU energy per request (J)", [Curve("energy", "")], None),
            ("GPU memory (GiB)", [Curve("gpu_memory", "", 1 / _GIB)], None),
        ]
    else:
        panels += [
            ("CPU (cores)", [Curve("cpu_usage", "")], None),
            ("CPU pressure (% of time)", [Curve("cpu_psi", "")], None),
        ]
    with style():
        figure = new_figure(10, 5.6)
        grid = figure.subplots(2, 3).ravel()
        for axes, (title, curves, extra) in zip(grid, panels, strict=True):
            axes.set_title(title)
            _panel(axes, groups, curves, extra)
        bottom = 0.09
        if len(groups) > 1:
            handles, labels = grid[0].get_legend_handles_labels()
            figure.legend(handles, labels, loc="lower center", ncols=min(len(labels), _LEGEND_COLUMNS))
            bottom += 0.02 + 0.035 * -(-len(labels) // _LEGEND_COLUMNS)
        figure.subplots_adjust(left=0.055, right=0.985, top=0.94, bottom=bottom, hspace=0.36, wspace=0.2)
        spoken = ", ".join(
            _spoken(cell, cell.estimates["throughput"], "requests/s")
            for cell in cells
            if "throughput" in cell.estimates
        )
        title = f"{workload}: against the number of replicas"
        return finished(figure, f"scaling-{workload}", title, f"{workload}, throughput: {spoken}")


def _groups(analysis: CampaignAnalysis) -> dict[str, list[Cell]]:
    """Cells of one line, by its label: the workload, the sharing mode where there are several, and the condition."""
    several = len({cell.mode for cell in analysis.cells}) > 1
    groups: dict[str, list[Cell]] = {}
    for cell in sorted(analysis.cells, key=lambda cell: (analysis.workloads().index(cell.workload), cell.replicas)):
        parts = [cell.workload, cell.mode if several else "", cell.condition]
        label = ", ".join(part for part in parts if part)
        groups.setdefault(label, []).append(cell)
    return groups


def _panel(
    axes: Axes,
    groups: dict[str, list[Cell]],
    curves: Sequence[Curve],
    extra: Callable[[Axes, Sequence[Cell]], None] | None,
) -> None:
    cells = [cell for group in groups.values() for cell in group]
    if not any(curve.estimate(cell) for curve in curves for cell in cells):
        reasons = [cell.absent[curves[0].measure] for cell in cells if curves[0].measure in cell.absent]
        say_absent(axes, reasons[-1] if reasons else "no run can be used")
        return
    if extra:
        extra(axes, cells)
    several = len(groups) > 1
    for position, (label, group) in enumerate(groups.items()):
        for number, curve in enumerate(curves):
            # Several groups are told apart by colour and their curves by dashes; the curves of one by colour.
            drawn = replace(curve, label=label) if several else replace(curve, dashes="-")
            draw(axes, group, drawn, position if several else number)
    replica_axis(axes, _counts(cells))
    if len(curves) > 1:
        logarithmic(axes)
    else:
        from_zero(axes)
    if several:
        kinds = [
            Line2D([], [], color=INK, linestyle=curve.dashes, label=curve.label) for curve in curves if curve.label
        ]
        if kinds:
            axes.legend(handles=kinds, loc="best")
    elif axes.get_legend_handles_labels()[1]:
        axes.legend(loc="best")


def draw(axes: Axes, cells: Sequence[Cell], line: Curve, index: int) -> None:
    """One line with its intervals, and the single runs as dots; nothing where nothing was measured."""
    points = [(cell.replicas, found) for cell in cells if (found := line.estimate(cell))]
    if not points:
        return
    colour, marker = PALETTE[index % len(PALETTE)], MARKERS[index % len(MARKERS)]
    estimates = [estimate for _, estimate in points]
    interval_curve(
        axes, [count for count, _ in points], estimates, line.scale, (colour, marker, line.dashes), line.label
    )
    for cell in cells:
        each = [figure * line.scale for figure in line.each(cell)]
        if each:
            (dots,) = axes.plot([cell.replicas] * len(each), each, ".", color=colour, markersize=7, zorder=3)
            dots.set(gid=line.label, markeredgecolor=PAPER, markeredgewidth=0.6)


def _ideal(axes: Axes, cells: Sequence[Cell]) -> None:
    single = max(
        (cell.estimates["throughput"] for cell in cells if cell.replicas == 1 and "throughput" in cell.estimates),
        key=lambda estimate: estimate.mean,
        default=None,
    )
    if single is None:
        return
    counts = _counts(cells)
    best = max(cell.estimates["throughput"].mean for cell in cells if "throughput" in cell.estimates)
    reach = [float(counts[0]), min(float(counts[-1]), _IDEAL_REACH * best / single.mean)]
    axes.plot(reach, [single.mean * count for count in reach], color=FAINT, linestyle=":", label="ideal")


def _full(axes: Axes, _cells: Sequence[Cell]) -> None:
    axes.axhline(100, color=FAINT, linestyle=":")


def _one(axes: Axes, _cells: Sequence[Cell]) -> None:
    axes.axhline(1, color=FAINT, linestyle=":")


def _p99_growth(cells: Sequence[Cell]) -> Pick:
    single = next((cell.estimates.get("latency_p99_exact") for cell in cells if cell.replicas == 1), None)

    def pick(cell: Cell) -> Estimate | None:
        own = cell.estimates.get("latency_p99_exact")
        if own is None or single is None:
            return None
        return Estimate(own.mean / single.mean, None, None, own.n, None)

    return pick


def _counts(cells: Sequence[Cell]) -> list[int]:
    return sorted({cell.replicas for cell in cells})


def replica_axis(axes: Axes, counts: Sequence[int]) -> None:
    """Ticks at the measured counts."""
    axes.set_xticks(counts)
    axes.set_xlim(counts[0] - 0.4, counts[-1] + 0.4)
    axes.set_xlabel("replicas")


def _spoken(cell: Cell, estimate: Estimate, unit: str) -> str:
    plural = "replica" if cell.replicas == 1 else "replicas"
    return f"{cell.replicas} {plural} {with_interval(estimate, unit)}"
