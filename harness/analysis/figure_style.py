"""The look of every plot: one palette that colour-blind readers can tell apart, thin axes, plain words."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from PIL import Image

from harness.analysis.chart import FAINT, GRID, INK, PAPER, RAISED, SOFT, Chart, chart, name_of
from harness.analysis.statistics import Estimate

MARKERS = "osD^vPX*"
_FAR = 2.0  # An interval that reaches further than so many times the values would flatten them.
_FEW_DOUBLINGS = 4
_DENSE_TICKS = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9)
_COLOURS = 128
_DPI = 150

_STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titley": 1.0,  # where it is anyway; without it, every label is measured to keep clear of it
    "axes.titlecolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "figure.facecolor": PAPER,
    "savefig.facecolor": PAPER,
    "svg.fonttype": "none",
    "svg.hashsalt": "harness",
}


@dataclass(frozen=True, slots=True)
class Picture:
    """One finished plot.

    Attributes:
        name: file name without its ending.
        title: what it shows.
        alt: the same for those who cannot see it, with the numbers that matter.
        file: of the image: the name, and whether it is a PNG or an SVG.
        image: what that file holds.
        chart: the same for a page.
    """

    name: str
    title: str
    alt: str
    file: str
    image: bytes
    chart: Chart


@contextmanager
def style(line_width: float = 1.4) -> Iterator[None]:
    """Draw in the house style, leaving matplotlib's settings as they were."""
    with mpl.rc_context(_STYLE | {"lines.linewidth": line_width}):  # type: ignore[arg-type]  # its key type is a list of 300 literals
        yield


def new_figure(width_in: float, height_in: float) -> Figure:
    """An empty figure of its own, outside pyplot's global state."""
    figure = Figure(figsize=(width_in, height_in))
    FigureCanvasAgg(figure)
    return figure


def to_png(figure: Figure) -> bytes:
    """The figure as PNG with a palette: a third of the size, and no visible difference for lines and text."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=_DPI, pil_kwargs={"compress_level": 0})
    # Other than the default, this way of choosing the palette keeps the colours that few pixels have.
    palette = Image.Quantize.MAXCOVERAGE
    image = Image.open(drawn).convert("RGB").quantize(_COLOURS, palette, dither=Image.Dither.NONE)
    stream = io.BytesIO()
    image.save(stream, "PNG", optimize=True)
    return stream.getvalue()


def finished(figure: Figure, name: str, title: str, alt: str, *, png: bool = True) -> Picture:
    """The figure as picture and chart; it is used up. As an SVG it is drawn once for both, in half the time."""
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        if not axis.get_label_text():
            # Otherwise all ticks are measured to keep a label that is not there clear of them.
            axis.set_label_coords(0, 0)
    pixels = to_png(figure) if png else b""
    drawn, vectors = chart(figure, name, title, alt)
    return Picture(name, title, alt, f"{name}.{'png' if png else 'svg'}", pixels or vectors, drawn)


def say_absent(axes: Axes, reason: str) -> None:
    """An empty panel that says why it is empty."""
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.set_facecolor(RAISED)
    text = "\n".join(textwrap.wrap(f"not measured: {reason}", 34)[:6])
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=SOFT, fontsize=8.5)


def interval_curve(
    axes: Axes, x: Sequence[float], estimates: Sequence[Estimate], scale: float, look: tuple[str, str, str], label: str
) -> None:
    """Means joined by a line, with their intervals, of which none goes below 0: nothing here can.

    ``look``: colour, marker and dashes.
    """
    means = [scale * each.mean for each in estimates]
    below = [0.0 if each.low is None else scale * (each.mean - max(each.low, 0.0)) for each in estimates]
    above = [0.0 if each.high is None else scale * (each.high - each.mean) for each in estimates]
    colour, marker, dashes = look
    axes.errorbar(
        x,
        means,
        yerr=[below, above],
        color=colour,
        linestyle=dashes,
        marker=marker,
        markersize=5,
        capsize=3,
        elinewidth=1,
        label=label,
    )


def from_zero(axes: Axes) -> None:
    """Let the y axis begin at 0, with room above for the largest value; an interval far above it ends in an arrow."""
    highest = max(_heights(axes), default=0.0)
    top = min(axes.dataLim.y1, _FAR * highest)
    axes.set_ylim(0, top * 1.1 if top > 0 else 1)
    _arrows(axes)


def logarithmic(axes: Axes) -> None:
    """A logarithmic y axis with plain numbers; an interval far beyond all values ends in an arrow."""
    heights = [height for height in _heights(axes) if height > 0] or [1.0]
    low, high = max(axes.dataLim.y0, min(heights) / _FAR), min(axes.dataLim.y1, max(heights) * _FAR)
    axes.set_yscale("log")
    axes.set_ylim(low / 1.1, high * 1.1)
    dense = high / low < _FEW_DOUBLINGS
    axes.yaxis.set_major_locator(LogLocator(subs=_DENSE_TICKS if dense else (1, 2, 3, 5, 7)))
    axes.yaxis.set_major_formatter(FuncFormatter(plain_ticks))
    axes.yaxis.set_minor_formatter(NullFormatter())
    _arrows(axes)


def doubling(axes: Axes) -> None:
    """A logarithmic x axis whose ticks are powers of two, as plain numbers."""
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(LogLocator(base=2))
    axes.xaxis.set_major_formatter(FuncFormatter(plain_ticks))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _intervals(axes: Axes) -> list[ErrorbarContainer]:
    return [each for each in axes.containers if isinstance(each, ErrorbarContainer)]


def _heights(axes: Axes) -> list[float]:
    """What is drawn but for the ends of intervals."""
    caps = {cap for each in _intervals(axes) for cap in each.lines[1]}
    values = [np.asarray(line.get_ydata(orig=False), dtype=float) for line in axes.lines if line not in caps]
    return [float(value) for value in np.concatenate([*values, np.empty(0)]) if np.isfinite(value)]


def _arrows(axes: Axes) -> None:
    """Where an interval is cut at the edge of the panel."""
    low, high = axes.get_ylim()
    for each in _intervals(axes):
        for arm in each.lines[2]:
            for (x, start), (_, end) in arm.get_segments():
                for beyond, edge, marker in ((end > high, high, "^"), (start < low, low, "v")):
                    if beyond:
                        arrow = axes.scatter(
                            [x], [edge], s=22, color=arm.get_color(), marker=marker, clip_on=False, zorder=4
                        )
                        arrow.set_gid(name_of(each))


def plain_ticks(value: float, _position: int) -> str:
    """Tick labels of a logarithmic axis without powers of ten."""
    return f"{value:,.10g}"
