"""Files of requests, as people have them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from harness.errors import LoadError

_KEYS = ("prompt", "messages", "body")
_PEOPLE = frozenset({"human", "user"})


def read_file(path: Path) -> list[dict[str, Any]]:
    """The requests of a JSONL file, or of a JSON file in ShareGPT's form. Raises LoadError with what is at fault."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LoadError(f"the requests' file {path} cannot be read: {error}.") from error
    if path.suffix == ".json":
        return _conversations(path, text)
    entries = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except ValueError:
            entry = None
        if not isinstance(entry, dict) or not any(key in entry for key in _KEYS):
            raise LoadError(f"{path}:{number}: a line is a JSON object with `prompt`, `messages` or `body`.")
        entries.append(entry)
    if not entries:
        raise LoadError(f"the requests' file {path} holds no request.")
    return entries


def _conversations(path: Path, text: str) -> list[dict[str, Any]]:
    """What people asked first in each conversation."""
    try:
        entries = [entry["conversations"] for entry in json.loads(text)]
        first = [turns[0] for turns in entries if turns]
        prompts = [turn["value"] for turn in first if turn["from"] in _PEOPLE and turn["value"]]
    except (ValueError, TypeError, KeyError) as error:
        raise LoadError(
            f"the requests' file {path} is no JSON in ShareGPT's form: a list of objects with `conversations`, "
            f"whose turns have `from` and `value` ({type(error).__name__}: {error})."
        ) from error
    if not prompts:
        raise LoadError(f"the requests' file {path} holds no conversation that a human begins.")
    return [{"prompt": prompt} for prompt in prompts]
