"""What the files of a kubeconfig name, read in the order of kubectl: the first that names something counts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from harness.spec.yaml_tree import SAFE_LOADER

Object = dict[str, Any]


def current_context(place: str) -> str | None:
    """The context in use where none is asked for; None where no file says."""
    return next((str(one["current-context"]) for one in _files(place) if one.get("current-context")), None)


def user(place: str, context: str | None) -> Object:
    """How the user of a context logs in; nothing where there is none such."""
    wanted = context or current_context(place) or ""
    return _named(place, "users", "user", str(_named(place, "contexts", "context", wanted).get("user")))


def _named(place: str, collection: str, key: str, name: str) -> Object:
    entries = (one for file in _files(place) for one in file.get(collection) or ())
    found = next((one.get(key) for one in entries if isinstance(one, dict) and one.get("name") == name), None)
    return found if isinstance(found, dict) else {}


def _files(place: str) -> Iterator[Object]:
    """The content of each; one that is not what it should be is left out here, and said by whoever connects."""
    for part in filter(None, place.split(os.pathsep)):
        try:
            content = yaml.load(Path(part).expanduser().read_text(encoding="utf-8"), SAFE_LOADER)  # noqa: S506 - it is safe
        except (OSError, ValueError, yaml.YAMLError):
            continue
        if isinstance(content, dict):
            yield content
