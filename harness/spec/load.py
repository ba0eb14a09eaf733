"""From the text of a campaign file to a CampaignSpec, or to one error that names every line to mend."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Collection, Iterator
from typing import Any

import yaml
from pydantic import ValidationError

from harness.errors import CampaignFileError
from harness.spec.campaign import CampaignSpec
from harness.spec.model import Lacking, Location, StrictModel, in_words, inner_models, nearest
from harness.spec.workload import REMOVED_OPTIONS, WORKLOAD_OPTIONS, WorkloadSpec, settings_of
from harness.spec.yaml_tree import Fault, read_tree

MAX_FAULTS = 50


def parse_campaign(text: str, *, origin: str, metrics: Collection[str] = ()) -> CampaignSpec:
    """Check the text of a campaign file, which ``origin`` names; no ``metrics``: they are checked later. Raises CampaignFileError."""
    tree, data, faults = read_tree(text, origin=origin)
    if not isinstance(tree, yaml.MappingNode):
        raise CampaignFileError(
            f"{origin} holds no campaign: a mapping with `name`, `workloads`, `replicas` is expected.",
            advice="Write one with: harness init FILE",
        )
    if not faults:
        try:
            # Through JSON in strict mode: "3" is no number and true is no 1, while names become enums.
            spec = CampaignSpec.model_validate_json(json.dumps(data), strict=True)
        except ValidationError as error:
            faults = sorted({_described(tree, data, fault) for fault in error.errors(include_url=False)})
        else:
            refused = dict.fromkeys((_in_file(place, data), why) for place, why in refusals(spec))
            faults = [(_met(tree, place)[0], f"`{_dotted(place)}`: {why}") for place, why in refused]
            listed = [] if spec.metrics == "all" or not metrics else spec.metrics
            faults += [
                (_met(tree, ("metrics", index))[0], f"unknown metric `{name}`; {nearest(name, metrics)}")
                for index, name in enumerate(listed)
                if name not in metrics
            ]
            if not faults:
                return spec
    lines = "\n".join(f"  {origin}:{line}: {message}" for line, message in sorted(faults)[:MAX_FAULTS])
    raise CampaignFileError(
        f"{origin} has {len(faults)} fault{'s' if len(faults) > 1 else ''}:\n{lines}",
        advice="Every field is described by: harness schema",
    )


def _described(tree: yaml.Node, data: Any, fault: Any) -> Fault:
    """Line and sentence of one fault found by pydantic."""
    given, kind, whole = fault["input"], fault["type"], _in_file(fault["loc"], data)
    line, node, place = _met(tree, whole)
    if kind == "missing":
        return line, f"`{_dotted((*place, whole[-1]))}` is missing."
    if kind == "extra_forbidden":
        key, beside = str(place[-1]), _known_keys(place[:-1])
        if place[:-1] and key in CampaignSpec.model_fields:
            return line, f"`{_dotted(place)}`: `{key}` is of the whole campaign: write it without indentation."
        return line, f"unknown key `{_dotted(place)}`; {nearest(key, beside)}"
    named = re.findall(r"`([\w.]+)`", fault["msg"]) if kind == "value_error" else []
    lines = (_met(node, tuple(name.split(".")), line)[0] for name in named)
    shown = "" if isinstance(given, dict | list) else f" (found {given!r})"
    where = f"`{_dotted(place)}`: " if place else ""
    message = f"{where}{in_words(fault['msg'])}{shown}.{_hint(fault, place)}"
    return next((of_field for of_field in lines if of_field != line), line), message


def _hint(fault: Any, place: Location) -> str:
    """What was probably meant, where that can be told."""
    kind, given = fault["type"], fault["input"]
    if kind == "list_type" and not isinstance(given, dict):
        return f" Write [{given}]."
    if kind == "model_type" and isinstance(given, str) and place[-2:-1] in {("workloads",), ("conditions",)}:
        return f" Write {{name: {given}}}."
    if kind == "model_type" and isinstance(given, str) and "file" in _known_keys(place):
        return f" Write {{file: {given}}}."
    if kind in {"int_type", "float_type"} and re.fullmatch(r"-?\d+(\.\d*)?(e\d{1,2})?", str(given)):
        number = float(given)
        of_kind = isinstance(given, str) and (kind == "float_type" or not number % 1)
        return f" It is a text: write {number:.15g}." if of_kind else ""
    return _meant(str(given), fault["msg"]) if kind in {"enum", "literal_error"} else ""


def _meant(given: str, message: str) -> str:
    if given in REMOVED_OPTIONS:
        return f" It was removed: say {REMOVED_OPTIONS[given]}."
    if any(given in options for options in WORKLOAD_OPTIONS.values()):
        return f" Did you mean `options: {{{given}: true}}`?"
    if close := difflib.get_close_matches(given, re.findall("'([^']+)'", message), n=1, cutoff=0.5):
        return f" Did you mean {close[0]}?"
    section = next((name for name in CampaignSpec.model_fields if given in _known_keys((name,))), "")
    return f" `{given}` is a field of `{section}`." if section else ""


def _met(node: yaml.Node, place: Location, line: int = 0) -> tuple[int, yaml.Node, Location]:
    """Line (1-based), node and name of the deepest part of a place that the file has; pydantic's names of unions are not in it."""
    line, met = line or node.start_mark.line + 1, []
    for part in place:
        if isinstance(node, yaml.MappingNode):
            pair = next((pair for pair in reversed(node.value) if pair[0].value == str(part)), None)
            if pair is not None:
                line, node = pair[0].start_mark.line + 1, pair[1]
                met.append(part)
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            line = node.start_mark.line + 1
            met.append(part)
    return line, node, tuple(met)


