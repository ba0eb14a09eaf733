"""What a dashboard consists of, and its JSON as Grafana reads it.

Panels are laid out in the order in which they are written, left to right and row by row on Grafana's grid of 24
columns, so that nobody writes coordinates.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

COLUMNS = 24
SCHEMA_VERSION = 39
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
"""Chosen at the top of the dashboard, so that it works in any Grafana."""
RATE_WINDOW = "$__rate_interval"
"""Grafana's own: four scrapes, or more where a pixel is more than that."""

BANDS = ((None, "empty", "green"), (10, "modest", "blue"), (70, "high", "orange"), (90, "critical", "red"))
"""Load states in percent: each begins where the one below it ends (the bands of ``harness/analysis/campaign.py``)."""

KINDS = frozenset({"timeseries", "stat", "gauge", "bargauge", "table", "state-timeline"})


@dataclass(frozen=True, slots=True)
class Variable:
    """A choice at the top of a dashboard.

    Attributes:
        metric: series that have the label; selectors may name variables defined before this one.
        many: several values at once, and all of them to begin with.
    """

    name: str
    title: str
    metric: str
    label: str
    many: bool = True

    @property
    def query(self) -> str:
        """In Grafana's own words."""
        return f"label_values({self.metric}, {self.label})"


@dataclass(frozen=True, slots=True)
class Query:
    """PromQL of one set of series, and how each is called.

    Attributes:
        unit: where it is not the panel's; a time series then has its axis on the right.
    """

    expr: str
    legend: str = "{{node}}"
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """One picture.

    Attributes:
        unit: Grafana's name of it (``percent``, ``bytes``, ``s``, ``reqps``...).
        about: what it shows.
        width: of 24.
        height: in Grafana's rows.
        maximum: of the axis; None: as the data.
        bands: colour by load state, and name the state.
        stacked: series on top of each other.
        repeat: variable for each of whose values the panel is shown once.
        columns: of a table: column -> title, in order; ``Value #A`` is the first query's value.
    """

    title: str
    queries: Sequence[Query]
    kind: str = "timeseries"
    unit: str = "short"
    about: str = ""
    width: int = 12
    height: int = 8
    maximum: float | None = None
    bands: bool = False
    stacked: bool = False
    repeat: str = ""
    columns: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Dashboard:
    """One page: titled rows of panels."""

    uid: str
    title: str
    about: str
    variables: Sequence[Variable]
    rows: Mapping[str, Sequence[Panel]]

    @property
    def panels(self) -> Iterator[Panel]:
        """Every panel of every row."""
        for panels in self.rows.values():
            yield from panels


def rendered(dashboard: Dashboard) -> str:
    """The dashboard as Grafana's JSON."""
    return json.dumps(_dashboard(dashboard), indent=1, ensure_ascii=False) + "\n"


def _dashboard(dashboard: Dashboard) -> dict[str, Any]:
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "description": dashboard.about,
        "tags": ["gpu-sharing-harness"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": False,
        "graphTooltip": 1,
        "refresh": "5s",
        "time": {"from": "now-15m", "to": "now"},
        "timezone": "utc",
        "templating": {"list": [_datasource(), *(_variable(variable) for variable in dashboard.variables)]},
        "annotations": {"list": [_experiments()]},
        "links": [
            {"type": "dashboards", "title": "Dashboards", "tags": ["gpu-sharing-harness"], "asDropdown": True}
            | {"keepTime": True, "includeVars": True, "icon": "external link", "targetBlank": False, "url": ""}
        ],
        "panels": list(_laid_out(dashboard)),
    }


def _datasource() -> dict[str, Any]:
    chosen = {"text": "default", "value": "default", "selected": False}
    one = {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "regex": ""}
    return {**one, "current": chosen, "refresh": 1, "multi": False, "includeAll": False, "hide": 0, "options": []}


def _experiments() -> dict[str, Any]:
    """A region from the first scrape of an experiment's replicas to the last: Grafana joins samples that are a step apart."""
    return {
        "name": "Experiments",
        "datasource": DATASOURCE,
        "enable": True,
        "hide": False,
        "iconColor": "blue",
        "expr": "count by (namespace, workload, experiment) (inference_info)",
        "step": "10s",
        "titleFormat": "{{workload}}",
        "textFormat": "{{experiment}} in {{namespace}}",
        "tagKeys": "",
        "useValueForTime": False,
    }


def _variable(variable: Variable) -> dict[str, Any]:
    current = {"text": ["All"], "value": ["$__all"]} if variable.many else {}
    return {
        "name": variable.name,
        "label": variable.title,
        "type": "query",
        "datasource": DATASOURCE,
        "definition": variable.query,
        "query": {"query": variable.query, "refId": f"variable-{variable.name}"},
        "refresh": 2,
        "sort": 3,
        "multi": variable.many,
        "includeAll": variable.many,
        "current": current,
        "hide": 0,
        "options": [],
        "regex": "",
        "skipUrlSync": False,
    }


