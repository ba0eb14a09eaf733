"""Pictures as SVG: inline in the page's colours with the plotted values for who points at them, or as a file."""

from __future__ import annotations

import json
import math
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Any, NamedTuple

from harness.analysis.pages.plot import (
    FAINT,
    INK,
    PALETTE,
    Panel,
    Picture,
    PlotSeries,
    ReferenceLine,
    thinned,
    tick_text,
)
from harness.data import data_path

_MARKERS = (
    "M-2.6 0a2.6 2.6 0 1 0 5.2 0a2.6 2.6 0 1 0-5.2 0",
    "M-2.4-2.4h4.8v4.8h-4.8z",
    "M0-3.4L2.9 0L0 3.4L-2.9 0z",
    "M0-3L2.9 2.4H-2.9z",
    "M0 3L2.9-2.4H-2.9z",
    "M-1-3H1V-1H3V1H1V3H-1V1H-3V-1H-1z",
    "M-2.8-1.6L-1.6-2.8L0-1.2L1.6-2.8L2.8-1.6L1.2 0L2.8 1.6L1.6 2.8L0 1.2L-1.6 2.8L-2.8 1.6L-1.2 0z",
    "M0-3.4L.9-1L3.3-1L1.4.6L2.1 3L0 1.5L-2.1 3L-1.4.6L-3.3-1L-.9-1z",
)
_DASHES = {"-": "", "--": " d1", ":": " d2"}
_LETTER, _TICK_GAP = 5.0, 5.0
_RIGHT, _TOP, _BOTTOM, _LABEL = 12.0, 20.0, 17.0, 13.0
_WRAPPED = 34
_FILE_COLOURS = (
    "--ink:#333333;--faint:#9aa0a6;--paper:#ffffff;--line:#e4e6e9;--raised:#f6f7f8;--soft:#6b7075;"
    + "".join(f"--series-{index}:{colour};" for index, colour in enumerate(PALETTE))
)


class LegendEntry(NamedTuple):
    """One entry of a legend: class of its elements, name of the series, and how it is drawn, as the content of a small SVG."""

    series: str
    name: str
    swatch: str


class Chart(NamedTuple):
    """What a page embeds: an SVG for each panel in a grid, the legend (empty where one series needs none), the plotted values as JSON."""

    drawing: str
    keys: list[LegendEntry]
    data: str


def chart(picture: Picture) -> Chart:
    """A picture for a page."""
    boxes, classes = _boxes(picture), _classes(picture)
    width, height = picture.size
    shared = _keys(picture, classes) if _alike(picture) else []
    own = ["" if shared else _legend(_keys(replace(picture, panels=[panel]), classes)) for panel in picture.panels]
    panels = "".join(
        f'<div>{legend}<svg viewBox="0 0 {width:g} {height:g}">{_drawn(box, classes)}</svg></div>'
        for box, legend in zip(boxes, own, strict=True)
    )
    columns = " ".join(["1fr"] * picture.columns)
    words = f'role="img" aria-label="{escape(picture.title)}" aria-description="{escape(picture.alt)}"'
    style = f"--columns:{columns};--most:{1.75 * width * picture.columns:.0f}px"
    text = json.dumps([_data(box, classes) for box in boxes], separators=(",", ":"), ensure_ascii=False).replace(
        "<", "\\u003c"
    )
    return Chart(f'<div class="panels" style="{style}" {words}>{panels}</div>', shared, text)


def _alike(picture: Picture) -> bool:
    """Whether all panels that show something show the same series, so that one legend serves them."""
    names = [{series.name for series in panel.series if series.name} for panel in picture.panels if panel.series]
    return len(names) < 2 or all(own <= names[0] or names[0] <= own for own in names)


def _legend(keys: Sequence[LegendEntry]) -> str:
    swatch = '<svg class="swatch" viewBox="0 0 24 10" aria-hidden="true">{}</svg>'
    entries = (f'<li data-series="{key.series}">{swatch.format(key.swatch)}{escape(key.name)}</li>' for key in keys)
    return f'<ul class="keys">{"".join(entries)}</ul>' if keys else ""


