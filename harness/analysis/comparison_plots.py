"""Plots of the comparison page: a column for every workload, a line for every way of running it."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from matplotlib.axes import Axes

from harness.analysis.chart import FAINT, INK, PALETTE
from harness.analysis.contrasts.comparison import CellKey, Comparison
from harness.analysis.figure_style import Picture, finished, from_zero, logarithmic, new_figure, say_absent, style
from harness.analysis.format import number
from harness.analysis.scaling_plots import Curve, Pick, draw, replica_axis
from harness.analysis.statistics import Estimate
from harness.analysis.statistics.scaling_models import Fit

_COLUMN_IN, _ROW_IN, _WIDEST_IN, _BARS_IN = 3.4, 2.5, 10.0, 5.0
_CURVE_POINTS, _LABEL_LETTERS = 100, 28


@dataclass(frozen=True, slots=True)
class Row:
    """One row of panels.

    Attributes:
        measure: what is shown.
        label: of its axis.
        scale: from the measure's unit to the axis's.
        pick: another figure than the measure of that name.
        logarithmic: whether the axis is.
        line: a horizontal line, in the measure's unit.
        curves: fitted law by workload and label of the arm.
    """

    measure: str
    label: str
    scale: float = 1.0
    pick: Pick | None = None
    logarithmic: bool = False
    line: float | None = None
    curves: Mapping[tuple[str, str], Fit] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Points:
    """One bar: its label, its value, and the factor to the axis's unit."""

    label: str
    estimate: Estimate
    scale: float = 1.0


def by_workload(comparison: Comparison, name: str, title: str, rows: Sequence[Row]) -> Picture | None:
    """Figures against replicas, a column for each workload; None when there is nothing to show."""
    workloads = comparison.workloads()
    if not workloads:
        return None
    with style():
        width_in = min(max(_WIDEST_IN, _COLUMN_IN * len(workloads)), _WIDEST_IN / 2 * len(workloads))
        figure = new_figure(width_in, _ROW_IN * len(rows) + 0.7)
        grid = figure.subplots(len(rows), len(workloads), squeeze=False)
        for row, line in zip(rows, grid, strict=True):
            for workload, axes in zip(workloads, line, strict=True):
                _panel(axes, comparison, workload, row)
            line[0].set_ylabel(row.label)
        for axes, workload in zip(grid[0], workloads, strict=True):
            axes.set_title(workload)
        handles = {
            label: handle
            for axes in grid.ravel()
            for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
        }
        figure.tight_layout(rect=(0, 0, 1, 1 - 0.3 / (_ROW_IN * len(rows) + 0.7)))
        shown = [arm.label for arm in comparison.arms if arm.label in handles]
        figure.legend([handles[label] for label in shown], shown, loc="upper right", ncols=max(1, min(6, len(handles))))
        return finished(figure, f"comparison-{name}", title, f"{title}: {_spoken(comparison, rows[0])}", png=False)


def bars(name: str, title: str, label: str, points: Sequence[Points]) -> Picture | None:
    """Values beside each other with their intervals; None without any."""
    if not points:
        return None
    with style():
        figure = new_figure(_BARS_IN, 0.44 * len(points) + 1.0)
        axes = figure.subplots()
        places = np.arange(len(points))[::-1]
        means = [one.estimate.mean * one.scale for one in points]
        low = [_arm(one.estimate.mean, one.estimate.low) * one.scale for one in points]
        high = [_arm(one.estimate.high, one.estimate.mean) * one.scale for one in points]
        axes.barh(places, means, color=PALETTE[4], height=0.6)
        axes.errorbar(means, places, xerr=[low, high], fmt="none", ecolor=INK, elinewidth=1, capsize=3)
        axes.set_yticks(places, [textwrap.fill(one.label, _LABEL_LETTERS) for one in points])
        axes.axvline(0, color=FAINT)
        axes.set_xlabel(label)
        axes.grid(visible=False, axis="y")
        figure.tight_layout()
        spoken = ", ".join(f"{one.label} {number(mean)} {label}" for one, mean in zip(points, means, strict=True))
        return finished(figure, f"comparison-{name}", title, f"{title}: {spoken}", png=False)


def _arm(upper: float | None, lower: float | None) -> float:
    return 0.0 if upper is None or lower is None else upper - lower


def _panel(axes: Axes, comparison: Comparison, workload: str, row: Row) -> None:
    drawn = False
    for index, arm in enumerate(comparison.arms):
        cells = [arm.cells[CellKey(workload, count)] for count in arm.counts(workload)]
        curve = Curve(row.measure, arm.label, row.scale, row.pick)
        if any(curve.estimate(cell) for cell in cells):
            draw(axes, cells, curve, index)
            drawn = True
        fit = row.curves.get((workload, arm.label))
        if fit is not None:
            n = np.linspace(1, max(arm.counts(workload)), _CURVE_POINTS)
            values = np.array([estimate.mean for estimate in fit.parameters.values()])
            colour = PALETTE[index % len(PALETTE)]
            axes.plot(n, fit.law.curve(n, values) * row.scale, "--", color=colour, linewidth=1, gid=arm.label)
    if not drawn:
        reasons = [
            cell.absent[row.measure]
            for arm in comparison.arms
            for cell in arm.cells.values()
            if row.measure in cell.absent
        ]
        say_absent(axes, reasons[-1] if reasons else "no run gives it")
        return
    replica_axis(axes, comparison.counts(workload))
    if row.line is not None:
        axes.axhline(row.line * row.scale, color=INK, linestyle=":", linewidth=1)
    if row.logarithmic:
        logarithmic(axes)
    else:
        from_zero(axes)


def _spoken(comparison: Comparison, row: Row) -> str:
    """The means of the first row, for those who cannot see it."""
    curve = Curve(row.measure, "", row.scale, row.pick)
    return "; ".join(
        f"{workload} under {arm.label}: "
        + ", ".join(
            f"{count} replicas {number(estimate.mean * row.scale)}"
            for count in arm.counts(workload)
            if (estimate := curve.estimate(arm.cells[CellKey(workload, count)]))
        )
        for workload in comparison.workloads()
        for arm in comparison.arms
        if arm.counts(workload)
    )
