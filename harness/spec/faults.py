"""What pydantic finds wrong, in our words."""

from __future__ import annotations

import re
from typing import Any

from pydantic import ValidationError

_WORDS = (
    (r"^Value error, ", ""),
    (r"^\w+ should ", "must "),
    (r"^Field required$", "is missing"),
    (r"^Invalid JSON: .*", "is no JSON"),
    (r", unable to parse string as .*|, got a number with a fractional part| after validation, not \d+$", ""),
    (r"be (greater|less) than or equal to", lambda match: f"be at {'least' if match[1] == 'greater' else 'most'}"),
    (
        r"match pattern '\^\[a-z0-9\]\[a-z0-9-\]\{0,(\d+)\}\$'",
        lambda match: f"be lower-case letters, digits and hyphens, at most {int(match[1]) + 1}, no hyphen first",
    ),
    (r"match pattern", "match the pattern"),
    (r"be a valid (list|tuple|set|array)$", "be a list"),
    (r"be a valid (dictionary|object).*", "be an object"),
    (r"be a valid string$", "be text"),
    (r"be a valid integer$", "be a whole number"),
    (r"be a valid (number|boolean)$", lambda match: "be a number" if match[1] == "number" else "be true or false"),
)


def in_words(fault: Any) -> str:
    """One fault, as ``ValidationError.errors`` lists it: ``must be at least 1``; without a full stop."""
    return plain(str(fault["msg"]))


def plain(message: str) -> str:
    """A message of pydantic's, without a full stop."""
    message = message.rstrip(".")
    for pattern, words in _WORDS:
        message = re.sub(pattern, words, message)
    return message


def first_in_words(error: ValidationError) -> str:
    """The first fault with its place: ``replicas.0 must be at least 1``; without a full stop."""
    first = error.errors()[0]
    # Pydantic puts the branch of a union into the place: list[str], function-after[...], a class.
    parts = [str(part) for part in first["loc"]]
    where = ".".join(part for part in parts if re.fullmatch(r"[\w./@-]*", part) and not part[:1].isupper())
    own = first["type"] == "value_error"
    return f"{where}{':' if own else ''} {in_words(first)}" if where else f"{'' if own else 'it '}{in_words(first)}"
