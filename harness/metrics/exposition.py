"""One replica's ``/metrics``: the text format, read ten times a second without weight.

The layout of the answer (which line is which bucket) is learnt once; afterwards a scrape costs one
dictionary look-up and one ``float()`` a line: ten times cheaper than a parser that builds samples.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.errors import MetricsError

_REQUESTS = "inference_requests_total"
_SUM = "inference_latency_seconds_sum"
_COUNT = "inference_latency_seconds_count"
_BUCKET = "inference_latency_seconds_bucket"
_BOUND = re.compile(r'[{,]le="([^"]+)"')
_SERIES = re.compile(r"^(?P<name>[A-Za-z_:][\w:]*)(?P<labels>\{.*\})?$")

REQUESTS_AT, SUM_AT, COUNT_AT, BUCKETS_AT = 0, 1, 2, 3
"""Places in ``ReplicaSample.counters``."""


@dataclass(frozen=True, slots=True)
class ReplicaSample:
    """One scrape of one replica.

    Attributes:
        bounds: upper bounds of the latency buckets in seconds, ascending, the last one +Inf.
        counters: requests, sum of latencies (s), count, then one cumulative count per bound; float64.
    """

    bounds: NDArray[np.float64]
    counters: NDArray[np.float64]


class ReplicaParser:
    """Parses the answers of one replica, remembering their layout."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}
        self._wanted = 0
        self._expected = 0
        self._bounds: NDArray[np.float64] = np.empty(0)

    def parse(self, text: str) -> ReplicaSample:
        """Read one answer.

        Raises:
            MetricsError: a metric is missing, or a value is no number; the message fits into a row's reason.
        """
        values = self._read(text)
        if values is None:
            self._learn(text)
            values = self._read(text)
        if values is None:
            raise MetricsError("the answer lists a latency bucket twice")
        if not np.isfinite(values).all():
            raise MetricsError("a counter in the answer is not a finite number")
        return ReplicaSample(bounds=self._bounds, counters=values)

    def _read(self, text: str) -> NDArray[np.float64] | None:
        """Values in the known layout; None when the answer has another one."""
        places = self._places
        values = np.zeros(self._wanted)
        found = 0
        for line in text.splitlines():
            if not line.startswith("inference_"):
                continue
            key, value = _split(line)
            place = places.get(key)
            if place is None:
                return None
            if place >= 0:
                values[place] += _number(value)
                found += 1
        return values if found and found == self._expected else None

    def _learn(self, text: str) -> None:
        names: dict[str, str] = {}
        bound_of: dict[str, float] = {}
        for line in text.splitlines():
            if line.startswith("inference_"):
                key, _ = _split(line)
                match = _SERIES.match(key)
                names[key] = match["name"] if match else ""
                if names[key] == _BUCKET:
                    bound_of[key] = _bound(key)
        for name in (_REQUESTS, _SUM, _COUNT, _BUCKET):
            if name not in names.values():
                raise MetricsError(f"the answer has no {name}")
        bounds = sorted(set(bound_of.values()))
        if bounds[-1] != math.inf:
            raise MetricsError(f'the answer has no {_BUCKET}{{le="+Inf"}}')
        fixed = {_REQUESTS: REQUESTS_AT, _SUM: SUM_AT, _COUNT: COUNT_AT}
        self._places = {
            key: BUCKETS_AT + bounds.index(bound_of[key]) if key in bound_of else fixed.get(name, -1)
            for key, name in names.items()
        }
        self._wanted = BUCKETS_AT + len(bounds)
        self._expected = sum(place >= 0 for place in self._places.values())
        self._bounds = np.array(bounds)


def _split(line: str) -> tuple[str, str]:
    """Series and value of one line; a timestamp after the value is dropped."""
    end = line.rfind("}") + 1 or line.find(" ")
    return line[:end], line[end:].split(maxsplit=1)[0] if line[end:].strip() else ""


def _bound(key: str) -> float:
    match = _BOUND.search(key)
    if match is None:
        raise MetricsError("a latency bucket in the answer has no `le` label")
    return _number(match[1])


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise MetricsError("a value in the answer is not a number") from error
