"""What the runner tells whoever watches (the terminal, a log, a test), and the writer that keeps the last figures for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from harness.metrics.rows import MetricRow, neighbour_of
from harness.results.manifest import Status
from harness.results.writers import ExperimentWriter

RATE, TAIL = "throughput", "latency_p99"


@dataclass(frozen=True, slots=True)
class Now:
    """One series (``all``, ``replica-0``...) over the window of the last row: rate of answers, p99 by the histogram; None: no value."""

    series: str
    requests_per_s: float | None
    p99_s: float | None


@dataclass(frozen=True, slots=True)
class CampaignBegins:
    """The campaign starts or goes on; ``done`` were finished by an earlier run, ``remaining_s`` is of the others with their starts."""

    campaign: str
    experiments: int
    done: int
    remaining_s: float


@dataclass(frozen=True, slots=True)
class StepBegins:
    """One step of one experiment starts; ``remaining_s`` is of the campaign, this step and the starts of replicas included."""

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
    """The recording has come so far; ``now`` looks back ``window_s``, and is empty where rows come at the end, as from Prometheus."""

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

    def write(self, rows: Iterable[MetricRow]) -> None:
        """As of its parent."""
        rows = list(rows)
        values = {(row.metric, row.series): row.value for row in rows if row.metric in {RATE, TAIL}}
        own = [series for metric, series in values if metric == RATE and not neighbour_of(series)]
        self.now = tuple(Now(series, values[RATE, series], values.get((TAIL, series))) for series in own)
        super().write(rows)
