"""When each request is meant to be sent, and to whom; the same for the same seed."""

from __future__ import annotations

import random
from collections.abc import Iterator

NS_PER_S = 1_000_000_000


def poisson(rate: float, targets: int, seed: int) -> Iterator[tuple[int, int]]:
    """Independent Poisson arrivals at every target.

    Args:
        rate: requests per second and target.
        targets: how many there are.
        seed: of the arrivals.

    Yields:
        Nanoseconds after the start, and the target's index; endless.
    """
    chance = random.Random(seed)  # noqa: S311 - arrivals to repeat, not a secret
    at_s = 0.0
    while True:
        # One stream of the summed rate whose arrivals fall to targets by chance is as many independent streams.
        at_s += chance.expovariate(rate * targets)
        yield round(at_s * NS_PER_S), chance.randrange(targets)


def constant(rate: float, targets: int, seed: int) -> Iterator[tuple[int, int]]:
    """Evenly spaced arrivals, the targets in turn. Arguments and result as of ``poisson``; the seed has no effect."""
    del seed
    period_ns = NS_PER_S / (rate * targets)
    number = 0
    while True:
        yield round((number + 1) * period_ns), number % targets
        number += 1


ARRIVALS = {"poisson": poisson, "constant": constant}
