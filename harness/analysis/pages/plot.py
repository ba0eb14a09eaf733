"""Plots as data: panels of series with intervals, axes and ticks; and as PNG files, by matplotlib, which the extra ``plot`` brings."""

from __future__ import annotations

import io
import logging
import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from harness.analysis.statistics import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#111111", "#8C6D31")
"""Okabe and Ito's colours, in an order that keeps neighbours apart; none is told from another by hue alone."""
FAINT, INK = -1, -2
"""Colours of what is no measured series: of a reference, of an interval."""
_FAR = 2.0
"""An interval that reaches further than so many times the values would flatten them: it ends in an arrow."""
_MOST_POINTS = 240
"""Of a line without markers; of more, the highest and lowest of each stretch, which look the same."""
_STEPS = (1, 2, 2.5, 5, 10)
_LOG_TICKS = (1, 2, 3, 5, 7)
_LOG_DENSE = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9)
_FEW_DOUBLINGS = 4
_PNG_MARKERS = "osD^vPX*"
_DPI, _COLOURS = 150, 128
_STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.edgecolor": "#9aa0a6",
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e6e9",
    "grid.linewidth": 0.8,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "legend.frameon": False,
    "legend.fontsize": 8,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlotSeries:
    """Points, joined or not, or lying bars.

    Attributes:
        x, y: of the points, NaN where nothing was measured; of bars their ends and places.
        low, high: ends of the intervals, of y or of the bars' ends; empty without any.
        colour: index in the palette, which chooses the marker, too; or FAINT, INK.
        dashes: of the line, as matplotlib has them; empty: the points are not joined.
        runs: the points are single runs, small dots.
        silent: its values are not shown to who points at them.
        starts, labels: of bars, where each begins and what it is called; of points in rows (see ``Panel.rows``) the row of each.
    """

    x: Sequence[float]
    y: Sequence[float]
    name: str = ""
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    colour: int = 0
    dashes: str = "-"
    markers: bool = False
    runs: bool = False
    thin: bool = False
    silent: bool = False
    starts: Sequence[float] = ()
    labels: Sequence[str] = ()

    @property
    def begins(self) -> Sequence[float]:
        """Where each bar begins: at 0, unless it says where."""
        return self.starts or [0.0] * len(self.x)


