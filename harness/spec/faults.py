"""What pydantic finds wrong, in our words."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from pydantic import ValidationError

_WORDS: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    (r"^Value error, ", ""),
    (r"^\w+ should ", "must "),
    (r"^Field required$", "is missing"),
    (r"^Invalid JSON: .*", "is no JSON"),
    (r", unable to parse string as .*", ""),
    (r"be greater than or equal to", "be at least"),
    (r"be less than or equal to", "be at most"),
    (
        r"match pattern '\^\[a-z0-9\]\[a-z0-9-\]\{0,(\d+)\}\$'",
        lambda found: f"be lower-case letters, digits and hyphens, at most {int(found[1]) + 1}, no hyphen first",
    ),
    (r"match pattern", "match the pattern"),
    (r"be a valid (list|tuple|set|array)$", "be a list"),
    (r"be a valid (dictionary|object).*", "be an object"),
    (r"be a valid string$", "be text"),
    (r"be a valid integer(, got a number with a fractional part)?$", "be a whole number"),
    (r"be a valid number$", "be a number"),
    (r"be a valid boolean$", "be true or false"),
    (r"(have at (least|most) \d+ items?) after validation, not \d+$", r"\1"),
)


def in_words(fault: Any) -> str:
    """One fault, as ``ValidationError.errors`` lists it: ``must be at least 1``; without a full stop."""
    return plain(str(fault["msg"]))


def plain(message: str) -> str:
    """A message of pydantic in our words, without a full stop."""
    message = message.rstrip(".")
    for pattern, words in _WORDS:
        message = re.sub(pattern, words, message)
    return message


def is_union_tag(part: int | str) -> bool:
    """Pydantic puts the branch of a union into the location; no key of ours contains these."""
    return isinstance(part, str) and (
        part.startswith(("list[", "function-", "json")) or part == "MetricSelection" or " " in part
    )


def first_in_words(error: ValidationError) -> str:
    """The first fault with its place: ``replicas.0 must be at least 1``; without a full stop."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"] if not is_union_tag(part))
    own = first["type"] == "value_error"
    return f"{where}{':' if own else ''} {in_words(first)}" if where else f"{'' if own else 'it '}{in_words(first)}"
