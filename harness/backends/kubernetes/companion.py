"""An object that stands beside an attempt's Deployment or Job: made before it, and deleted after it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Companion:
    """One of them.

    Attributes:
        path: of the object.
        body: to apply.
    """

    path: str
    body: dict[str, Any]
