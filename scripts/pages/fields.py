"""``docs/fields.md``, from the models that read a campaign file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from harness.spec import CampaignSpec
from scripts.pages.percentiles import merged

_HEAD = """# Every field of a campaign file

<!-- Written by `python -m scripts.pages` from the models that read the file; edit `harness/spec/` instead. -->

[campaigns.md](campaigns.md) explains them by examples. The end of a name is its unit: `_s` seconds, `_ms` milliseconds, `_gb` 10⁹ bytes,
`_percent` percent, `_celsius` degrees. An empty default is `null`. A list in braces stands for one field each. Unknown fields
are refused, with their line and the nearest name. `harness schema` prints the same for editors, with the patterns of texts.
"""
_BOUNDS = (("minimum", "≥"), ("exclusiveMinimum", ">"), ("maximum", "≤"), ("exclusiveMaximum", "<"))
_ITEMS = (("minItems", "at least"), ("maxItems", "at most"))
_PLAIN = {"boolean": "true or false", "integer": "integer", "number": "number", "null": "null"}
_EMPTY = {"list": "`[]`", "mapping": "`{}`"}
"""Of what is empty unless given; any other section has its own defaults."""
_REFERENCE = "#/$defs/"
_EXAMPLE = re.compile(r"[:;,.]? (?:[Ee]\.g\. |Or )?\[?\{\w+: .*$", re.DOTALL)
"""Of a section, whose fields have a table of their own."""
_LONGEST_SECTION = 3
"""Fields of a section's default that are shown."""
Schema = Mapping[str, Any]


def page() -> str:
    """The whole page: a table of the file, and one of each section in the order in which they are met."""
    whole = CampaignSpec.model_json_schema()
    places = {"CampaignSpec": ""}
    sections = []
    for name in _found(whole, places):
        model = whole if name == "CampaignSpec" else whole["$defs"][name]
        title = f"`{places[name]}`" if places[name] else "The file itself"
        rows = "".join(
            merged(_row(whole, field, about, model.get("required", ())) for field, about in model["properties"].items())
        )
        sections.append(
            f"\n## {title}\n\n{model.get('description', '').partition(chr(10))[0]}\n\n"
            f"| field | type | default | meaning |\n|---|---|---|---|\n{rows}"
        )
    return _HEAD + "".join(sections)


def _found(whole: Schema, places: dict[str, str]) -> Iterator[str]:
    """Models from the file inwards; ``places`` takes the field below which each is first met."""
    waiting = list(places)
    while waiting:
        name = waiting.pop(0)
        yield name
        model = whole if name == "CampaignSpec" else whole["$defs"][name]
        for field, about in model["properties"].items():
            for inner in _references(about):
                if inner not in places and "properties" in whole["$defs"][inner]:
                    places[inner] = f"{places[name]}.{field}".lstrip(".")
                    waiting.append(inner)


def _references(about: Any) -> Iterator[str]:
    if isinstance(about, Mapping):
        if "$ref" in about:
            yield about["$ref"].removeprefix(_REFERENCE)
        about = list(about.values())
    if isinstance(about, list):
        for each in about:
            yield from _references(each)


def _row(whole: Schema, field: str, about: Schema, required: object) -> str:
    kind = _type(whole, about)
    if isinstance(required, list | tuple) and field in required:
        default = "required"
    elif "default" in about and not (kind == "section" and len(about["default"] or ()) > _LONGEST_SECTION):
        default = "" if about["default"] is None else f"`{_yaml(about['default'])}`"
    else:
        default = next((text for word, text in _EMPTY.items() if kind.startswith(word)), "its own")
    words = about.get("description") or whole["$defs"][next(_references(about))]["description"]
    if "section" in kind:
        words = _EXAMPLE.sub(".", words)
    return f"| `{field}` | {kind} | {default} | {_cell(words)} |\n"


def _type(whole: Schema, about: Schema) -> str:
    """In words, with what bounds it."""
    choices = about.get("anyOf") or about.get("oneOf")
    values = about.get("enum") or [each for each in (about.get("const"),) if each is not None]
    if choices:
        said = " or ".join(dict.fromkeys(_type(whole, each) for each in choices if each.get("type") != "null"))
    elif "$ref" in about:
        model = whole["$defs"][about["$ref"].removeprefix(_REFERENCE)]
        said = "section" if "properties" in model else _type(whole, model)
    elif values:
        said = ", ".join(f"`{value}`" for value in values)
    else:
        said = _plain(whole, about)
    return said


def _plain(whole: Schema, about: Schema) -> str:
    kind = about.get("type", "")
    if kind == "array":
        lengths = [f"{word} {about[name]}" for name, word in _ITEMS if about.get(name, 1) != 1]
        inner = _type(whole, about.get("items", {})).replace("section", "sections")
        return ", ".join([f"list of {inner}", *lengths])
    if kind == "object":
        named = about.get("additionalProperties")
        inner = _type(whole, named) if isinstance(named, Mapping) and named else "text"
        return "mapping" if inner == "text" else f"mapping to {inner}"
    if kind == "string":
        return "text"
    if "minimum" in about and "maximum" in about:
        return f"{_PLAIN[kind]} {about['minimum']:,.10g} to {about['maximum']:,.10g}"
    bounds = [f"{sign} {about[name]:,.10g}" for name, sign in _BOUNDS if name in about]
    return " ".join(filter(None, [_PLAIN.get(kind, "any value"), ", ".join(bounds)]))


def _yaml(value: Any) -> str:
    """As it stands in a file."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list):
        return f"[{', '.join(map(_yaml, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name}: {_yaml(inner)}' for name, inner in value.items())}}}"
    return f"{value:g}" if isinstance(value, float) else str(value) if value != "" else '""'


def _cell(text: str) -> str:
    linked = re.sub(r"\bdocs/(\w+\.md)(#[\w-]+)?", r"[\1](\1\2)", text)
    return " ".join(linked.split()).replace("|", "\\|")
