"""The figures of a recording while it goes: what the recorder has just written, and nothing that is asked for besides."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from harness.metrics.rows import Row, neighbour_of
from harness.results.writers import ExperimentWriter

RATE, TAIL = "throughput", "latency_p99"


@dataclass(frozen=True, slots=True)
class Now:
    """One series over the window of the last row.

    Attributes:
        series: ``all`` or ``replica-0``...
        requests_per_s: answered; None where the row has no value.
        p99_s: of the latency, the histogram's estimate; None likewise.
    """

    series: str
    requests_per_s: float | None
    p99_s: float | None


class WatchedWriter(ExperimentWriter):
    """Writes the rows and keeps the last figures of the replicas; there are none where all rows come at the end."""

    now: tuple[Now, ...] = ()

    def write(self, rows: Iterable[Row]) -> None:
        """As of its parent."""
        rows = list(rows)
        self.now = _now(rows)
        super().write(rows)


def _now(rows: Iterable[Row]) -> tuple[Now, ...]:
    values = {(row.metric, row.series): row.value for row in rows if row.metric in {RATE, TAIL}}
    own = dict.fromkeys(series for metric, series in values if metric == RATE and not neighbour_of(series))
    return tuple(Now(series, values[RATE, series], values.get((TAIL, series))) for series in own)
