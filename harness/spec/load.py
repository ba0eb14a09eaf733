"""From the text of a campaign file to a CampaignSpec, or to one error that names every line to mend."""

from __future__ import annotations

import difflib
import json
import math
import re
import types
import typing
from collections.abc import Collection
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from harness.errors import CampaignFileError
from harness.spec.campaign import CampaignSpec, MetricSelection
from harness.spec.faults import in_words, is_union_tag
from harness.spec.model import FROM_FILE
from harness.spec.yaml_tree import Fault, read_tree

MAX_FAULTS = 50
_NUMBERS = {"int_type", "float_type"}
_PLAIN = 1e15
"""Below it a number is written with its digits alone."""
Location = tuple[int | str, ...]


def parse_campaign(text: str, *, origin: str, metrics: Collection[str] = ()) -> CampaignSpec:
    """Check the text of a campaign file. Raises CampaignFileError.

    Args:
        text: of the file.
        origin: names it in messages.
        metrics: names that a list of metrics may hold; none: they are checked when the campaign is planned.
    """
    tree, data, faults = read_tree(text, origin=origin)
    if not isinstance(tree, yaml.MappingNode):
        raise CampaignFileError(
            f"{origin} holds no campaign: a mapping with `name`, `workloads`, `replicas` is expected.",
            advice="Write one with: harness init FILE",
        )
    if not faults:
        try:
            # Through JSON in strict mode: "3" is no number and true is no 1, while names become enums.
            spec = CampaignSpec.model_validate_json(json.dumps(data), strict=True, context=FROM_FILE)
        except ValidationError as error:
            faults = [_describe(tree, fault) for fault in error.errors(include_url=False)]
        else:
            faults = _unknown_metrics(tree, spec, metrics)
            if not faults:
                return spec
    lines = "\n".join(f"  {origin}:{line}: {message}" for line, message in sorted(faults)[:MAX_FAULTS])
    raise CampaignFileError(
        f"{origin} has {len(faults)} fault{'s' if len(faults) > 1 else ''}:\n{lines}",
        advice="Every field is described by: harness schema",
    )


def _unknown_metrics(tree: yaml.Node, spec: CampaignSpec, known: Collection[str]) -> list[Fault]:
    """Names in the list of metrics that are not among those known, with the nearest one that is."""
    asked = [] if isinstance(spec.metrics, MetricSelection) or not known else spec.metrics
    return [
        (_line_of(tree, ("metrics", index)), f"unknown metric `{name}`{_nearest(name, known)}")
        for index, name in enumerate(asked)
        if name not in known
    ]


def _describe(tree: yaml.Node, fault: Any) -> Fault:
    """Line and sentence of one fault found by pydantic."""
    location: Location = tuple(part for part in fault["loc"] if not is_union_tag(part))
    line = _line_of(tree, location)
    where = ".".join(str(part) for part in location) or "the file"
    kind = fault["type"]
    if kind == "extra_forbidden":
        return line, f"unknown key `{where}`{_did_you_mean(location)}"
    if kind == "missing":
        return line, f"`{where}` is missing."
    if kind == "list_type":
        return line, f"`{where}`: {_of_a_list(fault['input'])}"
    if (
        kind == "model_type"
        and isinstance(fault["input"], str)
        and location[-2:-1] in {("workloads",), ("conditions",)}
    ):
        return line, f"`{where}`: an object is needed (found {fault['input']!r}): write {{name: {fault['input']}}}."
    if kind in _NUMBERS and (meant := _number_meant(fault["input"], whole=kind == "int_type")):
        return line, f"`{where}`: {in_words(fault)} (found the text {fault['input']!r}): write {meant}."
    message = in_words(fault)
    shown = "" if isinstance(fault["input"], dict | list) else f" (found {fault['input']!r})"
    return line, f"`{where}`: {message}{shown}.{_nearest_name(fault) if kind == 'enum' else ''}"


def _number_meant(given: Any, *, whole: bool) -> str:
    """The number that a text stands for, as YAML writes it; empty where there is none."""
    try:
        number = float(given) if isinstance(given, str) else math.nan
    except ValueError:
        return ""
    if not abs(number) < _PLAIN or (whole and number != int(number)):
        return ""
    return f"{number:.15g}"


def _of_a_list(given: Any) -> str:
    return "a list is needed." if isinstance(given, dict) else f"a list is needed (found {given!r}): write [{given}]."


def _nearest_name(fault: Any) -> str:
    """Of the names that could be there, the one that was probably meant."""
    close = difflib.get_close_matches(str(fault["input"]), re.findall("'([^']+)'", str(fault["msg"])), n=1, cutoff=0.5)
    return f" Did you mean {close[0]}?" if close else ""


def _line_of(node: yaml.Node, location: Location) -> int:
    """1-based line of the deepest part of ``location`` that the file has."""
    line = node.start_mark.line + 1
    for part in location:
        if isinstance(node, yaml.MappingNode):
            match = next(((k, v) for k, v in reversed(node.value) if k.value == str(part)), None)
            if match is None:
                return line
            line, node = match[0].start_mark.line + 1, match[1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            line = node.start_mark.line + 1
    return line


def _did_you_mean(location: Location) -> str:
    model = _model_at(CampaignSpec, location[:-1])
    return _nearest(str(location[-1]), list(model.model_fields) if model else [])


def _nearest(name: str, known: Collection[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"; did you mean `{close[0]}`?" if close else f"; known here: {', '.join(known)}."


def _model_at(model: type[BaseModel], location: Location) -> type[BaseModel] | None:
    """The model that describes the mapping at ``location``."""
    for part in location:
        if isinstance(part, int):
            continue
        if part not in model.model_fields:
            return None
        inner = _models_in(model.model_fields[part].annotation)
        if not inner:
            return None
        model = inner[0]
    return model


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if (
        isinstance(annotation, type)
        and not isinstance(annotation, types.GenericAlias)
        and issubclass(annotation, BaseModel)
    ):
        return [annotation]
    return [model for argument in typing.get_args(annotation) for model in _models_in(argument)]
