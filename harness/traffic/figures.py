"""What a scenario's requests say: rates, percentiles, and the share within the limit, from raw logs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.results import latencies
from harness.results.files import storage_errors
from harness.traffic.requests_log import FIELDS, RECORD_BYTES

PERCENTS = (50.0, 90.0, 95.0, 99.0, 99.9)
NS_PER_S = 1e9
NS_PER_MS = 1e6
HTTP_OK = 200
_ROUNDING = 1e-6
REQUEST = np.dtype([(name, "<i8") for name in FIELDS])

Nanoseconds = latencies.Nanoseconds


@dataclass(frozen=True, slots=True)
class Window:
    """The recording, seconds since the epoch."""

    begin_s: float
    end_s: float

    @property
    def duration_s(self) -> float:
        """Seconds."""
        return self.end_s - self.begin_s

    def holds(self, times_ns: Nanoseconds) -> npt.NDArray[np.bool_]:
        """Which of the times lie in it."""
        inside: npt.NDArray[np.bool_] = (times_ns >= self.begin_s * NS_PER_S) & (times_ns < self.end_s * NS_PER_S)
        return inside


@dataclass(frozen=True, slots=True)
class Served:
    """Requests of one recording.

    A request belongs to the recording in which it ends, as the replicas' counters see it: under overload it was meant
    to be sent long before.

    Attributes:
        offered: requests that were meant to be sent in it, answered or not; None: LoadGen knows, and does not tell.
        completed: requests that were answered well in it.
        latency_ns: from the intended time on; what failed or was not answered took at least that long.
        service_ns: time the model took for each; empty when it is not known.
        send_error_ns: by how much the generator was late; empty when LoadGen sent.
        statuses: HTTP status to number; empty when LoadGen sent.
    """

    offered: int | None
    completed: int
    latency_ns: Nanoseconds
    service_ns: Nanoseconds
    send_error_ns: Nanoseconds
    statuses: dict[str, int]


def of_replicas(logs: Iterable[Path], service_logs: Iterable[Path], window: Window) -> Served:
    """Read the replicas' own logs: of LoadGen's requests. Raises StorageError."""
    records = [latencies.read(path) for path in logs]
    every = np.concatenate([np.empty(0, latencies.RECORD), *records])
    inside = window.holds(latencies.ended_ns(every))
    return Served(
        offered=None,
        completed=int(inside.sum()),
        latency_ns=every["latency_ns"][inside],
        service_ns=_service_ns(service_logs, window),
        send_error_ns=np.empty(0, np.int64),
        statuses={},
    )


def of_generator(log: Path, service_logs: Iterable[Path], window: Window) -> Served:
    """Read the load generator's log. Raises StorageError."""
    with storage_errors(log, "read"):
        every = np.fromfile(log, dtype=REQUEST, count=log.stat().st_size // RECORD_BYTES)
    well = every["status"] == HTTP_OK
    inside = window.holds(every["intended_ns"] + every["latency_ns"])
    refused = (every["status"] > 0) & ~well  # quickly, and no answer: it has no latency
    return Served(
        offered=int(window.holds(every["intended_ns"]).sum()),
        completed=int((well & inside).sum()),
        latency_ns=every["latency_ns"][inside & ~refused],
        service_ns=_service_ns(service_logs, window),
        send_error_ns=every["send_error_ns"][inside],
        statuses={str(status): count for status, count in sorted(Counter(every["status"][inside].tolist()).items())},
    )


def percentiles_ms(values_ns: Nanoseconds) -> dict[str, float]:
    """Mean and percentiles in milliseconds, as far as the sample supports them: a p99 needs 100 requests."""
    if not len(values_ns):
        return {}
    found = {"mean": float(values_ns.mean()) / NS_PER_MS}
    ascending_ns = np.sort(values_ns)
    for percent in PERCENTS:
        if len(values_ns) * (100 - percent) >= 100 - _ROUNDING:
            rank = math.ceil(len(values_ns) * percent / 100 - _ROUNDING)
            found[f"p{percent:g}"] = float(ascending_ns[rank - 1]) / NS_PER_MS
    return {name: round(value, 6) for name, value in found.items()}


def to_dict(served: Served, window: Window, *, inputs_per_request: int) -> dict[str, Any]:
    """The figures under the names of ``scenario.json``."""
    seconds = window.duration_s
    figures: dict[str, Any] = {
        "duration_s": round(seconds, 6),
        "requests": served.completed,
        "offered_per_s": None if served.offered is None else round(served.offered / seconds, 6),
        "achieved_per_s": round(served.completed / seconds, 6),
        "throughput_samples_per_s": round(served.completed * inputs_per_request / seconds, 6),
        "latency_ms": percentiles_ms(served.latency_ns),
        "service_ms": percentiles_ms(served.service_ns),
    }
    if served.statuses:
        figures["send_error_ms"] = percentiles_ms(served.send_error_ns)
        figures["statuses"] = served.statuses
    return figures


def _service_ns(logs: Iterable[Path], window: Window) -> Nanoseconds:
    records = [latencies.read(path) for path in logs]
    every = np.concatenate([np.empty(0, latencies.RECORD), *records])
    times_ns: Nanoseconds = every["latency_ns"][window.holds(latencies.ended_ns(every))]
    return times_ns
