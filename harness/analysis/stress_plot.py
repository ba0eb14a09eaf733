"""The curve of a stress campaign: throughput and latency against the load, and where it breaks."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes

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
from harness.analysis.stress import LoadPoint, StressSeries, in_words
from harness.spec import StressLoad, StressSpec

_MS = 1e3
_LOADS = {StressLoad.REPLICAS: "replicas", StressLoad.RATE: "requests/s per replica", StressLoad.BATCH: "batch size"}
_BROKEN = PALETTE[1]


def stress_curve(series: StressSeries, stress: StressSpec) -> Picture | None:
    """Throughput and limited percentiles (p99 without a limit) of every point; None before any has figures."""
    measured = [point for point in series.points if point.run.figures]
    if not measured:
        return None
    limits: dict[str, float | None] = {each.value: limit for each, limit in stress.latency_limit_ms.items()}
    with style():
        figure = new_figure(10, 3.7)
        left, right = figure.subplots(1, 2)
        _draw(left, measured, "throughput", 1.0, PALETTE[0], "throughput")
        left.set_title("Throughput (requests/s)")
        for index, (percentile, limit_ms) in enumerate((limits or {"p99": None}).items()):
            colour = PALETTE[2 + index]
            _draw(right, measured, f"latency_{percentile}_exact", _MS, colour, percentile)
            if limit_ms is not None:
                right.axhline(limit_ms, color=colour, linestyle=":", label=f"limit of {percentile}")
        right.set_title("Latency (ms)")
        for axes in (left, right):
            _finish(axes, series)
        figure.subplots_adjust(left=0.06, right=0.985, top=0.9, bottom=0.15, wspace=0.14)
        told = ", ".join(
            f"{in_words(point.load, series.unit)} {point.run.figures['throughput'].mean:.4g} requests/s ({point.grade})"
            for point in measured
        )
        name = f"stress-{series.name.replace(' under ', '-').replace(', ', '-').replace(' ', '-')}"
        return finished(figure, name, f"{series.name}: load until it breaks", f"{series.name}: {told}")


def _draw(axes: Axes, points: Sequence[LoadPoint], name: str, scale: float, colour: str, label: str) -> None:
    found = [(point, point.run.figures[name]) for point in points if point.run.figures[name].mean > 0]
    if not found:
        say_absent(axes, points[-1].run.figures[name].note)
        return
    loads = [point.load for point, _ in found]
    look = (colour, MARKERS[PALETTE.index(colour)], "-")
    interval_curve(axes, loads, [estimate for _, estimate in found], scale, look, label)


def _finish(axes: Axes, series: StressSeries) -> None:
    """The axis of the load, the last good point, and the broken one even where it has no figures."""
    doubling(axes)
    axes.set_xlabel(_LOADS[series.unit])
    if series.last_good is not None:
        axes.axvline(series.last_good.load, color=FAINT, linestyle="--", label="last good point")
    if series.broken is not None:
        axes.axvline(series.broken.load, color=_BROKEN, linestyle="--", label=f"breaks: {series.broken.failure_mode}")
    if axes.has_data():
        from_zero(axes)
    axes.legend(loc="best")
