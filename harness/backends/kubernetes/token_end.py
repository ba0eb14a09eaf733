"""When the token of a kubeconfig ends, where nothing renews it by itself."""

from __future__ import annotations

import base64
import binascii
import json
import os
from pathlib import Path
from typing import Any

import yaml

_RENEWED_BY = "exec", "auth-provider"


def ends_s(place: str | None, context: str | None, authorization: str) -> float | None:
    """Seconds since the epoch; None where it does not say, does not end, or is renewed by a login program or the kubelet.

    Args:
        place: of the kubeconfig; None: this is a pod, whose kubelet renews its token.
        context: of it; None: its current one.
        authorization: the header that is sent.
    """
    if place is None or any(one in _user(place, context) for one in _RENEWED_BY):
        return None
    return _end_of(authorization)


def _end_of(authorization: str) -> float | None:
    """What a token says of itself, if it is one of those that do."""
    kind, _, token = authorization.partition(" ")
    parts = token.split(".")
    if kind != "Bearer" or len(parts) != 3:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (binascii.Error, ValueError):
        return None
    end = claims.get("exp") if isinstance(claims, dict) else None
    return float(end) if isinstance(end, int | float) else None


def _user(place: str, context: str | None) -> dict[str, Any]:
    """The user of a context; nothing where a file of the kubeconfig is not what it should be: that is said elsewhere.

    Of several files the client takes the first that names a user or a context, and the current context of the last.
    """
    current: str | None = None
    users: dict[str, dict[str, Any]] = {}
    contexts: dict[str, dict[str, Any]] = {}
    for part in filter(None, place.split(os.pathsep)):
        try:
            content = yaml.safe_load(Path(part).read_text(encoding="utf-8"))
            current = content.get("current-context") or current
            users = {one["name"]: one["user"] for one in content.get("users") or []} | users
            contexts = {one["name"]: one["context"] for one in content.get("contexts") or []} | contexts
        except (OSError, ValueError, yaml.YAMLError, AttributeError, KeyError, TypeError):
            continue
    return users.get(contexts.get(context or current or "", {}).get("user", "")) or {}
