"""What a backend promises to the runner of an experiment."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from harness.errors import BackendError, Issue, ReasonCode
from harness.metrics.quality import Finding
from harness.metrics.rows import Recording, RecordingRequest
from harness.metrics.telemetry import Telemetry
from harness.results.manifest import Provenance
from harness.sharing.mode import Notify, unheard
from harness.spec import CampaignSpec, ExperimentSpec

if TYPE_CHECKING:
    from harness.metrics.prometheus.telemetry import PrometheusTelemetry

IMAGE = "image"
"""The check of an image; where it is an error, no later experiment could run either."""
_ONE_LOAD = "these replicas serve one load"
KILLED_FOR_MEMORY = "out of memory, killed by the kernel"
OUT_OF_MEMORY = 4
"""A replica's exit code when memory ran out (``harness.replica.errors``)."""


@dataclass(frozen=True, slots=True)
class ReplicaDeath:
    """A replica that ended by itself.

    Attributes:
        exit_code: as a shell would say it: 128 + n for signal n; None: it has none (its machine is gone).
        reason: why, in the words of whoever ended it, e.g. ``OOMKilled``; empty when only the exit code is known.
        of_server: it is the container of the user's own server that ended; what it printed is the server's.
    """

    replica: int
    noticed_at_s: float
    exit_code: int | None
    last_lines: Sequence[str] = field(default_factory=tuple)
    reason: str = ""
    neighbour: str = ""
    of_server: bool = False

    @property
    def code(self) -> ReasonCode:
        """The reason it is for the verdict."""
        if self.neighbour:
            return ReasonCode.NEIGHBOUR_DIED
        out_of_memory = self.exit_code == OUT_OF_MEMORY or self.reason.startswith(("OOMKilled", KILLED_FOR_MEMORY))
        return ReasonCode.OUT_OF_MEMORY if out_of_memory else ReasonCode.REPLICA_DIED

    @property
    def brief(self) -> str:
        """Who ended, and how."""
        whose = f" of the neighbour {self.neighbour}" if self.neighbour else ""
        server = "the server of " if self.of_server else ""
        return f"{server}replica {self.replica}{whose} {self._how()}"

    def __str__(self) -> str:
        """The same, with what it said last."""
        return f"{self.brief}; last lines: {' | '.join(self.last_lines) or 'it printed nothing'}"

    def _how(self) -> str:
        if self.exit_code is None:
            return f"is gone ({self.reason or 'no reason given'})"
        if self.reason.startswith(KILLED_FOR_MEMORY):
            return f"ended: {self.reason}"
        code = self.exit_code
        how = f"was killed by signal {code - 128}" if code > 128 else f"exited with {code}"
        return f"{how} ({self.reason})" if self.reason else how


class Deployment(Protocol):
    """The replicas of one experiment and its neighbours, all serving."""

    @property
    def deaths(self) -> Sequence[ReplicaDeath]:
        """Replicas that have ended by themselves so far; ``on_death`` of deploy() was called for each."""
        ...

    def statuses(self) -> Sequence[Mapping[str, Any]]:
        """What each measured replica says of itself (device, precision, parameters, versions)."""
        ...

    def neighbour_statuses(self) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """The same of the replicas of each neighbour, by its workload's name."""
        ...

    def begin(self, experiment: ExperimentSpec, folder: Path, *, abort: threading.Event) -> None:  # noqa: ARG002
        """Of replicas that wait (``Backend.start``): have them serve a load, and return when each does. Raises as ``Backend.deploy``."""
        raise BackendError(_ONE_LOAD)

    def finish(self, *, timeout_s: float) -> str:  # noqa: ARG002
        """Have them end their load, answer what is under way and wait for another; why there can be none, empty: there can."""
        return _ONE_LOAD

    def recording(self, request: RecordingRequest) -> Recording:
        """The way to record these replicas where they run."""
        ...

    def telemetry(self, path: Path) -> Telemetry | PrometheusTelemetry | None:
        """The series of the GPUs beside the recording, written to ``path``; None where there is nothing to read."""
        ...

    def hottest_celsius(self) -> float | None:
        """Temperature of the hottest GPU that the replicas ran on, also once they have ended; None: it is this machine's to read."""
        return None

    def provenance(self) -> Provenance:
        """The machines that the replicas run on, and the software that measures them."""
        ...

    @property
    def switch(self) -> Mapping[str, Any]:
        """When what was switched for these replicas came how far (``harness.sharing.mode.Switch``); empty where nothing was."""
        return {}

    def others_on_gpus(self, telemetry: Path) -> Sequence[Finding]:  # noqa: ARG002 - seen before a start on this machine
        """Who else was on the GPUs of the replicas, once those have ended; ``telemetry``: the series that was written, or not."""
        return ()

    def stop(self, *, timeout_s: float) -> Sequence[str]:
        """Fetch what the replicas wrote, drain and end every one; a sentence for each unclean end. Idempotent."""
        ...