def document(picture: Picture) -> str:
    """A picture as a file of its own."""
    classes = _classes(picture)
    keys = _keys(picture, classes)
    width, height, head = *picture.size, 18.0 if keys else 0.0
    rows = -(-len(picture.panels) // picture.columns)
    parts, left = [], 10.0
    for key in keys:
        parts.append(f'<g transform="translate({left:g} 4)">{key.swatch}<text x="28" y="8" class="tk">')
        parts.append(f"{escape(key.name)}</text></g>")
        left += 40 + _LETTER * len(key.name)
    for index, box in enumerate(_boxes(picture)):
        x, y = width * (index % picture.columns), head + height * (index // picture.columns)
        parts.append(f'<g transform="translate({x:g} {y:g})">{_drawn(box, classes)}</g>')
    style = data_path("templates/report/chart.css").read_text()
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width * picture.columns:g} {height * rows + head:g}" '
        f'style="{_FILE_COLOURS}background:#fff;fill:#333333;font-family:sans-serif">'
        f"<title>{escape(picture.title)}</title><desc>{escape(picture.alt)}</desc><style>{style}</style>{''.join(parts)}</svg>\n"
    )


@dataclass(frozen=True, slots=True)
class _Box:
    """Where a panel's axes lie, and how a value comes to its place."""

    left: float
    right: float
    top: float
    bottom: float
    panel: Panel

    def x(self, value: float) -> float:
        """The place of a value of the x axis."""
        return _place(value, self.panel.x_axis(), (self.left, self.right), self.panel.doubling)

    def y(self, value: float) -> float:
        """The place of a value of the y axis."""
        return _place(value, self.panel.y_axis(), self.upright, self.panel.logarithmic)

    @property
    def upright(self) -> tuple[float, float]:
        """Where the y axis begins and ends."""
        return (self.top, self.bottom) if self.panel.bars else (self.bottom, self.top)


def _place(value: float, axis: tuple[float, float], ends: tuple[float, float], logarithmic: bool) -> float:
    scaled = [math.log(number) if logarithmic else number for number in (value, *axis)]
    return ends[0] + (scaled[0] - scaled[1]) / (scaled[2] - scaled[1]) * (ends[1] - ends[0])


def _boxes(picture: Picture) -> list[_Box]:
    """One margin for all, so that they have one scale."""
    texts = [
        max(label, key=len) if panel.bars else label
        for panel in picture.panels
        if not panel.absent
        for label in ([_folded(bar) for bar in panel.bars] if panel.bars else map(tick_text, panel.y_marks()))
    ]
    left = _LETTER * max((len(text) for text in texts), default=2) + 2 * _TICK_GAP
    width, height = picture.size
    return [
        _Box(left, width - _RIGHT, _TOP, height - _BOTTOM - (_LABEL if panel.x_label else 0), panel)
        for panel in picture.panels
    ]


def _folded(label: str) -> list[str]:
    return textwrap.wrap(label, _WRAPPED) or [""]


def _classes(picture: Picture) -> dict[str, str]:
    names = [series.name for panel in picture.panels for series in panel.series]
    names += [rule.name for panel in picture.panels for rule in panel.rules if rule.name]
    return {name: f"s{index}" for index, name in enumerate(dict.fromkeys(names))}


def _colour(index: int) -> str:
    return {FAINT: "faint", INK: "ink"}.get(index, f"c{index % len(PALETTE)}")


def _line_class(drawn: PlotSeries | ReferenceLine) -> str:
    thin = " th" if isinstance(drawn, ReferenceLine) or drawn.thin else ""
    return f"ln{thin}{_DASHES[drawn.dashes]}"


def _drawn(box: _Box, classes: dict[str, str]) -> str:
    panel = box.panel
    parts = [_text("t", box.left, 11, [panel.title])]
    if panel.note:
        parts.append(_text("tk so en", box.right, 11, [panel.note]))
    if panel.absent:
        width, height = box.right - box.left, box.bottom - box.top
        lines = textwrap.wrap(f"not measured: {panel.absent}", _WRAPPED)[:6]
        parts.append(f'<rect class="no" x="{box.left:.1f}" y="{box.top:g}" width="{width:.1f}" height="{height:.1f}"/>')
        parts.append(_text("tk so mi", box.left + width / 2, box.top + height / 2, lines, 11))
        return "".join(parts)
    parts += _axes(box)
    for rule in panel.rules:
        if rule.vertical:
            path = f"M{box.x(rule.at):.1f} {box.top:g}V{box.bottom:g}"
        else:
            path = f"M{box.left:g} {box.y(rule.at):.1f}H{box.right:g}"
        parts.append(
            f'<path class="{classes.get(rule.name, "")} {_colour(rule.colour)} {_line_class(rule)}" d="{path}"/>'
        )
    parts += [
        f'<g class="{classes[series.name]} {_colour(series.colour)}">{"".join(_series(series, box))}</g>'
        for series in map(thinned, panel.series)
    ]
    return "".join(parts)


