"""What a server is asked with: its key out of the environment, and the headers of its requests."""

from __future__ import annotations

import os

from harness.replica.errors import CannotBeMetError
from harness.spec.server import ServerSpec

BEARER = "Authorization"


def server_key(server: ServerSpec) -> str:
    """The server's key; empty where it needs none. Raises CannotBeMetError where its variable is not set."""
    key = os.environ.get(server.api_key_env, "").strip() if server.api_key_env else ""
    if server.api_key_env and not key:
        raise CannotBeMetError(f"the variable {server.api_key_env}, which should hold the server's key, is not set.")
    return key


def request_headers(server: ServerSpec) -> dict[str, str]:
    """The requests' headers, with the key. Raises CannotBeMetError where its variable is not set."""
    key = server_key(server)
    if not key:
        return dict(server.headers)
    return {
        **server.headers,
        server.api_key_header: f"Bearer {key}" if server.api_key_header.title() == BEARER else key,
    }
