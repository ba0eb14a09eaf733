"""When the token of a kubeconfig ends, where nothing renews it by itself."""

from __future__ import annotations

import base64
import binascii
import json

from harness.backends.kubernetes import kubeconfig

_RENEWED_BY = {"exec", "auth-provider"}


def ends_s(place: str | None, context: str | None, authorization: str) -> float | None:
    """Seconds since the epoch; None where it does not say, does not end, or is renewed by a login program or the kubelet.

    Args:
        place: of the kubeconfig; None: this is a pod, whose kubelet renews its token.
        context: of it; None: its current one.
        authorization: the header that is sent.
    """
    if place is None or _RENEWED_BY & kubeconfig.user(place, context).keys():
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