class RunningLoad(Protocol):
    """Requests that are being sent."""

    def stop(self) -> list[str]:
        """Send no more; a sentence for whatever did not end well. Raises StorageError."""
        ...


Send = Callable[[ExperimentSpec, Path, Sequence[Mapping[str, Any]]], RunningLoad]
"""Has requests sent to the replicas of an experiment: with the attempt's folder, and what each replica says of itself. Raises
BackendError, StorageError."""


class Backend(Protocol):
    """Starts deployments."""

    name: str

    def check(self, experiments: Sequence[ExperimentSpec]) -> Sequence[Issue]:
        """What would keep these experiments from running, looked at without starting anything."""
        ...

    def sweep(self) -> Sequence[str]:
        """End what an earlier, killed harness left of this campaign; returns a sentence for each."""
        ...

    def close(self) -> Sequence[str]:
        """The campaign is over, however it went: put back what was changed for it; returns a sentence for each."""
        return ()

    def rehearse(
        self,
        experiment: ExperimentSpec,  # noqa: ARG002 - what a replica of this machine shows is seen when it is deployed
        folder: Path,  # noqa: ARG002
        *,
        abort: threading.Event,  # noqa: ARG002
        send: Send | None = None,  # noqa: ARG002
        notice: Notify = unheard,  # noqa: ARG002
    ) -> Sequence[Issue]:
        """Before the first experiment of a run: whatever can only be known from a running replica.

        ``folder``: for logs, need not exist; ``send``: has requests sent to the replica, None: it makes its own. Raises
        BackendError where the one replica could not be started; nothing is left running.
        """
        return ()

    def load_pods(
        self,
        experiment: ExperimentSpec,  # noqa: ARG002 - this machine reaches its own replicas
        folder: Path,  # noqa: ARG002
        plan: str,  # noqa: ARG002
        *,
        abort: threading.Event,  # noqa: ARG002
    ) -> RunningLoad | None:
        """Pods that send requests by this plan, for all of them together; None: this machine can send itself. Raises BackendError."""
        return None

    def deploy(
        self,
        experiment: ExperimentSpec,
        folder: Path,
        *,
        abort: threading.Event,
        on_death: Callable[[ReplicaDeath], None],
        notice: Notify = unheard,
    ) -> Deployment:
        """Start the replicas and return when each has served.

        Args:
            folder: the attempt's, for the replicas' logs and status.
            on_death: called, from a thread of the backend's, within a second of a replica's end by itself, from now on.
            notice: told at once what replicas wait for that may come by itself, a sentence each.

        Raises:
            BackendError: a replica did not start in time, or deploying was stopped; nothing is left running.
            ReplicaDiedError: a replica ended by itself; the message holds its last log lines.
        """
        ...

    def start(
        self,
        experiment: ExperimentSpec,  # noqa: ARG002 - what has several loads is validated before
        folder: Path,  # noqa: ARG002
        *,
        abort: threading.Event,  # noqa: ARG002
        on_death: Callable[[ReplicaDeath], None],  # noqa: ARG002
        notice: Notify = unheard,  # noqa: ARG002
    ) -> Deployment:
        """Start the replicas and return when each waits for its first load, of which the experiment's is one; else as ``deploy``."""
        raise BackendError(_ONE_LOAD)


def start_advice(exit_code: int | None, machine: str) -> str:
    """What to do about a replica that ended so while it started."""
    return {
        3: "Change the workload's device, factory or settings in the campaign file as the message says.",
        OUT_OF_MEMORY: f"Use fewer replicas, a smaller batch, or a {machine} with more memory.",
    }.get(exit_code or 0, "Run the workload by itself to see why: python -m harness.replica")


def make_backend(spec: CampaignSpec, campaign_id: str) -> Backend:
    """Where the replicas live; nothing is connected to or started yet. The id marks whatever is started, for a later harness."""
    if spec.backend == "kubernetes" and spec.kubernetes is not None:
        from harness.backends.kubernetes.backend import KubernetesBackend

        return KubernetesBackend(spec.kubernetes, campaign_id, spec.workloads)
    from harness.backends.local import LocalBackend

    return LocalBackend(campaign_id)
