"""The pictures of a profile: speed and memory against the batch, and where the time goes."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes

from harness.analysis.bottleneck import Cause
from harness.analysis.chart import FAINT, PALETTE
from harness.analysis.figure_style import (
    MARKERS,
    Picture,
    doubling,
    finished,
    from_zero,
    interval_curve,
    new_figure,
    say_absent,
    style,
)
from harness.analysis.profile import CellProfile, ProfileAnalysis

_PANELS = (
    ("throughput_inputs_per_s", 1.0, "Throughput (inputs/s)"),
    ("latency_mean_s", 1e3, "Mean latency of a request (ms)"),
    ("gpu_memory_peak_percent", 1.0, "Peak GPU memory (%)"),
)
_MOST_BARS = 24


def curves(analysis: ProfileAnalysis, limit_percent: float) -> Picture:
    """Throughput, latency and memory of every series against the batch size."""
    with style():
        figure = new_figure(12, 3.8)
        for axes, (name, scale, title) in zip(figure.subplots(1, len(_PANELS)), _PANELS, strict=True):
            axes.set_title(title)
            if not _draw(axes, analysis, name, scale):
                reasons = [cell.missing.get(name, "") for cell in analysis.measured]
                say_absent(axes, next(filter(None, reasons), "no point was measured"))
                continue
            if name == "gpu_memory_peak_percent":
                axes.axhline(limit_percent, color=FAINT, linestyle="--", label=f"{limit_percent:g} %")
            _finish(axes)
        figure.axes[0].legend(loc="best") if analysis.measured else None
        figure.subplots_adjust(left=0.055, right=0.99, top=0.9, bottom=0.14, wspace=0.2)
        told = ", ".join(
            f"{cell.cell.name} {cell.estimates['throughput_inputs_per_s'].mean:.4g} inputs/s"
            for cell in analysis.measured
        )
        return finished(figure, "curves", "Speed and memory against the batch size", told)


def _draw(axes: Axes, analysis: ProfileAnalysis, name: str, scale: float) -> bool:
    drawn = False
    for index, (series, cells) in enumerate(analysis.series().items()):
        found = [(cell.cell.batch_size, cell.estimates[name]) for cell in cells if name in cell.estimates]
        if not found:
            continue
        drawn = True
        look = (PALETTE[index % len(PALETTE)], MARKERS[index % len(MARKERS)], "-")
        interval_curve(axes, [batch for batch, _ in found], [each for _, each in found], scale, look, series)
    return drawn


def _finish(axes: Axes) -> None:
    doubling(axes)
    axes.set_xlabel("batch size")
    from_zero(axes)


def where_time_goes(analysis: ProfileAnalysis) -> Picture | None:
    """The share of the time that each cause explains, one bar a setting; None where no figure says."""
    cells = [cell for cell in analysis.measured if cell.finding and any(cell.finding.shares.values())][:_MOST_BARS]
    if not cells:
        return None
    with style():
        figure = new_figure(10, 1.3 + 0.32 * len(cells))
        axes = figure.subplots()
        _stack(axes, cells)
        axes.set_title("Share of the time that each cause explains (%)")
        axes.set_xlim(0, 100)
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.legend(loc="upper center", bbox_to_anchor=(0.4, -0.12), ncols=len(Cause))
        figure.tight_layout()
        told = "; ".join(f"{cell.cell.name}: {cell.finding.sentence}" for cell in cells if cell.finding)
        return finished(figure, "time", "Where the time goes; what is left empty is not explained", told)


def _stack(axes: Axes, cells: Sequence[CellProfile]) -> None:
    names = [cell.cell.name for cell in cells]
    left = [0.0] * len(cells)
    for colour, cause in zip(PALETTE, Cause, strict=False):
        widths = [100 * ((cell.finding.shares[cause] or 0.0) if cell.finding else 0.0) for cell in cells]
        axes.barh(names, widths, left=left, color=colour, label=cause.value, height=0.7)
        left = [start + width for start, width in zip(left, widths, strict=True)]
