"""The part of kubectl's jsonpath that provisioning uses: fields, indexes, `[*]`, equality filters, range and text."""

import json
import re
from typing import Any

_TOKEN = re.compile(r"\{([^{}]*)\}|([^{}]+)")
_STEP = re.compile(
    r"""\.?(?:\['(?P<quoted>[^']+)'\]|\[\?\((?P<filter>.+?)\)\]|\[(?P<index>-?\d+|\*)\]|(?P<field>(?:\\.|[^.\[\]\\])+))"""
)
_FILTER = re.compile(r"""@(?P<path>[^=!]+?)\s*(?P<operator>==|!=)\s*['"]?(?P<value>[^'"]*)['"]?\s*$""")


def render(template: str, root: Any) -> str:
    """Evaluate a whole template (`{.metadata.name}`, `{range .items[*]}..{end}`) against one object."""
    tokens = [(match[1], match[2]) for match in _TOKEN.finditer(template)]
    text, rest = _render(tokens, root, root)
    if rest:
        raise ValueError(f"unbalanced end in jsonpath {template!r}")
    return text


def _render(tokens: list[tuple[str, str]], root: Any, current: Any) -> tuple[str, list[tuple[str, str]]]:
    out = []
    while tokens:
        expression, literal = tokens[0]
        tokens = tokens[1:]
        if literal:
            out.append(literal)
        elif expression.startswith("range "):
            found = select(expression.removeprefix("range ").strip(), root, current)
            rest = _skip(tokens)
            out += [_render(tokens, root, item)[0] for item in found]
            tokens = rest
        elif expression == "end":
            return "".join(out), tokens
        elif expression.startswith('"'):
            out.append(json.loads(expression))
        else:
            out.append(" ".join(map(_text, select(expression, root, current))))
    return "".join(out), []


def _skip(tokens: list[tuple[str, str]]) -> list[tuple[str, str]]:
    depth = 1
    for position, (expression, _) in enumerate(tokens):
        depth += expression.startswith("range ") if expression else 0
        depth -= expression == "end"
        if depth == 0:
            return tokens[position + 1 :]
    raise ValueError("a range without its end")


def select(path: str, root: Any, current: Any = None) -> list[Any]:
    """Every value that a path reaches; nothing where a field is missing."""
    relative = path.startswith("@")
    values = [current if relative or current is not None else root]
    if path.startswith("$"):
        values = [root]
    for step in _STEP.finditer(path.lstrip("@$")):
        values = [found for value in values for found in _step(step, value)]
    return values


def _step(step: re.Match[str], value: Any) -> list[Any]:
    name = step["quoted"] or (step["field"] or "").replace("\\.", ".")
    if name:
        return [value[name]] if isinstance(value, dict) and name in value else []
    if step["filter"]:
        return [item for item in value if _accepts(step["filter"], item)]
    if step["index"] == "*":
        return list(value.values()) if isinstance(value, dict) else list(value)
    index = int(step["index"])
    return [value[index]] if -len(value) <= index < len(value) else []


def _accepts(condition: str, item: Any) -> bool:
    parts = _FILTER.match(condition)
    if parts is None:
        return bool(select(condition, item, item))
    found = [_text(value) for value in select(parts["path"], item, item)]
    return (parts["value"] in found) == (parts["operator"] == "==")


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, str) else json.dumps(value)
