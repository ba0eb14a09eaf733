"""What a backend promises to the conductor of an experiment."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from harness.metrics.sources import ReplicaTarget
from harness.spec import ExperimentSpec


class Severity(StrEnum):
    """What a finding means for the run."""

    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finding:
    """Something noticed before an hour is spent.

    Attributes:
        severity: an error refuses the run, a warning goes into the manifest.
        check: short name of what was looked at, e.g. ``memory``.
        message: what was found, in one sentence.
        advice: what to do next; empty when nothing is to be done.
    """

    severity: Severity
    check: str
    message: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class ReplicaDeath:
    """A replica that ended by itself.

    Attributes:
        replica: its index.
        noticed_at_s: seconds since the epoch.
        exit_code: as a shell would say it: 128 + n for signal n.
        last_lines: the end of its log, newest last.
    """

    replica: int
    noticed_at_s: float
    exit_code: int
    last_lines: Sequence[str] = field(default_factory=tuple)

    def __str__(self) -> str:
        how = (
            f"was killed by signal {self.exit_code - 128}" if self.exit_code > 128 else f"exited with {self.exit_code}"
        )
        said = " | ".join(self.last_lines) or "it printed nothing"
        return f"replica {self.replica} {how}; last lines: {said}"


class Deployment(Protocol):
    """The replicas of one experiment, all serving."""

    @property
    def targets(self) -> Sequence[ReplicaTarget]:
        """Where each replica's metrics are read, in order of the index."""
        ...

    @property
    def deaths(self) -> Sequence[ReplicaDeath]:
        """Replicas that have ended by themselves so far; ``on_death`` of deploy() was called for each."""
        ...

    def statuses(self) -> Sequence[Mapping[str, Any]]:
        """What each replica says of itself (device, precision, parameters, versions)."""
        ...

    def stop(self, *, timeout_s: float) -> Sequence[str]:
        """Drain and end every replica; returns a sentence for each that did not end cleanly. Idempotent."""
        ...


class Backend(Protocol):
    """Starts deployments."""

    name: str

    def check(self, experiments: Sequence[ExperimentSpec]) -> Sequence[Finding]:
        """What would keep these experiments from running, looked at without starting anything."""
        ...

    def sweep(self) -> Sequence[str]:
        """End what an earlier, killed harness left of this campaign; returns a sentence for each."""
        ...

    def deploy(
        self,
        experiment: ExperimentSpec,
        folder: Path,
        *,
        abort: threading.Event,
        on_death: Callable[[ReplicaDeath], None],
    ) -> Deployment:
        """Start the replicas and return when each has served.

        Args:
            experiment: what to start.
            folder: the attempt's folder, for the replicas' logs and status.
            abort: when it is set, deploying stops.
            on_death: called, from a thread of the backend's, within a second of a replica's end by itself
                after this call has returned.

        Raises:
            BackendError: a replica did not start in time, or deploying was stopped; nothing is left running.
            ReplicaDiedError: a replica ended by itself; the message holds its last log lines.
        """
        ...
