"""What Grafana does between a dashboard's JSON and a query: variables, their values, repeated panels."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.monitoring import DASHBOARD_FILES

Values = dict[str, list[str]]
RATE_INTERVAL = "$__rate_interval"
_LABEL_VALUES = re.compile(r"label_values\((?P<metric>.+), (?P<label>\w+)\)")
_SPECIAL = re.compile(r"[.\\+*?^$|()\[\]{}]")


def dashboards() -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in DASHBOARD_FILES]


def named(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text()))


def data_panels(dashboard: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def variables(dashboard: Mapping[str, Any], ask: Callable[[str, str], list[str]]) -> Values:
    """Every value of every variable, in the order in which they depend on one another.

    ``ask`` gives the values of a label of the series that a selector matches.
    """
    found: Values = {}
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "datasource":
            continue
        query = _LABEL_VALUES.fullmatch(variable["query"]["query"])
        assert query is not None, variable["query"]
        values = ask(filled(query["metric"], found), query["label"])
        found[variable["name"]] = values if variable["multi"] else values[:1]
    return found


def filled(expression: str, values: Mapping[str, Sequence[str]], interval: str = "4s") -> str:
    """A query with its variables replaced; several values become a pattern, as in Grafana's Prometheus datasource."""
    text = expression.replace(RATE_INTERVAL, interval)
    for name, chosen in values.items():
        escaped = [_SPECIAL.sub(r"\\\\\g<0>", value) for value in chosen]
        pattern = escaped[0] if len(escaped) == 1 else f"({'|'.join(escaped)})"
        text = re.sub(rf"\${name}\b", lambda _, pattern=pattern: pattern, text)
    return text


def shown(panel: Mapping[str, Any], values: Values) -> Iterator[tuple[str, Values]]:
    """The panel's title and values once, or once for every value that it is repeated for."""
    repeat = panel.get("repeat")
    for value in values[repeat] if repeat else [None]:
        chosen = values if value is None else values | {str(repeat): [value]}
        yield filled(panel["title"], chosen), chosen


def queries(dashboard: Mapping[str, Any], values: Values) -> Iterator[tuple[str, str]]:
    """Title and PromQL of everything that the dashboard asks."""
    for panel in data_panels(dashboard):
        for (title, chosen), target in itertools.product(shown(panel, values), panel["targets"]):
            yield f"{title} {target['refId']}", filled(target["expr"], chosen)
