"""A finished figure as a chart of a page: inline SVG in the page's colours, and the plotted values for who points at them.

What is drawn is what is told: names, values and intervals are read back from matplotlib's artists. An artist belongs to
the series of its label, or of its ``gid`` where it stands in no legend; one without either is always there.
"""

from __future__ import annotations

import io
import json
import math
import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import count
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.container import BarContainer, Container, ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from harness.analysis.statistics.distributions import Floats

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#111111", "#8C6D31")
"""Okabe and Ito's colours, in an order that keeps neighbours apart; none is told from another by hue alone."""
INK, FAINT, PAPER = "#333333", "#9aa0a6", "#ffffff"
GRID, RAISED, SOFT = "#e4e6e9", "#f6f7f8", "#6b7075"
_VARIABLES = {colour.lower(): f"var(--series-{index})" for index, colour in enumerate(PALETTE)} | {
    INK: "var(--ink)",
    FAINT: "var(--faint)",
    PAPER: "var(--paper)",
    GRID: "var(--line)",
    RAISED: "var(--raised)",
    SOFT: "var(--soft)",
}
_FONT = re.compile(r"font-family: [^;]*(; )?")
_DECIMAL = re.compile(r"-?\d+\.\d+")
_REFERENCE = re.compile(r"(url\(#|^#)([\w-]+)")
_BELONGS = re.compile(r"(s\d+)-\d+$")
_MOST_POINTS = 240
"""Of a line without markers; of more, the highest and lowest of each stretch, which look the same."""
_REPLACED = "replaced"
"""Marks a legend that a page shows in its own way."""
_LONG_PATH, _MARGIN, _LARGEST = 400, 4.0, 1.75
_SWATCH = '<svg class="swatch" viewBox="0 0 24 10" aria-hidden="true">{}</svg>'


@dataclass(frozen=True, slots=True)
class Key:
    """One entry of a legend.

    Attributes:
        series: class of its elements in the drawing.
        name: of the series.
        swatch: how it is drawn, as a small SVG.
    """

    series: str
    name: str
    swatch: str


@dataclass(frozen=True, slots=True)
class Chart:
    """What a page embeds.

    Attributes:
        drawing: one SVG for each panel in a grid, which a narrow page lays below each other.
        keys: the legend; empty where one series needs none.
        data: the plotted values of each panel and where it lies, as JSON.
    """

    drawing: str
    keys: tuple[Key, ...]
    data: str


