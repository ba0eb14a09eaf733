"""Ends a recording when the wanted figures are known: reads the replicas' logs while they are written."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from harness.analysis.statistics.sequential_ci import FIRST_SLICES, Looks, Requests, relative_half_width
from harness.results import layout
from harness.results.requests import LogTail
from harness.spec import StopWhenKnown

LOG_LAG_S = 1.0
"""A request is on the disk within a second of its end; what ended later is left for the next look."""
_NS = 1e9


class StopRule:
    """Asked after every row whether it may be the last one; ``folder`` is the attempt's, ``start_s`` row 0, since the epoch."""

    def __init__(self, wanted: StopWhenKnown, folder: Path, *, replicas: int, start_s: float, step_s: float) -> None:
        self._wanted = wanted
        self._start_ns = round(start_s * _NS)
        self._step_s = step_s
        self._tails = [
            LogTail(layout.replica_folder(folder, index) / layout.RAW_LATENCIES) for index in range(replicas)
        ]
        self._requests = Requests(wanted.min_s / FIRST_SLICES, counters=replicas)
        self._looks = Looks(wanted.min_s, [metric.value for metric in wanted.metrics], wanted.relative_half_width)
        self.known = False

    def due(self, rows: int) -> bool:
        """Whether it is time for another look after this many rows."""
        return self._looks.due(self._until_s(rows))

    def __call__(self, rows: int) -> bool:
        """Whether everything is known after this many rows. Raises StorageError when a log cannot be read."""
        until_s = self._until_s(rows)
        if self._looks.due(until_s):
            until_ns = self._start_ns + round(until_s * _NS)
            for tail in self._tails:
                records = tail.ended_before(until_ns)
                ends_s = (records["start_ns"] + records["latency_ns"] - self._start_ns) / _NS
                inside = ends_s >= 0
                self._requests.add(ends_s[inside], records["latency_ns"][inside] / _NS, until_s=until_s)
            self.known = self._looks.known(self._requests, until_s)
        return self.known

    def _until_s(self, rows: int) -> float:
        """Up to where every request of these rows is on the disk, seconds since the first of them."""
        return (rows - 1) * self._step_s - LOG_LAG_S

    def record(self, *, rows: int, planned_rows: int) -> dict[str, Any]:
        """Why the recording was as long as it was, for the manifest."""
        return {
            "known": self.known,
            "why": self._why(rows, planned_rows),
            "planned_rows": planned_rows,
            "planned_s": (planned_rows - 1) * self._step_s,
            "recorded_s": max(rows - 1, 0) * self._step_s,
            "figures": {
                name: {
                    "figure": None if math.isnan(estimate.mean) else estimate.mean,
                    "low": estimate.low,
                    "high": estimate.high,
                    "note": estimate.note,
                }
                for name, estimate in self._looks.estimates.items()
            },
        }

    def _why(self, rows: int, planned_rows: int) -> str:
        recorded, planned = ((count - 1) * self._step_s for count in (rows, planned_rows))
        target = f"{100 * self._wanted.relative_half_width:g} %"
        wide = ", ".join(
            f"{name} ({estimate.note or f'{100 * relative_half_width(estimate):.1f} %'})"
            for name, estimate in self._looks.estimates.items()
            if relative_half_width(estimate) > self._wanted.relative_half_width
        )
        names = ", ".join(metric.value for metric in self._wanted.metrics)
        if self.known:
            return f"Recorded {recorded:g} of at most {planned:g} s: by then {names} were known within {target}."
        if not self._looks.estimates:
            return f"Recorded to the end ({planned:g} s): how well {names} were known could not be judged before."
        return f"Recorded to the end ({planned:g} s): {wide or names} stayed wider than {target}."
