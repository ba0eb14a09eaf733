"""The look of every plot: one palette that colour-blind readers can tell apart, thin axes, plain words."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#8C6D31")
"""Okabe and Ito's colours, in an order that keeps neighbours apart; none is told from another by hue alone."""
MARKERS = "osD^vPX*"
INK, FAINT, PAPER = "#333333", "#9aa0a6", "#ffffff"
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
    "axes.titlecolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e6e9",
    "grid.linewidth": 0.8,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "figure.facecolor": PAPER,
    "savefig.facecolor": PAPER,
    "svg.fonttype": "path",
    "svg.hashsalt": "harness",
}


@dataclass(frozen=True, slots=True)
class Picture:
    """One finished plot.

    Attributes:
        name: file name without its ending.
        title: what it shows.
        alt: the same for those who cannot see it, with the numbers that matter.
        png: the image.
        svg: the same as a drawing; None for dense time series, which are smaller as pixels.
    """

    name: str
    title: str
    alt: str
    png: bytes
    svg: bytes | None = None


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
    image = Image.open(drawn).convert("RGB").quantize(_COLOURS, dither=Image.Dither.NONE)
    stream = io.BytesIO()
    image.save(stream, "PNG", optimize=True)
    return stream.getvalue()


def to_svg(figure: Figure) -> bytes:
    """The figure as SVG, the same bytes for the same data."""
    stream = io.BytesIO()
    figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
    return stream.getvalue()


def say_absent(axes: Axes, reason: str) -> None:
    """An empty panel that says why it is empty."""
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.set_facecolor("#f6f7f8")
    text = "\n".join(textwrap.wrap(f"not measured: {reason}", 44)[:5])
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color="#6b7075", fontsize=8.5)


def from_zero(axes: Axes) -> None:
    """Let the y axis begin at 0, with room above for the largest value."""
    top = axes.dataLim.y1
    axes.set_ylim(0, top * 1.1 if top > 0 else 1)


def plain_ticks(value: float, _position: int) -> str:
    """Tick labels of a logarithmic axis without powers of ten."""
    return f"{value:,.10g}"
