"""When each request is meant to be sent: at a rate, at one that changes, or as a trace says."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from pathlib import Path

from harness.errors import LoadError
from harness.spec.server import ServerSpec
from harness.spec.server_requests import TraceSpec
from harness.traffic.datasets import Dataset

NS_PER_S = 1_000_000_000
NS_PER_MS = 1_000_000


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
        return of_trace(server.trace)
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


def of_trace(trace: TraceSpec) -> Iterator[int]:
    """Nanoseconds after the start at which a trace begins its requests or sessions, read as they are taken; endless.

    After a mean interval it comes from the beginning again. Raises LoadError for what cannot be read.
    """
    dataset = Dataset(Path(trace.file), trace.unit, timed=True)
    again_ms = 0.0
    while True:
        begin_ms, after_ms, number = None, 0.0, 0
        for conversation in dataset.conversations():
            begin_ms = conversation.at_ms if begin_ms is None else begin_ms
            after_ms, number = (conversation.at_ms - begin_ms) / trace.factor, number + 1
            yield round((again_ms + after_ms) * NS_PER_MS)
        if not after_ms:
            raise LoadError(f"the trace {dataset.path} needs requests at two times or more, and has {number} in all.")
        again_ms += after_ms + after_ms / (number - 1)
