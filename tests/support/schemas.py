"""Kubernetes's published schemas, which are megabytes and are read once."""

from __future__ import annotations

import functools
from typing import Any

import kubernetes_validate
from kubernetes_validate import utils

utils.schema_contents = functools.cache(utils.schema_contents)


def validate(item: dict[str, Any], minor: str) -> None:
    """Raise ``kubernetes_validate.ValidationError`` where the object is none of that minor, or has a field too many."""
    kubernetes_validate.validate(item, minor, strict=True)
