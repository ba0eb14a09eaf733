"""What the runner tells whoever watches (the terminal, a log, a test), and the writer that keeps the last figures for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from harness.metrics.rows import Row, neighbour_of
from harness.results.manifest import Status
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


@dataclass(frozen=True, slots=True)
class CampaignBegins:
    """The campaign starts or goes on.

    Attributes:
        campaign: its folder's name.
        experiments: all of them.
        done: those finished by an earlier run.
        remaining_s: of the others, their starts included, seconds.
    """

    campaign: str
    experiments: int
    done: int
    remaining_s: float


@dataclass(frozen=True, slots=True)
class StepBegins:
    """One step of one experiment starts.

    Attributes:
        planned_s: its length, where that is known.
        remaining_s: of the campaign, this step and the starts of replicas included.
    """

    experiment_id: str
    number: int
    attempt: int
    step: str
    planned_s: float | None
    remaining_s: float


@dataclass(frozen=True, slots=True)
class StepEnds:
    """One step of one experiment has ended."""

    experiment_id: str
    step: str
    ok: bool
    seconds: float
    reasons: Sequence[str]


@dataclass(frozen=True, slots=True)
class RowsRecorded:
    """The recording has come so far.

    Attributes:
        window_s: what the figures look back on.
        now: figures of the last row, all replicas and each; empty where rows come at the end, as from Prometheus.
    """

    experiment_id: str
    rows: int
    of_rows: int
    window_s: float = 0.0
    now: tuple[Now, ...] = ()


@dataclass(frozen=True, slots=True)
class ExperimentEnds:
    """One experiment has its verdict; ``remaining_s`` is the time of those still to come."""

    experiment_id: str
    number: int
    status: Status
    reasons: Sequence[str]
    remaining_s: float


@dataclass(frozen=True, slots=True)
class Notice:
    """Something worth a line: a stray process ended, an experiment tried again."""

    message: str


Event = CampaignBegins | StepBegins | StepEnds | RowsRecorded | ExperimentEnds | Notice
Listener = Callable[[Event], None]


class ProgressWriter(ExperimentWriter):
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
