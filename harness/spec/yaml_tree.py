"""The text of a YAML file as a tree with lines: plain mappings, lists, texts and finite numbers, and nothing else."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import yaml

from harness.errors import CampaignFileError

MAX_CHARACTERS = 256 * 1024
MAX_DEPTH = 20
MAX_NODES = 20_000
LARGEST_INTEGER = 2**63 - 1
_TYPED = frozenset(f"tag:yaml.org,2002:{name}" for name in ("int", "float", "bool", "null"))
_TEXT = "tag:yaml.org,2002:str"
_ADVICE = "Fix this line; lists and mappings may also be written in brackets, as in JSON."

SAFE_LOADER: type[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""For YAML in which no mistake needs its line: libyaml's, ten times as fast, where PyYAML was built with it."""

Fault = tuple[int, str]


class _Loader(yaml.SafeLoader):
    """SafeLoader that counts what it reads, so that a small file cannot make a large or endless tree."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = self._nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        self._nodes += 1
        refusal = ""
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            refusal = "an anchor (&) or alias (*) is not allowed here: write out its content"
        elif event.tag is not None:
            refusal = f"the tag {event.tag} is not allowed here: write the value alone, a text in quotes"
        elif self._depth == MAX_DEPTH:
            refusal = f"lists and mappings lie more than {MAX_DEPTH} deep in each other: no field needs that"
        elif self._nodes > MAX_NODES:
            refusal = f"there are more than {MAX_NODES:,} values: split the campaign into several files"
        if refusal:
            raise yaml.MarkedYAMLError(problem=refusal, problem_mark=event.start_mark)
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


def read_tree(text: str, *, origin: str) -> tuple[yaml.Node | None, Any, list[Fault]]:
    """The tree of ``text``, the data in it, and what is wrong with them by line (1-based); no data where there are faults.

    Raises CampaignFileError where ``text`` is not YAML, uses what is not allowed here, or is too large or deep.
    """
    if len(text) > MAX_CHARACTERS:
        raise CampaignFileError(
            f"{origin} is longer than {MAX_CHARACTERS:,} characters, and is not read.",
            advice="Check the path; split a campaign that is so large into several files.",
        )
    try:
        loader = _Loader(text)
        tree = loader.get_single_node()
        if tree is None:
            return None, None, []
        faults = list(_faults(loader, tree))
        return tree, None if faults else loader.construct_document(tree), faults
    except yaml.YAMLError as error:
        raise CampaignFileError(
            f"{origin}:{_line(error, text)}: this is not YAML: {_reason(error)}.", advice=_ADVICE
        ) from error


def _faults(loader: _Loader, node: yaml.Node) -> Iterator[Fault]:
    """Keys given twice and values that cannot be; on the way, keys, dates and the like become the texts that they are."""
    if isinstance(node, yaml.MappingNode):
        seen: dict[str, int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                yield line, "a key must be a word, not a list or a mapping."
                continue
            key.tag = _TEXT
            if key.value in seen:
                yield line, f"`{key.value}` is given twice (first in line {seen[key.value]})."
            seen.setdefault(key.value, line)
            yield from _faults(loader, key)
            yield from _faults(loader, value)
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _faults(loader, item)
    elif node.tag in _TYPED:
        yield from _number_faults(loader, node)
    else:
        node.tag = _TEXT
        if any(character == "\0" or "\ud800" <= character <= "\udfff" for character in node.value):
            yield node.start_mark.line + 1, "a text holds a NUL or half a character: write it without."


def _number_faults(loader: _Loader, node: yaml.Node) -> Iterator[Fault]:
    line, shown = node.start_mark.line + 1, node.value if len(node.value) <= 24 else f"{node.value[:24]}..."
    try:
        value = loader.construct_object(node)
    except (ValueError, OverflowError):
        yield line, f"{shown} is not a readable number."
        return
    if isinstance(value, float) and not math.isfinite(value):
        yield line, f"{shown} is not a finite number: give one, or leave the field out."
    elif isinstance(value, int) and abs(value) > LARGEST_INTEGER:
        yield line, f"{shown} is larger than any number here may be ({LARGEST_INTEGER:,})."


def _line(error: yaml.YAMLError, text: str) -> int:
    mark = getattr(error, "problem_mark", None)
    if mark is not None:
        return int(mark.line) + 1
    return text.count("\n", 0, getattr(error, "position", 0)) + 1


def _reason(error: yaml.YAMLError) -> str:
    parts = [getattr(error, name, None) for name in ("context", "problem", "reason")]
    return ", ".join(" ".join(str(part).split()) for part in parts if part) or "it cannot be read"
