"""One replica's ``/metrics``: the text format, read ten times a second without weight.

The layout of the answer (which line is which bucket) is learnt once; afterwards a scrape costs one
dictionary look-up and one ``float()`` a line: ten times cheaper than a parser that builds samples.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from harness.errors import MetricsError
from harness.metrics.catalogue import PUBLISHED_COUNTERS, PUBLISHED_HISTOGRAMS

_REQUESTS = "inference_requests_total"
_LATENCY = "inference_latency_seconds"
_BOUND = re.compile(r'[{,]le="([^"]+)"')
_SERIES = re.compile(r"^(?P<name>[A-Za-z_:][\w:]*)(?P<labels>\{.*\})?$")

REQUESTS_AT, SUM_AT, COUNT_AT, BUCKETS_AT = 0, 1, 2, 3
"""Places in ``ReplicaSample.counters``."""


@dataclass(frozen=True, slots=True)
class PublishedFamily:
    """Where something that only some workloads publish lies in ``ReplicaSample.counters``.

    Attributes:
        at: place of a counter; of a histogram's sum, which its count and its cumulative counts follow.
        bounds: upper bounds of a histogram's buckets, ascending, the last one +Inf; empty for a counter.
    """

    at: int
    bounds: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class ReplicaSample:
    """One scrape of one replica.

    Attributes:
        bounds: upper bounds of the latency buckets in seconds, ascending, the last one +Inf.
        counters: requests, sum of latencies (s), count, one cumulative count per bound, then the families; float64.
        families: what else of the catalogue this workload publishes, by name.
    """

    bounds: NDArray[np.float64]
    counters: NDArray[np.float64]
    families: Mapping[str, PublishedFamily] = field(default_factory=dict)


class ReplicaParser:
    """Parses the answers of one replica, remembering their layout."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}
        self._wanted = 0
        self._expected = 0
        self._bounds: NDArray[np.float64] = np.empty(0)
        self._families: Mapping[str, PublishedFamily] = {}

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
        return ReplicaSample(bounds=self._bounds, counters=values, families=self._families)

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
        series = [_split(line)[0] for line in text.splitlines() if line.startswith("inference_")]
        keys: dict[str, list[str]] = {}
        for key in series:
            match = _SERIES.match(key)
            keys.setdefault(match["name"] if match else "", []).append(key)
        for name in (_REQUESTS, *_parts(_LATENCY)):
            if name not in keys:
                raise MetricsError(f"the answer has no {name}")
        self._places = dict.fromkeys(series, -1) | dict.fromkeys(keys[_REQUESTS], REQUESTS_AT)
        latency = self._place_histogram(keys, _LATENCY, SUM_AT)
        families: dict[str, PublishedFamily] = {}
        end = BUCKETS_AT + len(latency.bounds)
        for name in sorted(PUBLISHED_COUNTERS & keys.keys()):
            self._places |= dict.fromkeys(keys[name], end)
            families[name] = PublishedFamily(end)
            end += 1
        for name in sorted(PUBLISHED_HISTOGRAMS):
            if all(part in keys for part in _parts(name)):
                families[name] = self._place_histogram(keys, name, end)
                end += BUCKETS_AT - SUM_AT + len(families[name].bounds)
        self._wanted = end
        self._expected = sum(place >= 0 for place in self._places.values())
        self._bounds = np.array(latency.bounds)
        self._families = families

    def _place_histogram(self, keys: Mapping[str, list[str]], name: str, at: int) -> PublishedFamily:
        """Give a histogram's sum, count and buckets consecutive places from ``at`` on."""
        total, count, bucket = _parts(name)
        bound_of = {key: _bound(key) for key in keys[bucket]}
        bounds = sorted(set(bound_of.values()))
        if bounds[-1] != math.inf:
            raise MetricsError(f'the answer has no {bucket}{{le="+Inf"}}')
        self._places |= dict.fromkeys(keys[total], at) | dict.fromkeys(keys[count], at + 1)
        self._places |= {key: at + 2 + bounds.index(bound) for key, bound in bound_of.items()}
        return PublishedFamily(at, tuple(bounds))


def _parts(histogram: str) -> tuple[str, str, str]:
    """Names of a histogram's sum, count and buckets."""
    return f"{histogram}_sum", f"{histogram}_count", f"{histogram}_bucket"


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
