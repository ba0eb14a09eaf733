"""A backend that starts nothing: for tests of everything above it, and for simulated campaigns.

It keeps the protocol's promises as the local backend does (a test holds one against the other) and fails on demand.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.backends.base import ReplicaDeath, Send
from harness.clock import SystemClock
from harness.errors import BackendError, HarnessError, Issue
from harness.metrics.catalogue import select
from harness.metrics.quality import Finding
from harness.metrics.recorder import Recorder, ReplicaTarget, Sources
from harness.metrics.rows import RecordingRequest
from harness.results import layout
from harness.results.manifest import Provenance
from harness.results.provenance import collect
from harness.sharing.mode import Notify, unheard
from harness.spec import ExperimentSpec, Timing
from tests.support.fake_metrics import RowList, fake_sources, sample

NOBODY = 2**22 + 1  # above the kernel's largest process id


def busy(replicas: int) -> Sources:
    """Sources of replicas that serve 100 requests of 4 ms between two scrapes."""
    return fake_sources(replicas, lambda _replica, scrape: sample([0.004] * (100 * scrape)))


def recording_request(metrics: Sequence[str], timing: Timing, **changes: Any) -> RecordingRequest:
    """What a runner asks a deployment for, with a list of rows and nobody who listens unless ``changes`` say more."""
    values: dict[str, Any] = {"sink": RowList(), "clock": SystemClock(), **changes}
    return RecordingRequest(metrics=select(list(metrics)), step_s=timing.step_s, window_s=timing.window_s, **values)


@dataclass(slots=True)
class FakeDeployment:
    """Replicas in name only."""

    replicas: int
    on_death: Callable[[ReplicaDeath], None]
    neighbours: Mapping[str, int] = field(default_factory=dict)
    sources: Callable[[int], Sources] = busy
    stop_problems: Sequence[str] = ()
    stopped: bool = False
    celsius: Callable[[], float | None] = lambda: None
    switch: Mapping[str, Any] = field(default_factory=dict)
    strangers: Sequence[Finding] = ()
    begun: list[str] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)
    _deaths: list[ReplicaDeath] = field(default_factory=list)

    @property
    def targets(self) -> Sequence[ReplicaTarget]:
        """Addresses that nobody answers at; the recorder reads the fake sources."""
        seats = [("", index) for index in range(self.replicas)]
        seats += [(name, index) for name, replicas in self.neighbours.items() for index in range(replicas)]
        url = "http://127.0.0.1:9/metrics"
        return [ReplicaTarget(index, NOBODY + place, url, name) for place, (name, index) in enumerate(seats)]

    @property
    def deaths(self) -> Sequence[ReplicaDeath]:
        """The deaths that ``die`` made."""
        return tuple(self._deaths)

    def statuses(self) -> Sequence[Mapping[str, Any]]:
        """What a replica would say of itself."""
        return [_status(target) for target in self.targets if not target.neighbour]

    def neighbour_statuses(self) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """The same of the neighbours' replicas."""
        return {
            name: [_status(target) for target in self.targets if target.neighbour == name] for name in self.neighbours
        }

    def hottest_celsius(self) -> float | None:
        """What ``celsius`` says."""
        return self.celsius()

    def begin(self, experiment: ExperimentSpec, folder: Path, *, abort: threading.Event) -> None:
        """Count it."""
        if abort.is_set():
            raise BackendError("deploying was stopped before every replica had served.")
        assert folder.is_dir(), "the attempt's"
        self.begun.append(experiment.experiment_id)

    def finish(self, *, timeout_s: float) -> str:  # noqa: ARG002 - the protocol's
        """What ``unfinished`` says next."""
        return self.unfinished.pop(0) if self.unfinished else ""

    def recording(self, request: RecordingRequest) -> Recorder:
        """The embedded recorder, on the fake sources."""
        return Recorder(self.targets, request, sources=self.sources(len(self.targets)))

    def others_on_gpus(self, telemetry: Path) -> Sequence[Finding]:  # noqa: ARG002 - the protocol's
        """``strangers``."""
        return self.strangers

    def telemetry(self, path: Path) -> None:
        """None: it would read real time."""

    def provenance(self) -> Provenance:
        """This machine."""
        return collect()

    def stop(self, *, timeout_s: float) -> Sequence[str]:  # noqa: ARG002 - the protocol's
        """Nothing to end."""
        self.stopped = True
        return self.stop_problems

    def die(self, replica: int, *, at_s: float, exit_code: int = 137, neighbour: str = "") -> None:
        """Let one replica die by itself."""
        self._deaths.append(ReplicaDeath(replica, at_s, exit_code, ("killed by a test",), neighbour=neighbour))
        self.on_death(self._deaths[-1])


