"""Lists in a workload of the campaign file: ``batch_size: [1, 8]`` is two workloads, one for every combination of all lists."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from typing import Any

AXES = ("batch_size", "precision", "execution")
"""Fields that may be lists; and so may every one of ``options``."""
OPTIONS = "options"
_BEFORE_THE_VALUE = {
    "batch_size": "b",
    "precision": "",
    "execution": "",
    "model_size": "",
    "epochs": "e",
    "samples": "s",
}


def or_list(schema: dict[str, Any]) -> None:
    """For editors: the field may be a list of such values."""
    outer: dict[str, Any] = {key: schema.pop(key) for key in ("title", "description", "default") if key in schema}
    inner = dict(schema)
    schema.clear()
    schema.update(outer, anyOf=[inner, {"type": "array", "items": inner, "minItems": 1}])


def settings_of(workloads: Any) -> Any:
    """The workloads as the file gives them, those with lists taken apart; what is none of ours as it is.

    Raises:
        ValueError: a list is empty, or holds a value twice.
    """
    if not isinstance(workloads, list):
        return workloads
    return [setting for workload in workloads for setting in _taken_apart(workload)]


def _taken_apart(workload: Any) -> list[Any]:
    if not isinstance(workload, dict):
        return [workload]
    options = workload.get(OPTIONS)
    fields: dict[tuple[str, ...], Any] = {(name,): workload.get(name) for name in AXES}
    fields |= {(OPTIONS, name): value for name, value in (options if isinstance(options, dict) else {}).items()}
    lists = {path: value for path, value in fields.items() if isinstance(value, list)}
    for path, values in lists.items():
        if not values or len({repr(value) for value in values}) < len(values):
            raise ValueError(f"`{'.'.join(path)}` lists {'a value twice' if values else 'no value'}.")
    return [
        _setting(workload, dict(zip(lists, values, strict=True))) if lists else workload
        for values in itertools.product(*lists.values())
    ]


def _setting(workload: Mapping[str, Any], values: Mapping[tuple[str, ...], Any]) -> dict[str, Any]:
    """The workload with one value of each list, named after them: ``resnet50-b8-fp16``."""
    name = str(workload.get("name", ""))
    own = any(workload.get(key) for key in ("factory", "server", "model"))
    setting = {**workload, **({} if own else {"model": name}), "variant_of": name}
    setting[OPTIONS] = {**(workload.get(OPTIONS) or {}), **{path[1]: values[path] for path in values if path[1:]}}
    setting |= {path[0]: values[path] for path in values if not path[1:]}
    setting["name"] = "-".join([name, *(_named(path[-1], value) for path, value in values.items())])
    return setting


def _named(axis: str, value: Any) -> str:
    readable = re.sub(r"[^a-z0-9]+", "-", f"{value}".lower()).strip("-")
    return f"{_BEFORE_THE_VALUE.get(axis, f'{axis}-'.replace('_', '-'))}{readable}"


def values_of(workload: Any) -> dict[str, Any]:
    """What a workload has on every axis, by field or option; of a ``WorkloadSpec``."""
    return {**{name: getattr(workload, name) for name in AXES}, **workload.options}


def axes_of(workloads: list[Any]) -> list[str]:
    """The axes on which workloads of one family differ, in the order of the file."""
    every = [values_of(workload) for workload in workloads]
    names = dict.fromkeys(name for values in every for name in values)
    return [name for name in names if len({repr(values.get(name)) for values in every}) > 1]
