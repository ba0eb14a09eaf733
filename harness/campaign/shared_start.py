"""One start of the replicas that serves several loads of a sweep, one after another."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.backends.base import Deployment, ReplicaDeath
from harness.campaign.journal import read_events
from harness.results import layout
from harness.results.files import storage_errors
from harness.spec import ExperimentSpec

if TYPE_CHECKING:
    from harness.campaign.experiment_run import Attempt
    from harness.campaign.runner import CampaignRunner

BEGINS, ENDS = "start-begins", "start-ends"
CUT_SHORT = "the harness ended in the middle of it"
DONE = "all its loads were measured"


class SharedStart:
    """Replicas from their start until they are ended.

    ``experiments``: the loads that it is to serve, in this order. What ends it before is said, and the rest is measured in another
    start, which says so in its turn.
    """

    def __init__(self, shared: CampaignRunner, experiments: Sequence[ExperimentSpec]) -> None:
        self.experiments = [experiment.experiment_id for experiment in experiments]
        self.of = experiments[0].start
        events = [event for event in read_events(shared.folder.state) if event.get("of") == self.of]
        begun = [event["start"] for event in events if event["event"] == BEGINS]
        why = {event["start"]: str(event["why"]) for event in events if event["event"] == ENDS}
        self.name = f"{self.of}-start{len(begun) + 1}"
        self.before = begun[-1] if begun else ""
        self.because = why.get(self.before, CUT_SHORT) if begun else ""
        self.ended = ""
        self._shared = shared
        self._deployment: Deployment | None = None
        self._drain_timeout_s = experiments[0].drain_timeout_s
        self._served: list[str] = []
        self._current: Attempt | None = None
        self._begun = False

    @property
    def folder(self) -> Path:
        """Where what is of no single load is written: the logs of the replicas, their servers and MPS."""
        return self._shared.folder.path / layout.ATTEMPTS / self.name

    @property
    def running(self) -> bool:
        """Whether its replicas run."""
        return self._deployment is not None and not self.ended

    def serves(self, experiment: ExperimentSpec) -> bool:
        """Whether it can serve this one next."""
        return not self.ended and self.experiments[len(self._served) :][:1] == [experiment.experiment_id]

    def begin(self, attempt: Attempt) -> Deployment:
        """Have the load of the attempt served, by replicas that are started with the first one. Raises as ``Backend.deploy``."""
        self._current = attempt
        backend, experiment = self._shared.backend, attempt.experiment
        if self._deployment is None:
            self._begun = True
            self._log(BEGINS, experiments=self.experiments, before=self.before, because=self.because)
            with storage_errors(self.folder):
                self.folder.mkdir(parents=True)
            self._deployment = backend.start(
                experiment, self.folder, abort=attempt.abort, on_death=self._on_death, notice=self._shared.say
            )
        self._served.append(experiment.experiment_id)
        self._deployment.begin(experiment, attempt.folder, abort=attempt.abort)
        return self._deployment

    def record(self, attempt: Attempt) -> dict[str, Any]:
        """For the manifest: which start it was, and the load's place in it."""
        place = self.experiments.index(attempt.experiment.experiment_id)
        return {
            "name": self.name,
            "place": place + 1,
            "order": self.experiments,
            "warm": place > 0,
            "before": self.before,
            "because": self.because,
        }

    def goes_on(self, attempt: Attempt) -> bool:
        """End the attempt's load; whether the replicas can serve the next one. What they cannot is said."""
        assert self._deployment is not None  # noqa: S101 - the attempt was begun
        self.ended = self._why_it_ends(attempt, self._deployment)
        return not self.ended

    def _why_it_ends(self, attempt: Attempt, deployment: Deployment) -> str:
        experiment = attempt.experiment
        if self._shared.interrupted.is_set():
            return "the harness was interrupted"
        if deployment.deaths:
            return f"{deployment.deaths[0].brief} under {experiment.experiment_id}"
        if attempt.failures:
            return f"{experiment.experiment_id} failed"
        if experiment.experiment_id == self.experiments[-1]:
            return DONE
        return deployment.finish(timeout_s=experiment.drain_timeout_s + experiment.answers_timeout_s)

    def stop(self, *, timeout_s: float) -> Sequence[str]:
        """End the replicas, where they still run; a sentence for each unclean end."""
        deployment, self._deployment = self._deployment, None
        return deployment.stop(timeout_s=timeout_s) if deployment else ()

    def leave(self, attempt: Attempt) -> None:
        """The attempt is over: keep what was logged, and end with an attempt that failed."""
        if attempt.failures and not self.ended:
            self.ended = f"{attempt.experiment.experiment_id} failed"
        if self.ended:
            attempt.unclean_ends += self.stop(timeout_s=self._drain_timeout_s)
        self._keep_logs(attempt.folder)
        if self.ended:
            self.end(self.ended)

    def _keep_logs(self, folder: Path) -> None:
        """Copy what it has logged so far beside the results of a load: the rest goes on in the same files."""
        with storage_errors(folder):
            for path in self.folder.rglob("*"):
                place = folder / path.relative_to(self.folder)
                if path.is_file() and path.suffix == ".log" and not place.exists():
                    place.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(path, place)

    def end(self, why: str) -> None:
        """End the replicas, where they still run. Idempotent."""
        why = self.ended = self.ended or why
        for sentence in self.stop(timeout_s=self._drain_timeout_s):
            self._shared.say(sentence)
        if not self._begun:
            return
        self._begun = False
        with storage_errors(self.folder):
            shutil.rmtree(self.folder)
        self._log(ENDS, why=why)
        if left := self.experiments[len(self._served) :]:
            self._shared.say(f"{self.name} ended ({why}); {', '.join(left)} will be measured in another start.")

    def _on_death(self, death: ReplicaDeath) -> None:
        if self._current is not None:
            self._current.on_death(death)

    def _log(self, event: str, **fields: object) -> None:
        self._shared.journal.append(event, start=self.name, of=self.of, **fields)
