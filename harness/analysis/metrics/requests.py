"""What whoever asked saw in one recording: the rows of the request table that belong to it, and their metrics.

A request belongs to the recording in which it ends, as the replicas' counters see it: under overload it was meant to be sent
long before. Latency and the time to the first token count from the intended time, so that a late client is no excuse.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.analysis.statistics import percentile
from harness.analysis.statistics.distributions import Floats
from harness.results.requests import NS_PER_S, RequestTable, Rows, Window, gaps, latency_ns, well
from harness.traffic.records import OK

QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99.9": 0.999}
GAP = np.dtype([("begin_ns", "<i8"), ("end_ns", "<i8"), ("status", "<i8")])

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class ClientRequests:
    """The requests of one recording, of one replica or of all.

    Attributes:
        window: the recording.
        rows: those that ended in it.
        under_way: those that had begun and not ended when it ended.
        gaps: after a token, that ended in the recording or were under way at its end; each with its request's status where
            the request ended without another token, else OK.
        intended: how many requests were meant to be sent in it.
    """

    window: Window
    rows: Rows
    under_way: Rows
    gaps: Array
    intended: int

    @property
    def every(self) -> Rows:
        """The requests that an objective is held against."""
        return np.concatenate([self.rows, self.under_way])

    @cached_property
    def well(self) -> Rows:
        """The requests that ended in the recording and were answered well."""
        return well(self.rows)

    @property
    def failed(self) -> dict[str, int]:
        """How many were not answered well, by status."""
        return count_statuses(self.rows[self.rows["status"] != OK])

    def seconds(self, what: str) -> Floats:
        """The values of ``latency``, ``ttft``, ``tpot``, ``itl`` or ``send_error``, seconds; empty where there are none."""
        values: Floats = _VALUES_NS[what](self) / NS_PER_S
        return values

    def tokens_per_s(self, column: str) -> float:
        """Of ``input_tokens`` or ``output_tokens``, of the requests that were answered well."""
        return int(self.well[column].clip(0).sum()) / self.window.duration_s

    def milliseconds(self, what: str) -> dict[str, float]:
        """Mean and percentiles of ``what``, as far as the sample supports them: a p99 takes 100 requests."""
        values = 1e3 * self.seconds(what)
        if not len(values):
            return {}
        known = {"mean": float(values.mean())}
        for name, quantile in QUANTILES.items():
            with suppress(ValueError):
                known[name] = percentile(values, quantile)
        return {name: round(value, 6) for name, value in known.items()}


def read_requests(table: RequestTable, folder: Path, window: Window, replica: int | None = None) -> ClientRequests:
    """The requests of a recording, of one replica or of all.

    Args:
        table: of the run.
        folder: of the run, which has the logs of gaps.
        window: the recording.
        replica: whose; None: of all.

    Raises:
        ResultsPathError: a file is not ours.
        StorageError: it cannot be read.
    """
    rows = table.rows if replica is None else table.of(replica)
    replicas = table.replicas if replica is None else (replica,)
    streams = (rows["first_token_ns"] >= 0).any()
    between = [_gaps(gaps(folder, one), table.of(one), window) for one in replicas] if streams else []
    return ClientRequests(
        window,
        rows[window.holds(rows["end_ns"])],
        rows[_under_way(rows["intended_ns"], rows["end_ns"], window)],
        np.concatenate([np.empty(0, GAP), *between]),
        int(window.holds(rows["intended_ns"]).sum()),
    )


def tpot_ns(rows: Rows) -> Array:
    """Mean time of each output token after the first, of streams with more than one; NaN of others is left out."""
    several = rows[rows["output_tokens"] > 1]
    times: Array = (several["end_ns"] - several["first_token_ns"]) / (several["output_tokens"] - 1)
    return times


def count_statuses(rows: Rows) -> dict[str, int]:
    """How many rows have each status, by its number."""
    return {str(status): count for status, count in sorted(Counter(rows["status"].tolist()).items())}


def _with_tokens(rows: Rows) -> Rows:
    streamed: Rows = rows[rows["first_token_ns"] >= 0]
    return streamed


def _closed_gaps_ns(requests: ClientRequests) -> Array:
    gaps = requests.gaps
    closed = gaps[(gaps["status"] == OK) & requests.window.holds(gaps["end_ns"])]
    lengths: Array = closed["end_ns"] - closed["begin_ns"]
    return lengths


_VALUES_NS: Mapping[str, Callable[[ClientRequests], Array]] = {
    "latency": lambda requests: latency_ns(requests.well),
    "ttft": lambda requests: _with_tokens(requests.well)["first_token_ns"] - _with_tokens(requests.well)["intended_ns"],
    "tpot": lambda requests: tpot_ns(_with_tokens(requests.well)),
    "itl": _closed_gaps_ns,
    "send_error": lambda requests: (requests.rows["sent_ns"] - requests.rows["intended_ns"])[
        requests.rows["sent_ns"] >= 0
    ],
}


def _gaps(log: Rows, rows: Rows, window: Window) -> Array:
    between = np.empty(len(log), GAP)
    between["begin_ns"] = log["start_ns"]
    between["end_ns"] = log["start_ns"] + log["gap_ns"]
    between["status"] = OK
    failed = rows[rows["status"] != OK]
    for status in np.unique(failed["status"]):
        last = np.isin(between["end_ns"], failed["end_ns"][failed["status"] == status])
        between["status"][last] = status
    begin_ns, end_ns = between["begin_ns"], between["end_ns"]
    return between[window.holds(end_ns) | _under_way(begin_ns, end_ns, window)]


def _under_way(begin_ns: Array, end_ns: Array, window: Window) -> npt.NDArray[np.bool_]:
    """What had begun and not ended when the recording ended."""
    over_ns = round(window.end_s * NS_PER_S)
    open_at_end: npt.NDArray[np.bool_] = (begin_ns < over_ns) & (end_ns >= over_ns)
    return open_at_end
