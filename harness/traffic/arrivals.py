"""When each request is meant to be sent: at a rate, at one that changes, or as a trace in Mooncake's form says."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from harness.errors import LoadError
from harness.spec.model import first_in_words
from harness.spec.server import ServerSpec

NS_PER_S = 1_000_000_000
NS_PER_MS = 1_000_000
MS_PER_S = 1000
MOST_TOKENS = 1_000_000
MOST_PER_S = 100_000
MOST_MS = 1e15
"""Beyond any clock, those from 1970 on among them; a larger whole number may be no float."""


def arrivals(rate: float, kind: str | None, seed: int, burstiness: float | None = None) -> Iterator[int]:
    """Nanoseconds after the start at which requests are meant to be sent; endless, the same for the same seed.

    ``rate`` is in requests per second; a ``kind`` that is neither constant nor gamma is Poisson.
    """
    chance = random.Random(seed)  # noqa: S311 - arrivals to repeat, not a secret
    number, at_s = 0, 0.0
    while True:
        number += 1
        if kind == "constant":
            at_s = number / rate
        elif kind == "gamma" and burstiness:
            at_s += chance.gammavariate(burstiness, 1 / (rate * burstiness))
        else:
            at_s += chance.expovariate(rate)
        yield round(at_s * NS_PER_S)


def of_targets(rate: float, kind: str, targets: int, seed: int) -> Iterator[tuple[int, int]]:
    """Arrivals of a rate at each of so many targets, with the target's index: independent ones, or constant ones in turn."""
    due = arrivals(rate * targets, kind, seed)
    if kind == "constant":
        return zip(due, itertools.cycle(range(targets)), strict=False)
    # One stream of the summed rate whose arrivals fall to targets by chance is as many independent streams.
    chance = random.Random(f"target {seed}")  # noqa: S311 - as above
    return ((due_ns, chance.randrange(targets)) for due_ns in due)


def of_server(server: ServerSpec, seed: int, *, settle_s: float, record_s: float) -> Iterator[int] | None:
    """Arrivals of the load that goes with a server, a ramp within the recording; None in the closed loop."""
    if server.trace is not None:
        return of_trace(read_trace(Path(server.trace.file), server.trace.factor))
    if server.rate is None:
        return None
    due = arrivals(server.rate, server.arrivals, seed, server.burstiness)
    if server.ramp_to is None:
        return due
    return ramped(due, server.rate, server.ramp_to, begin_s=settle_s, within_s=record_s)


def ramped(due: Iterator[int], rate: float, to: float, *, begin_s: float, within_s: float) -> Iterator[int]:
    """Arrivals of a rate, moved so that it changes evenly to another one, from ``begin_s`` on, in ``within_s`` seconds."""
    for due_ns in due:
        further = rate * (due_ns / NS_PER_S - begin_s)  # so many requests after the beginning of the change
        above = further - within_s * (rate + to) / 2
        if further <= 0:
            yield due_ns
        elif above >= 0:
            yield round((begin_s + within_s + above / to) * NS_PER_S)
        else:  # where the area below the line of the rate is as much
            after_s = 2 * further / (rate + math.sqrt(rate**2 + 2 * further * (to - rate) / within_s))
            yield round((begin_s + after_s) * NS_PER_S)


class TracedRequest(BaseModel):
    """One line: milliseconds after the first one, and tokens in and out; what else it holds is not read."""

    model_config = ConfigDict(frozen=True, strict=True, allow_inf_nan=False)

    at_ms: float = Field(validation_alias="timestamp", ge=0, le=MOST_MS)
    input_tokens: int = Field(validation_alias="input_length", ge=1, le=MOST_TOKENS)
    output_tokens: int = Field(validation_alias="output_length", ge=1, le=MOST_TOKENS)


def read_trace(path: Path, factor: float) -> list[TracedRequest]:
    """The requests of a trace, ``factor`` times as fast. Raises LoadError with what is at fault."""
    requests: list[TracedRequest] = []
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    requests.append(_traced(f"{path}:{number}", line))
                    if requests[-1].at_ms < requests[max(len(requests) - 2, 0)].at_ms:
                        raise LoadError(f"{path}:{number}: it came before the line above it: sort the trace by time.")
    except (OSError, UnicodeDecodeError) as error:
        raise LoadError(f"the trace {path} cannot be read: {error}.") from error
    if not requests or requests[-1].at_ms <= requests[0].at_ms:
        raise LoadError(f"the trace {path} needs requests at two times or more, and has {len(requests)} in all.")
    begin_ms = requests[0].at_ms
    moved = [request.model_copy(update={"at_ms": (request.at_ms - begin_ms) / factor}) for request in requests]
    if len(moved) * MS_PER_S > MOST_PER_S * moved[-1].at_ms:
        raise LoadError(
            f"the trace {path} has {len(moved)} requests in {moved[-1].at_ms:.4g} ms at factor {factor:g}, more than "
            f"{MOST_PER_S} a second; `timestamp` is in milliseconds."
        )
    return moved


def _traced(where: str, line: str) -> TracedRequest:
    try:
        return TracedRequest.model_validate_json(line)
    except ValidationError as error:
        raise LoadError(
            f"{where}: {first_in_words(error)}; a line of a trace is a JSON object with timestamp, input_length, output_length."
        ) from error


def of_trace(requests: Sequence[TracedRequest]) -> Iterator[int]:
    """Nanoseconds after the start at which they are meant to be sent; endless: after a mean interval from the beginning again."""
    last_ms = requests[-1].at_ms
    round_ms = last_ms + last_ms / (len(requests) - 1)
    for number in itertools.count():
        for request in requests:
            yield round((number * round_ms + request.at_ms) * NS_PER_MS)