def _text(style: str, x: float, y: float, lines: Sequence[str], step: float = 0) -> str:
    """Lines below each other, around ``y``."""
    first = y - step * (len(lines) - 1) / 2
    return "".join(
        f'<text class="{style}" x="{x:.1f}" y="{first + step * index:.1f}">{escape(line)}</text>'
        for index, line in enumerate(lines)
    )


def _axes(box: _Box) -> Iterator[str]:
    panel = box.panel
    yield f'<path class="gr" d="{"".join(f"M{box.x(tick):.1f} {box.top:g}V{box.bottom:g}" for tick in panel.x_marks())}"/>'
    last = -math.inf
    for tick in panel.x_marks():
        label = tick_text(tick)
        x, half = box.x(tick), _LETTER * len(label) / 2
        if x - half > last:
            last = x + half
            yield _text("tk mi", x, box.bottom + 11, [label])
    if panel.bars:
        for place, label in zip(panel.rows.values() or range(len(panel.bars)), panel.bars, strict=True):
            yield _text("tk en", box.left - _TICK_GAP, box.y(place) + 3, _folded(label), 9)
    else:
        yield f'<path class="gr" d="{"".join(f"M{box.left:.1f} {box.y(tick):.1f}H{box.right:.1f}" for tick in panel.y_marks())}"/>'
        last = math.inf
        for tick in panel.y_marks():
            y = box.y(tick)
            if last - y > 10:
                last = y
                yield _text("tk en", box.left - _TICK_GAP, y + 3, [tick_text(tick)])
    yield f'<path class="ax" d="M{box.left:.1f} {box.top:g}V{box.bottom:g}H{box.right:.1f}"/>'
    if panel.x_label:
        # Under the middle of the axis, unless it is longer: letters are larger on a phone.
        middle = min((box.left + box.right) / 2, box.right + _RIGHT - 0.58 * _LETTER * len(panel.x_label))
        yield _text("tk mi", middle, box.bottom + 24, [panel.x_label])


def _series(series: PlotSeries, box: _Box) -> Iterator[str]:
    if box.panel.rows:
        yield from _in_rows(series, box)
        return
    if series.labels:
        yield from _bars(series, box)
        return
    low, high = box.panel.y_axis()
    inside = [
        (box.x(x), box.y(y)) if math.isfinite(y) and low <= y <= high * (1 + 1e-9) else None
        for x, y in zip(series.x, series.y, strict=True)
    ]
    if series.dashes and not series.runs:
        # Where it has gaps the pen is set down anew; a point between two of them is a dot.
        pens = ("L" if before else "M" for before in [None, *inside])
        path = "".join(f"{pen}{at[0]:.1f} {at[1]:.1f}" for pen, at in zip(pens, inside, strict=False) if at)
        yield f'<path class="{_line_class(series)}" d="{path}"/>'
    if series.low:
        yield from _intervals(series, box)
    for place in inside:
        if place and series.runs:
            yield f'<circle class="rn" cx="{place[0]:.1f}" cy="{place[1]:.1f}" r="2"/>'
        elif place and series.markers:
            yield _marker(series.colour, *place)


def _marker(colour: int, x: float, y: float) -> str:
    return f'<path class="mk" transform="translate({x:.1f} {y:.1f})" d="{_MARKERS[colour % len(_MARKERS)]}"/>'


def _intervals(series: PlotSeries, box: _Box) -> Iterator[str]:
    bottom, top = box.panel.y_axis()
    path = []
    for x, low, high in zip(series.x, series.low, series.high, strict=True):
        if not (math.isfinite(low) and high > low):
            continue
        place = box.x(x)
        ends = box.y(max(low, bottom)), box.y(min(high, top))
        path.append(f"M{place:.1f} {ends[0]:.1f}V{ends[1]:.1f}")
        for value, end, tip in ((low, ends[0], 4), (high, ends[1], -4)):
            if bottom <= value <= top:
                path.append(f"M{place - 3:.1f} {end:.1f}h6")
            else:  # It goes on.
                yield f'<path class="mk" d="M{place - 3:.1f} {end:.1f}h6l-3 {tip}z"/>'
    yield f'<path class="ln th" d="{"".join(path)}"/>'


