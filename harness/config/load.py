"""From the text of a campaign file to a CampaignSpec, or to one error that names every line to mend."""

from __future__ import annotations

import difflib
import json
import types
import typing
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from harness.config.campaign import CampaignSpec
from harness.errors import CampaignFileError

Location = tuple[int | str, ...]


def parse_campaign(text: str, *, origin: str) -> CampaignSpec:
    """Check the text of a campaign file; ``origin`` names it in messages. Raises CampaignFileError."""
    try:
        tree = yaml.compose(text, Loader=yaml.SafeLoader)
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise CampaignFileError(f"{origin} is not YAML: {_one_line(error)}") from error
    if not isinstance(tree, yaml.MappingNode):
        raise CampaignFileError(
            f"{origin} holds no campaign: a mapping with `name`, `workloads`, `replicas` is expected."
        )
    faults = _duplicate_keys(tree)
    try:
        # Through JSON in strict mode: "3" is no number and true is no 1, while names become enums.
        spec = CampaignSpec.model_validate_json(json.dumps(data, default=str), strict=True)
    except ValidationError as error:
        faults += [_describe(tree, fault) for fault in error.errors(include_url=False)]
    else:
        if not faults:
            return spec
    lines = "\n".join(f"  {origin}:{line}: {message}" for line, message in sorted(faults))
    raise CampaignFileError(
        f"{origin} has {len(faults)} fault{'s' if len(faults) > 1 else ''}:\n{lines}",
        advice="Every field is described by: harness schema",
    )


def _one_line(error: yaml.YAMLError) -> str:
    return " ".join(str(error).split())


def _duplicate_keys(node: yaml.Node) -> list[tuple[int, str]]:
    """YAML keeps the last of two equal keys silently; here both are named."""
    faults: list[tuple[int, str]] = []
    if isinstance(node, yaml.MappingNode):
        seen: dict[str, int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if key.value in seen:
                faults.append((line, f"`{key.value}` is given twice (first in line {seen[key.value]})."))
            seen.setdefault(key.value, line)
            faults += _duplicate_keys(value)
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            faults += _duplicate_keys(item)
    return faults


def _describe(tree: yaml.Node, fault: Any) -> tuple[int, str]:
    """Line and sentence of one fault found by pydantic."""
    location: Location = tuple(part for part in fault["loc"] if not _is_union_tag(part))
    line = _line_of(tree, location)
    where = ".".join(str(part) for part in location) or "the file"
    kind = fault["type"]
    if kind == "extra_forbidden":
        return line, f"unknown key `{where}`{_did_you_mean(location)}"
    if kind == "missing":
        return line, f"`{where}` is missing."
    message = str(fault["msg"]).removeprefix("Value error, ").rstrip(".")
    shown = "" if isinstance(fault["input"], dict | list) else f" (found {fault['input']!r})"
    return line, f"`{where}`: {message}{shown}."


def _is_union_tag(part: int | str) -> bool:
    """Pydantic puts the branch of a union into the location; no key of ours contains these."""
    return isinstance(part, str) and (part.startswith(("list[", "function-", "json")) or part == "MetricSelection")


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
    names = list(model.model_fields) if model else []
    close = difflib.get_close_matches(str(location[-1]), names, n=1, cutoff=0.5)
    return f"; did you mean `{close[0]}`?" if close else f"; known here: {', '.join(names)}."


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