def chart(figure: Figure, name: str, title: str, alt: str) -> tuple[Chart, bytes]:
    """The chart of a figure, and the whole figure as an SVG file; its long lines are not what they were.

    Args:
        figure: finished; its axes are linear or logarithmic.
        name: that no other chart of the page has.
        title: of the drawing.
        alt: what it shows, in words.
    """
    reader = _Reader(figure)
    panels = [reader.panel(axes) for axes in figure.axes]
    for axes in figure.axes:
        _replace(axes.get_legend(), reader.names)
    root, whole = _drawn(figure, panels, f"c{zlib.crc32(name.encode()):x}")
    root.attrib |= {"role": "img", "aria-label": title, "aria-description": alt}
    swatches = {label: _swatch(root, f"s{index}") for label, index in reader.names.items() if label}
    keys = [Key(f"s{reader.names[label]}", label, swatch) for label, swatch in swatches.items()]
    if len(set(swatches.values())) < len(keys) or (
        len(panels) > 1 and "" in reader.names
    ):  # One look in several panels.
        keys = [replace(key, name=_with_panel(key.name, reader.names[key.name], panels)) for key in keys]
    data = json.dumps(panels, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")
    return Chart(ET.tostring(root, "unicode"), tuple(keys) if len(keys) > 1 else (), data), whole


def _with_panel(name: str, index: int, panels: list[dict[str, Any]]) -> str:
    """The name with its panel before it, where it is in one only."""
    titles = [panel["title"] for panel in panels if any(series["s"] == index for series in panel["series"])]
    return f"{re.split('[,(]', titles[0])[0].strip()}: {name}" if len(titles) == 1 else name


class _Reader:
    """Reads the series of a figure's panels, and marks the artists of each.

    Attributes:
        names: of the series to their numbers.
    """

    def __init__(self, figure: Figure) -> None:
        self.names: dict[str, int] = {}
        self._figure = figure
        self._numbers = count()

    def panel(self, axes: Axes) -> dict[str, Any]:
        """Where the panel lies, how its axes run, what it is called, and its series."""
        series = [*self._containers(axes), *self._lines(axes)]
        for artist in axes.get_children():
            if artist.get_gid() and not _BELONGS.match(str(artist.get_gid())):
                self._mark(str(artist.get_gid()), [artist])
        width, height = self._figure.get_size_inches() * 72
        box = axes.get_position()
        return {
            "x": [*axes.get_xlim(), box.x0 * width, box.x1 * width, int(axes.get_xscale() == "log")],
            "y": [*axes.get_ylim(), (1 - box.y0) * height, (1 - box.y1) * height, int(axes.get_yscale() == "log")],
            "title": self._first(axes, "colspan", axes.get_title("left")),
            "xName": self._first(axes, "colspan", axes.get_xlabel(), "get_xlabel"),
            "yName": self._first(axes, "rowspan", axes.get_ylabel(), "get_ylabel"),
            "series": series,
        }

    def _first(self, axes: Axes, span: str, own: str, read: str = "") -> str:
        """What the panel is called, or else the first of its row or column that is called anything."""
        place = axes.get_subplotspec()
        if own or place is None:
            return own
        for other in self._figure.axes:
            beside = other.get_subplotspec()
            if beside is not None and getattr(beside, span) == getattr(place, span):
                said = str(getattr(other, read)() if read else other.get_title("left"))
                if said:
                    return said
        return ""

    def _mark(self, name: str, artists: Iterable[Artist]) -> int:
        index = self.names.setdefault(name, len(self.names))
        for artist in artists:
            artist.set_gid(f"s{index}-{next(self._numbers)}")
        return index

    def _containers(self, axes: Axes) -> Iterator[dict[str, Any]]:
        bars: dict[str, Any] = {}
        for container in axes.containers:
            name = name_of(container)
            if isinstance(container, BarContainer):
                index = self._mark(name, container.patches)
                bars = _bars(container.patches, _labels(axes)) | {"s": index}
                yield bars
            elif isinstance(container, ErrorbarContainer):
                line, caps, arms = container.lines
                ends = [segment[:, 0 if container.has_xerr else 1] for arm in arms for segment in _segments(arm)]
                told = {"low": _plain(end[0] for end in ends), "high": _plain(end[1] for end in ends)}
                if line is None:
                    bars |= told
                    continue
                yield _points(line) | told | {"s": self._mark(name, [line, *caps, *arms])}

    def _lines(self, axes: Axes) -> Iterator[dict[str, Any]]:
        for line in axes.lines:
            if _BELONGS.match(str(line.get_gid())):
                continue
            beside, name = line.get_gid(), line.get_gid() or name_of(line)
            in_data = line.get_transform() == axes.transData
            marked = line.get_marker() not in {"None", "none", "", None}
            if in_data and not marked:
                _thin(line)
            if not (name or marked):
                continue
            index, points = self._mark(str(name), [line]), _points(line)
            if in_data and points["x"] and (marked or not beside):
                yield points | {"s": index} | ({"run": 1} if line.get_marker() == "." else {})


def name_of(drawn: Artist | Container) -> str:
    """The label that the legend knows; empty where there is but matplotlib's own, which begins with an underscore."""
    label = str(drawn.get_label() or "")
    return "" if label.startswith("_") else label


def _segments(arm: LineCollection) -> list[Any]:
    return list(arm.get_segments())


def _points(line: Line2D) -> dict[str, Any]:
    x, y = _data(line)
    return {"x": _plain(x), "y": _plain(y)}


def _data(line: Line2D) -> tuple[Floats, Floats]:
    return np.asarray(line.get_xdata(orig=False), dtype=float), np.asarray(line.get_ydata(orig=False), dtype=float)


def _labels(axes: Axes) -> dict[Any, str]:
    names = (text.get_text().replace("\n", " ") for text in axes.get_yticklabels())
    return dict(zip(axes.get_yticks(), names, strict=True))


def _bars(patches: Iterable[Rectangle], labels: dict[Any, str]) -> dict[str, Any]:
    """Of lying bars: their ends, what each is worth, and what it is called."""
    found = [(bar.get_x() + bar.get_width(), bar.get_y() + bar.get_height() / 2, bar.get_width()) for bar in patches]
    ends, places, widths = zip(*found, strict=True)
    named = [next((name for at, name in labels.items() if abs(at - place) < 0.5), "") for place in places]
    return {"x": _plain(ends), "y": _plain(places), "worth": _plain(widths), "of": named}


def _plain(values: Iterable[Any]) -> list[float | None]:
    """Six digits are more than a reader sees; what JSON has no word for is nothing."""
    return [float(f"{value:.6g}") if math.isfinite(value) else None for value in map(float, values)]


def _thin(line: Line2D) -> None:
    """Keep the lowest and the highest value of each stretch, where they were."""
    x, y = _data(line)
    if len(x) <= _MOST_POINTS:
        return
    kept: set[int] = set()
    for stretch in np.array_split(np.arange(len(y)), _MOST_POINTS // 2):
        known = stretch[~np.isnan(y[stretch])]
        kept |= {int(known[y[known].argmin()]), int(known[y[known].argmax()])} if len(known) else {int(stretch[0])}
    index = sorted(kept)
    line.set_data(x[index], y[index])


def _replace(legend: Legend | None, names: dict[str, int]) -> None:
    """Mark a legend whose entries all stand in the page's own."""
    if legend and all(text.get_text() in names for text in legend.get_texts()):
        legend.set_gid(_REPLACED)
        legend.set_in_layout(False)


def _drawn(figure: Figure, panels: list[dict[str, Any]], prefix: str) -> tuple[ET.Element, bytes]:
    """Matplotlib's SVG by panels, without what a page has no use for, its colours the page's and its ids the chart's own.

    And that SVG as it is.
    """
    for index, axes in enumerate(figure.axes):
        axes.set_gid(f"panel-{index}")
    stream = io.BytesIO()
    figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
    drawn = ET.fromstring(stream.getvalue())  # noqa: S314 - it was drawn above
    groups = {
        element.get("id"): list(element) for element in drawn.iter() if element.get("id", "").startswith("panel-")
    }
    shared = [child for child in drawn if child.tag.endswith("}defs")]
    root = _grid(figure, panels)
    for index, place in enumerate(root):
        place[-1].extend([*(() if index else shared), *groups[f"panel-{index}"]])
    wanted = {
        name for element in root.iter() for text in element.attrib.values() for _, name in _REFERENCE.findall(text)
    }
    ids = {name: f"{prefix}-{number}" for number, name in enumerate(sorted(wanted))}
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag.endswith("}style"):
                parent.remove(child)
            elif child.get("id") == _REPLACED:
                shapes = [found for found in child.iter() if found.tag.endswith("}defs")]
                parent[:] = [one for each in parent for one in (shapes if each is child else [each])]
    for place in root:
        for element in place[-1].iter():
            if element is not place[-1]:
                _clean(element, ids)
        _flatten(place[-1])
    _share_styles(root, prefix)
    return root, stream.getvalue()


def _grid(figure: Figure, panels: list[dict[str, Any]]) -> ET.Element:
    """An empty drawing for each panel, as large as the largest of its row and of its column, so that all have one scale.

    One that leaves its title or its axis to its neighbours has them in words, for a page that lays it elsewhere.
    """
    _, height = figure.get_size_inches() * 72
    found = [axes.get_tightbbox() or axes.bbox for axes in figure.axes]
    boxes = [box.transformed(figure.dpi_scale_trans.inverted()) for box in found]
    spans = [(at.colspan, at.rowspan) for axes in figure.axes if (at := axes.get_subplotspec())]
    columns = {
        span: (
            72 * min(box.x0 for box, (own, _) in zip(boxes, spans, strict=True) if own == span) - _MARGIN,
            72 * max(box.x1 for box, (own, _) in zip(boxes, spans, strict=True) if own == span) + _MARGIN,
        )
        for span in dict.fromkeys(column for column, _ in spans)
    }
    widths = [right - left for left, right in columns.values()]
    root = ET.Element("div", {"class": "panels"})
    root.set("style", f"--columns:{' '.join(f'{w:.0f}fr' for w in widths)};--most:{_LARGEST * sum(widths):.0f}px")
    for axes, panel, (column, row) in zip(figure.axes, panels, spans, strict=True):
        left, right = columns[column]
        beside = [box for box, (_, own) in zip(boxes, spans, strict=True) if own == row]
        top = height - 72 * max(box.y1 for box in beside) - _MARGIN
        bottom = height - 72 * min(box.y0 for box in beside) + _MARGIN
        place = ET.SubElement(root, "div")
        own = axes.get_title("left"), axes.get_ylabel()
        left_out = [name for name in (panel["title"], panel["yName"]) if name and name not in own]
        if left_out:
            ET.SubElement(place, "b").text = ": ".join(left_out)
        ET.SubElement(place, "svg", viewBox=f"{left:.1f} {top:.1f} {right - left:.1f} {bottom - top:.1f}")
    return root


def _flatten(parent: ET.Element) -> None:
    """Take away groups that say nothing; there are more of them than of lines."""
    for child in list(parent):
        _flatten(child)
    parent[:] = [one for child in parent for one in (child if child.tag == "g" and not child.attrib else [child])]


def _share_styles(root: ET.Element, prefix: str) -> None:
    """Each style once, by a class: as attributes they are two thirds of a drawing."""
    classes: dict[str, str] = {}
    for element in root.iter():
        style = "" if element is root else element.attrib.pop("style", "")
        if style:
            element.set("class", classes.setdefault(style, f"{prefix}-{len(classes)}"))
    sheet = ET.Element("style")
    sheet.text = "".join(f".{name}{{{style}}}" for style, name in classes.items())
    root[0][-1].insert(0, sheet)


def _clean(element: ET.Element, ids: dict[str, str]) -> None:
    element.tag = element.tag.rpartition("}")[2]
    element.tail = None
    if not (element.text or "").strip():
        element.text = None
    attributes = {name.rpartition("}")[2]: text for name, text in element.attrib.items()}
    belongs = _BELONGS.match(attributes.get("id", ""))
    if belongs:
        attributes["class"] = belongs[1]
    own = ids.get(attributes.pop("id", ""))
    if own:
        attributes["id"] = own
    for name, text in attributes.items():
        attributes[name] = _REFERENCE.sub(lambda found: found[1] + ids[found[2]], text)
    if "style" in attributes:
        attributes["style"] = _in_page_colours(attributes["style"])
    digits = 1 if len(attributes.get("d", "")) > _LONG_PATH else 2
    for name in {"d", "x", "y", "width", "height", "transform"} & set(attributes):
        attributes[name] = _DECIMAL.sub(lambda found: f"{round(float(found[0]), digits):g}", attributes[name])
    if "d" in attributes:
        attributes["d"] = re.sub(r"\s*([A-Za-z])\s*", r"\1", attributes["d"]).strip()
    if attributes.get("transform", "").startswith("rotate(-0 "):
        del attributes["transform"]
    element.attrib.clear()
    element.attrib.update(attributes)


def _in_page_colours(style: str) -> str:
    style = _FONT.sub("", style).replace("'DejaVu Sans'", "var(--font)").replace(": ", ":").replace("; ", ";")
    return re.sub("#[0-9a-f]{6}", lambda found: _VARIABLES.get(found[0], found[0]), style)


def _swatch(root: ET.Element, series: str) -> str:
    """A stretch of the series' line with its marker, or its colour."""
    groups = root.findall(f".//*[@class='{series}']")
    drawn = [(group.find("path"), group.find(".//use")) for group in groups]
    path, use = max(drawn, key=lambda found: [part is not None for part in found])
    parts = []
    if path is not None:
        shape = "M0 0H24V10H0z" if path.get("d", "").endswith("z") else "M0 5H24"
        parts.append(ET.Element("path", {"d": shape, "class": path.get("class", "")}))
    if use is not None:
        parts.append(
            ET.Element("use", {"href": use.get("href", ""), "x": "12", "y": "5", "class": use.get("class", "")})
        )
    return _SWATCH.format("".join(ET.tostring(part, "unicode") for part in parts))