def _status(target: ReplicaTarget) -> Mapping[str, Any]:
    return {"pid": target.pid, "port": 9, "phase": "serving", "device": "fake", "scenario": {"port": 9}}


@dataclass(slots=True)
class FakeBackend:
    """Deploys in no time.

    Attributes:
        findings: what ``check`` answers.
        rehearsal: what ``rehearse`` answers, or raises.
        rehearsal_errors: raised by the next rehearsals before that, first one first.
        rehearsed: the experiments that were rehearsed.
        rehearsed_with_load: for each, whether requests could be sent to its replica.
        sources: what the recorders of the deployments read, by number of replicas, the neighbours' among them.
        deploy_errors: raised by the next deployments, first one first; None: that one succeeds.
        stop_problems: what ``stop`` of every deployment answers.
        deployments: all that were made, newest last.
        closed: how often a campaign was over.
        celsius: what every deployment says of its hottest GPU.
    """

    name: str = "fake"
    findings: Sequence[Issue] = ()
    rehearsal: Sequence[Issue] | HarnessError = ()
    rehearsal_errors: list[HarnessError] = field(default_factory=list)
    rehearsed: list[str] = field(default_factory=list)
    rehearsed_with_load: list[bool] = field(default_factory=list)
    sources: Callable[[int], Sources] = busy
    deploy_errors: list[HarnessError | None] = field(default_factory=list)
    stop_problems: Sequence[str] = ()
    deployments: list[FakeDeployment] = field(default_factory=list)
    closed: int = 0
    celsius: Callable[[], float | None] = lambda: None

    def check(self, experiments: Sequence[ExperimentSpec]) -> Sequence[Issue]:  # noqa: ARG002 - the protocol's
        """The prepared findings."""
        return self.findings

    def sweep(self) -> Sequence[str]:
        """There is never anything left."""
        return ()

    def close(self) -> Sequence[str]:
        """Count it."""
        self.closed += 1
        return ("what was changed is put back.",)

    def rehearse(
        self,
        experiment: ExperimentSpec,
        folder: Path,
        *,
        abort: threading.Event,  # noqa: ARG002 - the protocol's
        send: Send | None = None,
        notice: Notify = unheard,  # noqa: ARG002
    ) -> Sequence[Issue]:
        """The prepared findings, or the prepared error."""
        self.rehearsed.append(experiment.experiment_id)
        self.rehearsed_with_load.append(send is not None)
        if self.rehearsal_errors:
            (folder / layout.LOGS).mkdir(parents=True)
            raise self.rehearsal_errors.pop(0)
        if isinstance(self.rehearsal, HarnessError):
            raise self.rehearsal
        return self.rehearsal

    def load_pods(self, experiment: ExperimentSpec, folder: Path, plan: str, *, abort: threading.Event) -> None:
        """None: whoever is asked is on this machine."""

    def deploy(
        self,
        experiment: ExperimentSpec,
        folder: Path,
        *,
        abort: threading.Event,
        on_death: Callable[[ReplicaDeath], None],
        notice: Notify = unheard,  # noqa: ARG002
    ) -> FakeDeployment:
        """A deployment, or the prepared error."""
        if abort.is_set():
            raise BackendError("deploying was stopped before every replica had served.")
        neighbours = {each.workload.name: each.replicas for each in experiment.neighbours}
        for name, replicas in {"": experiment.replicas, **neighbours}.items():
            for index in range(replicas):
                log = layout.replica_log(layout.neighbour_folder(folder, name) if name else folder, index)
                log.parent.mkdir(parents=True, exist_ok=True)
                log.write_text("a fake replica\n", encoding="utf-8")
        if self.deploy_errors and (error := self.deploy_errors.pop(0)) is not None:
            raise error
        self.deployments.append(
            FakeDeployment(
                experiment.replicas, on_death, neighbours, self.sources, self.stop_problems, celsius=self.celsius
            )
        )
        return self.deployments[-1]

    start = deploy
