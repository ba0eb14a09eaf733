"""Pictures as PNG files, by matplotlib, which the extra ``plot`` brings."""

from __future__ import annotations

import io
import logging
import math
import textwrap
from typing import TYPE_CHECKING

from harness.analysis.pages.plot import FAINT, INK, PALETTE, Panel, Picture, tick_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MARKERS = "osD^vPX*"
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
            starts = list(series.starts) or [0.0] * len(series.x)
            widths = [end - start for start, end in zip(starts, series.x, strict=True)]
            axes.barh(list(series.y), widths, left=starts, color=colour, height=0.6, label=series.name or None)
            if series.low:
                arms = [
                    [x - a for x, a in zip(series.x, series.low, strict=True)],
                    [b - x for x, b in zip(series.x, series.high, strict=True)],
                ]
                axes.errorbar(series.x, series.y, xerr=arms, fmt="none", ecolor="#333333", elinewidth=1, capsize=3)
            continue
        if series.runs:
            axes.plot(
                series.x, series.y, ".", color=colour, markersize=7, markeredgecolor="#ffffff", markeredgewidth=0.6
            )
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
            marker=_MARKERS[series.colour % len(_MARKERS)] if series.markers else "",
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