@dataclass(frozen=True, slots=True)
class ReferenceLine:
    """A reference line across a panel."""

    at: float
    name: str = ""
    colour: int = FAINT
    dashes: str = ":"
    vertical: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One pair of axes.

    Attributes:
        title: what is shown, with its unit; ``note`` stands beside it in small letters.
        rows: in which points lie, with intervals along x: where the middle of each is, from the top; empty: y is a number. On a page alone.
        depth: of all rows together.
        x_ticks: where the x axis has its ticks; empty: where they fit.
        x_range: ends of the x axis; None: around the ticks or the points.
        doubling: the x axis is logarithmic with ticks at powers of two; ``logarithmic``: the y axis is.
        top: upper end of the y axis; None: above the largest value.
        absent: why there is nothing to show.
    """

    title: str
    note: str = ""
    x_label: str = ""
    rows: Mapping[str, float] = field(default_factory=dict)
    depth: float = 0.0
    series: Sequence[PlotSeries] = ()
    rules: Sequence[ReferenceLine] = ()
    x_ticks: Sequence[float] = ()
    x_range: tuple[float, float] | None = None
    doubling: bool = False
    logarithmic: bool = False
    top: float | None = None
    absent: str = ""

    @property
    def in_words(self) -> str:
        """Its title, and the values of its bars and of the lines that have markers."""
        if self.rows:
            marked = [series for series in self.series if series.markers]
            values = [
                (label, series.name, x) for series in marked for label, x in zip(series.labels, series.x, strict=True)
            ]
            rows = [
                (row, [f"{name} {x:.4g}".strip() for label, name, x in values if label == row]) for row in self.rows
            ]
            return "; ".join([self.title, *(f"{row}: {', '.join(texts)}" for row, texts in rows)])
        lines = [
            f"{series.name}: " + ", ".join(f"{y:.4g} at {x:g}" for x, y in zip(series.x, series.y, strict=True))
            for series in self.series
            if series.markers
        ]
        bars = [f"{label} {x:.4g}" for series in self.series for label, x in zip(series.labels, series.x, strict=False)]
        return "; ".join([self.title, *lines, *bars])

    @property
    def bars(self) -> Sequence[str]:
        """Labels of its rows or lying bars, from the top; empty where y is a number."""
        return [*self.rows] or (self.series[0].labels if self.series else ())

    def x_axis(self) -> tuple[float, float]:
        """Ends of the x axis."""
        if self.x_range:
            return self.x_range
        rules = [rule.at for rule in self.rules if rule.vertical]
        reach = [*(value for series in self.series for value in series.x)]
        if self.bars:
            reach += [value for series in self.series for value in (*series.low, *series.high, *series.starts)]
        values = _finite([*self.x_ticks, *rules, *reach])
        low, high = (min(values), max(values)) if values else (0.0, 1.0)
        if self.bars:
            points = _finite([*rules, *(x for series in self.series for x in series.x)])
            low, high = max(low, min(0.0, _FAR * min(points))), min(high, max(0.0, _FAR * max(points)))
            span = max(high, 0.0) - min(low, 0.0) or 1.0
            return min(low * 1.05, 0.0), max(high, 0.0) + 0.05 * span
        if self.doubling:
            return low / 2**0.25, high * 2**0.25
        return (low - 0.4, high + 0.4) if self.x_ticks else (low, high if high > low else low + 1)

    def y_axis(self) -> tuple[float, float]:
        """Ends of the y axis: from 0, or around all values; an interval far above them is cut."""
        if self.rows:
            return 0.0, self.depth
        if self.bars:
            return -0.6, len(self.bars) - 0.4
        if self.top is not None:
            return 0.0, self.top
        points = _finite(value for series in self.series for value in series.y)
        points += [rule.at for rule in self.rules if not rule.vertical]
        ends = points + _finite(value for series in self.series for value in (*series.low, *series.high))
        if self.logarithmic:
            points, ends = [y for y in points if y > 0] or [1.0], [y for y in ends if y > 0] or [1.0]
            return max(min(ends), min(points) / _FAR) / 1.1, min(max(ends), max(points) * _FAR) * 1.1
        top = min(max(ends, default=0.0), _FAR * max(points, default=0.0))
        return 0.0, top * 1.1 if top > 0 else 1.0

    def x_marks(self) -> Sequence[float]:
        """Ticks of the x axis."""
        low, high = self.x_axis()
        if self.doubling:
            powers = range(math.ceil(math.log2(low)), math.floor(math.log2(high)) + 1)
            return [2.0**power for power in powers]
        return self.x_ticks or linear_ticks(low, high)

    def y_marks(self) -> Sequence[float]:
        """Ticks of the y axis."""
        return log_ticks(*self.y_axis()) if self.logarithmic else linear_ticks(*self.y_axis())


@dataclass(frozen=True, slots=True)
class Picture:
    """One finished plot: file name without its ending, title, panels by row.

    ``size``: of a panel, width and height in points. ``png``: its file is a PNG, where there is matplotlib; else it is an SVG.
    """

    name: str
    title: str
    panels: Sequence[Panel]
    columns: int = 1
    size: tuple[float, float] = (240.0, 200.0)
    png: bool = False

    @property
    def alt(self) -> str:
        """The title and what the panels show, with the numbers of the first, for those who cannot see it."""
        first, *others = [panel for panel in self.panels if not panel.absent] or self.panels
        return ". ".join([self.title, first.in_words, *(panel.title for panel in others)])


def interval_series(
    x: Sequence[float], estimates: Sequence[Estimate], scale: float, colour: int, name: str, dashes: str = "-"
) -> PlotSeries:
    """Means joined by a line, with their intervals, of which none goes below 0: nothing here can."""
    return PlotSeries(
        x=x,
        y=[scale * estimate.mean for estimate in estimates],
        low=[scale * (estimate.mean if estimate.low is None else max(estimate.low, 0.0)) for estimate in estimates],
        high=[scale * (estimate.mean if estimate.high is None else estimate.high) for estimate in estimates],
        colour=colour,
        dashes=dashes,
        markers=True,
        name=name,
    )


def thinned(series: PlotSeries) -> PlotSeries:
    """A long line without markers by the lowest and the highest value of each stretch, where they were."""
    x, y = np.asarray(series.x, dtype=float), np.asarray(series.y, dtype=float)
    if len(x) <= _MOST_POINTS or series.markers or series.runs:
        return series
    kept: set[int] = set()
    for stretch in np.array_split(np.arange(len(y)), _MOST_POINTS // 2):
        known = stretch[~np.isnan(y[stretch])]
        kept |= {int(known[y[known].argmin()]), int(known[y[known].argmax()])} if len(known) else {int(stretch[0])}
    index = sorted(kept)
    return replace(series, x=x[index].tolist(), y=y[index].tolist())


def linear_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers between two ends, at most so many."""
    power = 10.0 ** math.floor(math.log10((high - low) / most))
    step = next(step * power for step in _STEPS if (high - low) / (step * power) <= most)
    first = math.ceil(low / step - 1e-9)
    return [round(step * index, 12) for index in range(first, math.floor(high / step + 1e-9) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Plain numbers between two positive ends."""
    leading = _LOG_DENSE if high / low < _FEW_DOUBLINGS else _LOG_TICKS if high / low < 100 else (1,)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [tick for power in powers for digit in leading if low <= (tick := digit * 10.0**power) <= high]


def tick_text(value: float) -> str:
    """Without an exponent and without noise: ``2,000``, ``0.25``."""
    return f"{value:,.6g}" if abs(value) < 1e6 else f"{value:,.0f}"


def _finite(values: Iterable[float]) -> list[float]:
    return [float(value) for value in values if math.isfinite(value)]


def png(picture: Picture) -> bytes:
    """The picture with a palette: a third of the size, and no visible difference for lines and text.

    Raises ModuleNotFoundError without matplotlib.
    """
    # That fonts are looked up anew, or a home cannot be written, is no matter of the user's.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from PIL import Image

    rows = -(-len(picture.panels) // picture.columns)
    width, height = picture.size
    with mpl.rc_context(_STYLE):  # type: ignore[arg-type]  # its key type is a list of 300 literals
        figure = Figure(figsize=(width * picture.columns / 72, (height * rows + 16) / 72), layout="constrained")
        FigureCanvasAgg(figure)
        grid = figure.subplots(rows, picture.columns, squeeze=False).ravel()
        for axes, panel in zip(grid, picture.panels, strict=False):
            _draw(axes, panel)
        for axes in grid[len(picture.panels) :]:
            axes.set_axis_off()
        handles = {
            label: handle for axes in grid for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
        }
        if len(handles) > 1:
            figure.legend(handles.values(), handles, loc="outside upper right", ncols=min(6, len(handles)))
        drawn = io.BytesIO()
        figure.savefig(drawn, format="png", dpi=_DPI, pil_kwargs={"compress_level": 0})
    # Other than the default, this way of choosing the palette keeps the colours that few pixels have.
    palette = Image.Quantize.MAXCOVERAGE
    image = Image.open(drawn).convert("RGB").quantize(_COLOURS, palette, dither=Image.Dither.NONE)
    stream = io.BytesIO()
    image.save(stream, "PNG", optimize=True)
    return stream.getvalue()


def _colour(index: int) -> str:
    return {FAINT: "#9aa0a6", INK: "#333333"}.get(index, PALETTE[index % len(PALETTE)])


def _draw(axes: Axes, panel: Panel) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axes.set_title(panel.title)
    axes.set_title(panel.note, loc="right", fontsize=7.5, fontweight="normal")
    if panel.absent:
        axes.set_axis_off()
        words = "\n".join(textwrap.wrap(f"not measured: {panel.absent}", 34)[:6])
        axes.text(0.5, 0.5, words, transform=axes.transAxes, ha="center", va="center", color="#6b7075", fontsize=8.5)
        return
    for rule in panel.rules:
        line = axes.axvline if rule.vertical else axes.axhline
        line(rule.at, color=_colour(rule.colour), linestyle=rule.dashes, linewidth=1, label=rule.name or None)
    low, high = panel.y_axis()
    for series in panel.series:
        colour = _colour(series.colour)
        if series.labels:
            starts = list(series.begins)
            widths = [end - start for start, end in zip(starts, series.x, strict=True)]
            axes.barh(list(series.y), widths, left=starts, color=colour, height=0.6, label=series.name or None)
            continue
        if series.runs:
            axes.plot(series.x, series.y, ".", color=colour, markersize=7, markeredgecolor="#fff", markeredgewidth=0.6)
            continue
        least = low if panel.logarithmic else -math.inf
        ends = zip(series.y, series.low, series.high, strict=True) if series.low else ()
        arms = [[y - max(below, least), above - y] for y, below, above in ends]
        axes.errorbar(
            series.x,
            series.y,
            yerr=list(zip(*arms, strict=True)) if arms else None,
            color=colour,
            linestyle=series.dashes or "none",
            linewidth=0.8 if series.thin else 1.4,
            marker=_PNG_MARKERS[series.colour % len(_PNG_MARKERS)] if series.markers else "",
            markersize=5,
            capsize=3,
            elinewidth=1,
            label=series.name or None,
        )
    axes.set_xscale("log", base=2) if panel.doubling else None
    axes.set_yscale("log") if panel.logarithmic else None
    axes.set_xlim(*panel.x_axis())
    axes.set_ylim(*((high, low) if panel.bars else (low, high)))
    axes.set_xlabel(panel.x_label)
    axes.xaxis.set_major_locator(FixedLocator(list(panel.x_marks())))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: tick_text(value)))
    axes.yaxis.set_minor_locator(NullLocator())
    if panel.bars:
        axes.set_yticks(range(len(panel.bars)), [textwrap.fill(label, 34) for label in panel.bars])
        return
    axes.yaxis.set_major_locator(FixedLocator(list(panel.y_marks())))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: tick_text(value)))
