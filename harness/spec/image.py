"""What a container image is called."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator

_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_REGISTRY = rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[0-9a-fA-F:]+\])(?::[0-9]+)?"
_COMPONENT = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_REFERENCE = re.compile(
    rf"(?:{_REGISTRY}/)?{_COMPONENT}(?:/{_COMPONENT})*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,})?"
)
"""The grammar by which a kubelet reads it (the distribution project's): with another it says InvalidImageName, and pulls nothing."""


def _checked(value: str) -> str:
    if not _REFERENCE.fullmatch(value):
        raise ValueError(f"{value!r} is no image reference, e.g. registry.example/team/workload:1.0")
    return value


ImageReference = Annotated[str, AfterValidator(_checked)]
"""Refuses what no registry could have: spaces, capitals in the path, an empty tag."""
