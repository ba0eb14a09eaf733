"""How requests come to this replica, when not in the closed loop: ``SCENARIO`` of the environment."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields

from harness.replica.errors import SettingError

KINDS = ("offline", "server", "single-stream", "multi-stream", "http")
OPEN_LOOP = ("server", "http")


@dataclass(frozen=True, slots=True)
class Scenario:
    """One scenario.

    Attributes:
        kind: offline, server, single-stream, multi-stream (all LoadGen's) or http.
        rate: requests per second that this replica is sent; server, and http, where the sender knows it.
        latency_limit_ms: within which 99 % must be answered, from the intended time; None: no limit.
        samples_per_query: multi-stream: samples in one query.
        settle_s: seconds of load before LoadGen's test.
        test_s: seconds of LoadGen's test.
        max_wait_ms: how long a request may wait for others to fill its batch.
        max_queue: inputs that may wait, http.
        port: of the HTTP server; 0: any free one.
    """

    kind: str
    rate: float = 0.0
    latency_limit_ms: float | None = None
    samples_per_query: int = 8
    settle_s: float = 0.0
    test_s: float = 60.0
    max_wait_ms: float = 0.0
    max_queue: int = 256
    port: int = 0


def parse_scenario(text: str) -> Scenario:
    """Read the JSON object of ``SCENARIO``. Raises SettingError."""
    try:
        given = json.loads(text)
    except json.JSONDecodeError as error:
        raise SettingError(f"SCENARIO is not JSON ({error}): {text[:200]!r}") from None
    if not isinstance(given, dict) or given.get("kind") not in KINDS:
        raise SettingError(f'SCENARIO must be a JSON object such as {{"kind": "offline"}}, of kind {", ".join(KINDS)}.')
    return _checked(given)


def _checked(given: Mapping[str, object]) -> Scenario:
    known = {field.name for field in fields(Scenario)}
    unknown = sorted(given.keys() - known)
    if unknown:
        raise SettingError(f"SCENARIO: {unknown[0]!r} is unknown; it takes {', '.join(sorted(known))}.")
    wrong = [name for name, value in given.items() if name != "kind" and not _is_amount(name, value)]
    if wrong:
        raise SettingError(f"SCENARIO: {wrong[0]} must be a number, 0 or more, not {given[wrong[0]]!r}.")
    scenario = Scenario(**given)  # type: ignore[arg-type]
    if scenario.kind == "server" and not scenario.rate:
        raise SettingError("SCENARIO: server needs `rate`, requests per second.")
    return scenario


def _is_amount(name: str, value: object) -> bool:
    if value is None:
        return name == "latency_limit_ms"
    whole = name in {"samples_per_query", "max_queue", "port"}
    kinds = (int,) if whole else (int, float)
    return type(value) in kinds and value >= 0  # type: ignore[operator]