def _in_rows(series: PlotSeries, box: _Box) -> Iterator[str]:
    left, right = box.panel.x_axis()
    path = []
    for low, high, y in zip(series.low, series.high, series.y, strict=False):
        if high > low:
            path.append(f"M{box.x(max(low, left)):.1f} {box.y(y):.1f}H{box.x(min(high, right)):.1f}")
            path += [f"M{box.x(end):.1f} {box.y(y) - 2.5:.1f}v5" for end in (low, high) if left <= end <= right]
            if high > right:  # It goes on.
                yield f'<path class="mk" d="M{box.right:.1f} {box.y(y) - 3:.1f}v6l4-3z"/>'
            if low < left:
                yield f'<path class="mk" d="M{box.left:.1f} {box.y(y) - 3:.1f}v6l-4-3z"/>'
    if path:
        yield f'<path class="ln" d="{"".join(path)}"/>'
    for x, y in zip(series.x, series.y, strict=True):
        if series.runs:
            yield f'<circle class="rn" cx="{box.x(x):.1f}" cy="{box.y(y):.1f}" r="1.6"/>'
        else:
            yield _marker(series.colour, box.x(x), box.y(y))


def _bars(series: PlotSeries, box: _Box) -> Iterator[str]:
    half = 0.3 * abs(box.y(1) - box.y(0))
    for start, end, place in zip(series.begins, series.x, series.y, strict=True):
        left, right = sorted((box.x(start), box.x(end)))
        yield f'<rect class="br" x="{left:.1f}" y="{box.y(place) - half:.1f}" width="{right - left:.1f}" height="{2 * half:.1f}"/>'
    if series.low:
        ends = zip(series.low, series.high, series.y, strict=True)
        path = (
            f"M{box.x(low):.1f} {box.y(y):.1f}H{box.x(high):.1f}m0-3v6M{box.x(low):.1f} {box.y(y) - 3:.1f}v6"
            for low, high, y in ends
        )
        yield f'<path class="ink ln th" d="{"".join(path)}"/>'


def _keys(picture: Picture, classes: dict[str, str]) -> list[LegendEntry]:
    """The legend; what one of several panels has alone is named with it."""
    drawn: dict[str, tuple[PlotSeries | ReferenceLine, list[str]]] = {}
    for panel in picture.panels:
        lines: list[PlotSeries | ReferenceLine] = [*panel.series, *panel.rules]
        for line in lines:
            if line.name and not (isinstance(line, PlotSeries) and line.runs):
                drawn.setdefault(line.name, (line, []))[1].append(panel.title)
    alike = len({frozenset(titles) for _, titles in drawn.values()}) == 1
    keys = []
    for name, (line, titles) in drawn.items():
        reference = isinstance(line, PlotSeries) and line.colour == FAINT
        own = "" if alike or reference or len(set(titles)) > 1 else f"{re.split('[,(]', titles[0])[0].strip()}: "
        keys.append(LegendEntry(classes[name], f"{own}{name}", _swatch(line)))
    return keys if len(keys) > 1 else []


def _swatch(drawn: PlotSeries | ReferenceLine) -> str:
    if isinstance(drawn, PlotSeries) and drawn.labels and not drawn.markers:
        inner = '<rect class="br" width="24" height="10"/>'
    else:
        inner = f'<path class="{_line_class(drawn)}" d="M0 5H24"/>'
        inner += _marker(drawn.colour, 12, 5) if isinstance(drawn, PlotSeries) and drawn.markers else ""
    return f'<g class="{_colour(drawn.colour)}">{inner}</g>'


def _data(box: _Box, classes: dict[str, str]) -> dict[str, Any]:
    """Where the axes lie, how they run, and what is plotted, as charts.js reads it."""
    panel = box.panel
    shown = [] if panel.absent else [series for series in map(thinned, panel.series) if not series.silent]
    return {
        "x": [*panel.x_axis(), box.left, box.right, int(panel.doubling)],
        "y": [*panel.y_axis(), *box.upright, int(panel.logarithmic)],
        "title": panel.title,
        "xName": panel.x_label,
        "series": [_values(series) | {"s": int(classes[series.name][1:])} for series in shown],
    }


def _values(series: PlotSeries) -> dict[str, Any]:
    values: dict[str, Any] = {"x": _plain(series.x), "y": _plain(series.y)}
    if series.labels:
        widths = [end - start for start, end in zip(series.begins, series.x, strict=True)]
        values |= {"worth": _plain(widths), "of": list(series.labels)}
    if series.low:
        values |= {"low": _plain(series.low), "high": _plain(series.high)}
    return values | ({"run": 1} if series.runs else {})


def _plain(values: Sequence[float]) -> list[float | None]:
    """Six digits are more than a reader sees; what JSON has no word for is nothing."""
    return [float(f"{value:.6g}") if math.isfinite(value) else None for value in map(float, values)]
