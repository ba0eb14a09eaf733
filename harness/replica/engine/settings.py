"""What a server is asked with: its key out of the environment, and the headers of its requests."""

from __future__ import annotations

import base64
import os

from harness.replica.errors import CannotBeMetError
from harness.spec.server import ServerSpec

BEARER = "Authorization"
HIDDEN = "(key)"
_URL_SAFE = str.maketrans("+/", "-_")
_TELLING_LETTERS = 4


def server_key(server: ServerSpec) -> str:
    """The server's key; empty where it needs none. Raises CannotBeMetError where its variable is not set."""
    key = os.environ.get(server.api_key_env, "").strip() if server.api_key_env else ""
    if server.api_key_env and not key:
        raise CannotBeMetError(f"the variable {server.api_key_env}, which should hold the server's key, is not set.")
    return key


def without_key(text: str, key: str) -> str:
    """What a server said, with neither the key nor its base64, which may begin at any of three bits of what was encoded."""
    for start, before in enumerate((0, 2, 3)) if key else ():
        raw = b"\0" * start + key.encode()
        encoded = base64.b64encode(raw).decode().rstrip("=")
        inside = encoded[before : len(raw) * 8 // 6]  # but for letters that hold bits of what stands beside it
        for form in (inside, inside.translate(_URL_SAFE)):
            text = text.replace(form, HIDDEN) if len(form) >= _TELLING_LETTERS else text
    return text.replace(key or HIDDEN, HIDDEN)


def request_headers(server: ServerSpec) -> dict[str, str]:
    """The requests' headers, with the key. Raises CannotBeMetError where its variable is not set."""
    key = server_key(server)
    if not key:
        return dict(server.headers)
    return {
        **server.headers,
        server.api_key_header: f"Bearer {key}" if server.api_key_header.title() == BEARER else key,
    }