def _laid_out(dashboard: Dashboard) -> Iterator[dict[str, Any]]:
    """Rows and panels with their places: a panel that does not fit beside the one before begins a new line."""
    number = top = 0
    for title, panels in dashboard.rows.items():
        number += 1
        place = {"x": 0, "y": top, "w": COLUMNS, "h": 1}
        yield {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": place, "panels": []}
        top += 1
        left = line = 0
        for panel in panels:
            if left + panel.width > COLUMNS or panel.repeat:
                top, left, line = top + line, 0, 0
            number += 1
            place = {"x": left, "y": top, "w": panel.width, "h": panel.height}
            yield _panel(panel, number, place)
            # What is repeated has its line for itself: it grows to the right and down.
            left = COLUMNS if panel.repeat else left + panel.width
            line = max(line, panel.height)
        top += line


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    if panel.kind not in KINDS:
        raise ValueError(f"{panel.title}: no panel is called {panel.kind}")
    one: dict[str, Any] = {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.about,
        "gridPos": place,
        "datasource": DATASOURCE,
        "targets": [_target(query, panel, index) for index, query in enumerate(panel.queries)],
        "fieldConfig": {"defaults": _defaults(panel), "overrides": _overrides(panel)},
        "options": _options(panel),
    }
    if panel.repeat:
        one |= {"repeat": panel.repeat, "repeatDirection": "h", "maxPerRow": COLUMNS // panel.width}
    if panel.kind == "table":
        one["transformations"] = _one_table(panel)
    return one


def _target(query: Query, panel: Panel, index: int) -> dict[str, Any]:
    table = panel.kind == "table"
    now = table or panel.kind in {"bargauge", "gauge", "stat"}
    return {
        "refId": chr(ord("A") + index),
        "datasource": DATASOURCE,
        "editorMode": "code",
        "expr": query.expr,
        "legendFormat": query.legend,
        "format": "table" if table else "time_series",
        "instant": now,
        "range": not now,
    }


def _defaults(panel: Panel) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0}
    if panel.maximum is not None:
        defaults["max"] = panel.maximum
    steps = [{"value": value, "color": color} for value, _, color in BANDS] if panel.bands else []
    defaults["thresholds"] = {"mode": "absolute", "steps": steps or [{"value": None, "color": "green"}]}
    if panel.bands:
        defaults["color"] = {"mode": "thresholds" if panel.kind != "timeseries" else "palette-classic"}
        defaults["mappings"] = _state_names() if panel.kind in {"state-timeline", "stat"} else []
    if panel.kind == "timeseries":
        defaults["custom"] = {
            "drawStyle": "line",
            "lineWidth": 1,
            "fillOpacity": 30 if panel.stacked else 8,
            "showPoints": "never",
            "spanNulls": False,
            "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
            "thresholdsStyle": {"mode": "dashed" if panel.bands else "off"},
        }
    return defaults


def _state_names() -> list[dict[str, Any]]:
    """Ranges of percent called by their state.

    Both ends of a range belong to it and the first that fits is taken, so the order decides where an end belongs:
    70 and 90 are high, 10 is modest.
    """
    (_, empty, green), (modest_from, modest, blue), (high_from, high, orange), (critical_from, critical, red) = BANDS
    ranges = [
        (high_from, critical_from, high, orange),
        (modest_from, high_from, modest, blue),
        (None, modest_from, empty, green),
        (critical_from, None, critical, red),
    ]
    return [
        {
            "type": "range",
            "options": {"from": start, "to": end, "result": {"text": text, "color": color, "index": index}},
        }
        for index, (start, end, text, color) in enumerate(ranges)
    ]


def _overrides(panel: Panel) -> list[dict[str, Any]]:
    overrides = []
    for index, query in enumerate(panel.queries):
        if query.unit:
            letter = chr(ord("A") + index)
            unit = {"id": "unit", "value": query.unit}
            if panel.kind == "table":
                matcher, properties = {"id": "byName", "options": f"Value #{letter}"}, [unit]
            else:
                matcher = {"id": "byFrameRefID", "options": letter}
                properties = [unit, {"id": "custom.axisPlacement", "value": "right"}]
            overrides.append({"matcher": matcher, "properties": properties})
    return overrides


def _options(panel: Panel) -> dict[str, Any]:
    last = {"calcs": ["lastNotNull"], "fields": "", "values": False}
    match panel.kind:
        case "timeseries":
            legend = {"displayMode": "table", "placement": "bottom", "showLegend": True, "calcs": ["mean", "max"]}
            return {"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}}
        case "stat":
            return {"reduceOptions": last, "colorMode": "background" if panel.bands else "value", "textMode": "auto"}
        case "gauge":
            return {"reduceOptions": last, "showThresholdLabels": False, "showThresholdMarkers": True}
        case "bargauge":
            return {"reduceOptions": last, "orientation": "horizontal", "displayMode": "gradient"}
        case "state-timeline":
            return {"mergeValues": True, "showValue": "auto", "legend": {"showLegend": True, "displayMode": "list"}}
        case _:
            return {"showHeader": True, "cellHeight": "sm"}


def _one_table(panel: Panel) -> list[dict[str, Any]]:
    """Rows of all queries joined on their common labels, columns named and ordered."""
    order = {name: index for index, name in enumerate(panel.columns)}
    organize = {"indexByName": order, "renameByName": dict(panel.columns), "excludeByName": {"Time": True}}
    wanted = {"include": {"names": list(panel.columns)}}
    return [
        {"id": "merge", "options": {}},
        {"id": "filterFieldsByName", "options": wanted},
        {"id": "organize", "options": organize},
    ]
