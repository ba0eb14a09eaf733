"""What server to start and what to ask it, from the variable SERVER: a JSON object that the campaign file's check has passed."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from harness.replica.errors import CannotBeMetError, SettingError

VARIABLE = "SERVER"
BEARER = "Authorization"
HTTP, COMPLETIONS, CHAT = "http", "openai-completions", "openai-chat"
OIP, OIP_GRPC, OWN = "oip", "oip-grpc", "own"
_PATHS = {HTTP: "/", COMPLETIONS: "/v1/completions", CHAT: "/v1/chat/completions", OIP: "/v2/models/{model}/infer"}


@dataclass(frozen=True, slots=True)
class Length:
    """Lengths of synthetic texts, tokens."""

    mean: float
    stddev: float = 0.0
    min: int = 1
    max: int = 1_000_000


@dataclass(frozen=True, slots=True)
class Engine:
    """One server; the fields are those of ``server`` in the campaign file (harness/spec/server.py).

    Attributes:
        settle_s: after so many seconds of the load the recording begins.
        record_s: how long that lasts.
        beside: it runs in the container beside this one, whose processes can be seen from here.
        restore: variables that were set for the replica alone, with what the server shall have instead; None: nothing.
        logger: command that passes its input on to its output up to a limit; empty: the output is not limited.
    """

    command: tuple[str, ...] = ()
    url: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    port: int | None = None
    ready: Mapping[str, Any] = field(default_factory=dict)
    stop_timeout_s: float = 10.0
    protocol: str = HTTP
    client: str = ""
    path: str | None = None
    model: str | None = None
    tensors: Sequence[Mapping[str, Any]] | None = None
    stream: bool = True
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    method: str = "POST"
    body: str | Mapping[str, Any] | None = None
    success: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    api_key_env: str | None = None
    api_key_header: str = BEARER
    requests: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, Any] | None = None
    concurrency: int | None = None
    rate: float | None = None
    arrivals: str | None = None
    burstiness: float | None = None
    ramp_to: float | None = None
    trace: Mapping[str, Any] | None = None
    max_in_flight: int = 1024
    request_timeout_s: float = 60.0
    settle_s: float = 0.0
    record_s: float = 0.0
    beside: bool = False
    restore: Mapping[str, str | None] = field(default_factory=dict)
    logger: tuple[str, ...] = ()

    @property
    def streams(self) -> bool:
        """Answers come token by token."""
        return self.protocol in {COMPLETIONS, CHAT, OWN} and self.stream

    @property
    def target(self) -> str:
        """Path of the requests."""
        return self.path or _PATHS[self.protocol].format(model=quote(self.model or "", safe=""))

    def key(self) -> str:
        """The server's key; empty where it needs none. Raises CannotBeMetError where its variable is not set."""
        key = os.environ.get(self.api_key_env, "").strip() if self.api_key_env else ""
        if self.api_key_env and not key:
            raise CannotBeMetError(f"the variable {self.api_key_env}, which should hold the server's key, is not set.")
        return key

    def all_headers(self) -> dict[str, str]:
        """The requests' headers, with the key. Raises CannotBeMetError where its variable is not set."""
        key = self.key()
        if not key:
            return dict(self.headers)
        return {**self.headers, self.api_key_header: f"Bearer {key}" if self.api_key_header.title() == BEARER else key}


def from_environment(environment: Mapping[str, str] = os.environ) -> Engine:
    """Read the variable. Raises SettingError."""
    try:
        return Engine(**json.loads(environment[VARIABLE]))
    except KeyError:
        raise SettingError(f"{VARIABLE} is not set; it says which server to start.") from None
    except (TypeError, ValueError) as error:
        raise SettingError(f"{VARIABLE} is not what the harness writes: {error}.") from None
