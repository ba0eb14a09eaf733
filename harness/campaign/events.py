"""What the runner tells whoever watches: the terminal, a log, a test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness.campaign.live import Now
from harness.results.manifest import Status


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