def _dotted(place: Location) -> str:
    return ".".join(map(str, place))


def _in_file(place: Location, data: Any) -> Location:
    """The place that the file has: the checks see a workload with lists as several."""
    if place[:1] != ("workloads",) or len(place) < 2:
        return place
    try:
        written = [at for at, workload in enumerate(data["workloads"]) for _ in settings_of([workload])]
        return ("workloads", written[int(place[1])], *place[2:])
    except (TypeError, ValueError, IndexError):  # no list, or told already
        return place


def _known_keys(place: Location) -> list[str]:
    """Of the mapping there."""
    model: type[StrictModel] | None = CampaignSpec
    for part in place:
        if model and isinstance(part, str):
            model = next(inner_models(model.model_fields[part].annotation), None)
    return list(model.model_fields) if model else []


def refusals(spec: CampaignSpec) -> Iterator[tuple[Location, str]]:
    """What the campaign asks for and cannot have, by its place: of its backend, or because it was removed."""
    yield from _refusals(spec, spec.backend, ())


def require(spec: CampaignSpec, *, origin: str) -> None:
    """Raise CampaignFileError where the campaign, which ``origin`` names, asks for what it cannot have."""
    lines = "\n".join(f"  `{'.'.join(map(str, place))}`: {why}" for place, why in refusals(spec))
    if lines:
        raise CampaignFileError(
            f"{origin} asks for what cannot be:\n{lines}", advice="Change the campaign file; nothing has been started."
        )


def _refusals(model: StrictModel, backend: str, place: Location) -> Iterator[tuple[Location, str]]:
    for name, field in type(model).model_fields.items():
        value = getattr(model, name)
        for lacking in field.metadata:
            if isinstance(lacking, Lacking) and lacking.backend == backend and lacking.is_asked(model, name):
                yield (*place, name), f"backend {backend} cannot do this: {lacking.why}. {lacking.instead}"
        if isinstance(value, StrictModel):
            yield from _refusals(value, backend, (*place, name))
        for index, item in enumerate(value if isinstance(value, list) else ()):
            if isinstance(item, StrictModel):
                yield from _refusals(item, backend, (*place, name, index))
    if isinstance(model, WorkloadSpec):
        removed = [option for option in model.options if option in REMOVED_OPTIONS]
        yield from (
            ((*place, "options", option), f"it was removed: say {REMOVED_OPTIONS[option]}.") for option in removed
        )
