"""Runs the experiments of a campaign one after another; whatever kills it, ``run`` again finishes."""

from __future__ import annotations

import itertools
import math
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from harness.backends.base import Backend
from harness.backends.devices import measured_on
from harness.campaign import events
from harness.campaign.experiment_run import Attempt
from harness.campaign.folder import CampaignFolder
from harness.campaign.journal import Journal
from harness.campaign.plan import estimate, expand
from harness.campaign.planners import planner_of
from harness.campaign.shared_start import SharedStart
from harness.clock import Clock, SystemClock
from harness.errors import CampaignInterruptedError, DeviceInUseError, ImageError, ReasonCode
from harness.host import WAIT_S, DeviceLocks, handled_signals
from harness.metrics.nvml import NvmlGpus
from harness.results.manifest import Manifest, Status, Verdict, read_manifest
from harness.results.verification import verify_experiment
from harness.spec import CampaignSpec, ExperimentSpec, OnReplicaDeath
from harness.spec.condition import crashing


@dataclass(frozen=True, slots=True)
class CampaignOutcome:
    """How a campaign ended: every experiment's verdict by id, in the order of the plan, and whose failure was looked for."""

    statuses: dict[str, Status]
    explained: frozenset[str] = frozenset()

    @property
    def invalid(self) -> list[str]:
        """Ids of the experiments that say nothing, where they should have."""
        return [
            name for name, status in self.statuses.items() if status is Status.INVALID and name not in self.explained
        ]


def is_answer(manifest: Manifest, *, others_fit: bool, spec: CampaignSpec | None = None) -> bool:
    """Whether an INVALID experiment says what was asked: who dies with a neighbour, or that one setting or mode of several does not fit."""
    wanted = spec.until_known if spec else None
    one_of_several = manifest.experiment.workload.variant_of is not None or (wanted is not None and wanted.best_mode)
    codes = manifest.verdict.codes
    return ReasonCode.VICTIM_DIED in codes or (others_fit and one_of_several and ReasonCode.OUT_OF_MEMORY in codes)


class CampaignRunner:
    """One run over one campaign folder, which is locked meanwhile; and what its attempts share.

    ``gpus``: whose temperature ends a cool-down; ``wait_s``: for another harness on the same GPU; ``rehearsed``: by an attempt
    of this run; ``interrupted`` ends every wait.
    """

    journal: Journal

    def __init__(
        self,
        folder: CampaignFolder,
        backend: Backend,
        *,
        clock: Clock | None = None,
        listener: events.Listener = lambda _event: None,
        gpus: Callable[[], NvmlGpus] = NvmlGpus,
        wait_s: float = WAIT_S,
    ) -> None:
        self.folder, self.backend, self.clock = folder, backend, clock or SystemClock()
        self.listener, self.gpus, self._wait_s = listener, gpus, wait_s
        self.rehearsed, self.interrupted = False, threading.Event()
        self._attempt: Attempt | None = None
        self._start: SharedStart | None = None
        self._pending: list[ExperimentSpec] = []
        self._lacking: dict[tuple[str, str], ImageError] = {}

    def interrupt(self) -> None:
        """End as soon as the replicas have drained. Safe to call from a signal handler."""
        self.interrupted.set()
        if self._attempt is not None:
            self._attempt.abort.set()

    def run(self, *, again: Sequence[Status] = ()) -> CampaignOutcome:
        """Run every experiment that is not done yet; finished ones with a verdict of ``again`` are set aside and run again.

        Raises ConflictError (another harness holds it), DeviceInUseError (another one measures there), StorageError, ImageError (what needs the image is still to be run), and
        CampaignInterruptedError: ``interrupt``, a signal, or something needed was away for too long.
        """
        with self.folder.lock():
            self.journal = Journal(self.folder.state)
            try:
                with handled_signals((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), self._on_signal), self._alone():
                    return self._run(again)
            finally:
                self.journal.close()
                for sentence in self.backend.close():
                    self.say(sentence)

    @property
    def here(self) -> bool:
        """Whether replicas run on this machine, in the control groups of this process."""
        return self.backend.name == "local"

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the GPUs of the whole campaign, from its first replica to its last, or this machine where it needs none."""
        locks = DeviceLocks(measured_on(expand(self.folder.spec)) if self.here else [])
        try:
            locks.take(self.clock, self.interrupted, self.say, self._wait_s)
            self._refuse_interruption()
            for sentence in locks.beside():
                self.say(sentence)
            yield
        except DeviceInUseError as error:
            advice = f"{error.advice} Then go on with: harness resume {self.folder.path}"
            raise DeviceInUseError(error.message, advice=advice) from error
        finally:
            try:
                interrupted = self.interrupted.is_set()
                self._end_start("the harness was interrupted" if interrupted else "an error ended the campaign")
            finally:
                locks.release()

    def _run(self, again: Sequence[Status]) -> CampaignOutcome:
        self.journal.append("campaign-begins")
        for sentence in self.backend.sweep():
            self.say(sentence)
        statuses: dict[str, Status] = {}
        planner = planner_of(self.folder, self.journal, self.say)
        position = 0
        while experiments := planner.following():
            done = {experiment.experiment_id: self._finished(experiment, again) for experiment in experiments}
            pending = self._pending = [
                experiment for experiment in experiments if done[experiment.experiment_id] is None
            ]
            if not position:
                self._begin(experiments, pending)
            for experiment in experiments:
                position += 1
                status = done[experiment.experiment_id]
                if status is None and not planner.out_of_time():
                    pending.remove(experiment)
                    status = self._status(experiment, position, estimate(pending).total_s)
                if status is not None:
                    statuses[experiment.experiment_id] = status
            self._end_start("the time for the campaign was spent")
            self._refuse_lack([experiment for experiment in experiments if experiment.experiment_id not in statuses])
        self.journal.append("campaign-ends")
        return CampaignOutcome(statuses, planner.explained() | self._answers(statuses))

    def say(self, sentence: str) -> None:
        """Tell whoever watches."""
        self.listener(events.Notice(sentence))

    def _answers(self, statuses: Mapping[str, Status]) -> frozenset[str]:
        """Experiments that are INVALID for what was looked for: a neighbour's crash, or the memory that a setting lacks."""
        invalid = [name for name, status in statuses.items() if status is Status.INVALID]
        folders = [folder for name in invalid if (folder := self.folder.final_folder(name)).exists()]
        others_fit = len(invalid) < len(statuses)
        return frozenset(
            folder.name
            for folder in folders
            if is_answer(read_manifest(folder), others_fit=others_fit, spec=self.folder.spec)
        )

    def _begin(self, experiments: Sequence[ExperimentSpec], pending: Sequence[ExperimentSpec]) -> None:
        """Say what there is to do, or the most that it may come to."""
        done = len(experiments) - len(pending)
        if self.folder.spec.open_ended:
            experiments = expand(self.folder.spec)
            pending = experiments[done:]
        wanted = self.folder.spec.until_known
        to_go_s = min(estimate(pending).total_s, wanted.budget_s if wanted else math.inf)
        self.listener(events.CampaignBegins(self.folder.path.name, len(experiments), done, to_go_s))

    def _finished(self, experiment: ExperimentSpec, again: Sequence[Status]) -> Status | None:
        """The verdict of an experiment that is done; None when it has to run."""
        folder = self.folder.final_folder(experiment.experiment_id)
        if not folder.exists():
            return None
        verified = verify_experiment(folder)
        status = read_manifest(folder).verdict.status if verified.ok else None
        if status is not None and status not in again:
            return status
        why = f"its verdict is {status.value}" if status else str(verified.problems[0])
        self._set_aside(experiment, why)
        return None

    def _set_aside(self, experiment: ExperimentSpec, why: str) -> None:
        place = self.folder.set_aside(experiment.experiment_id)
        self.journal.append("set-aside", experiment=experiment.experiment_id, why=why, place=str(place))
        self.say(f"{experiment.experiment_id} is kept in {place} and does not count: {why}")

    def _status(self, experiment: ExperimentSpec, position: int, remaining_s: float) -> Status | None:
        """Run it, and tell how it ended; None where an image that it needs cannot be had: what needs others is run."""
        name = experiment.experiment_id
        if _images(experiment) in self._lacking:
            return None
        try:
            status, reasons = self._experiment(experiment, position, remaining_s)
        except ImageError as error:
            self._lacking[_images(experiment)] = error
            self.say(f"{name} cannot be run: {error.message}")
            return None
        self.listener(events.ExperimentEnds(name, position, status, reasons, remaining_s))
        return status

    def _refuse_lack(self, unfinished: Sequence[ExperimentSpec]) -> None:
        """Raise ImageError where some of them lack an image; it names what is still to be run."""
        left_out = [experiment.experiment_id for experiment in unfinished if _images(experiment) in self._lacking]
        if not left_out:
            return
        errors = list(self._lacking.values())
        later = f" and {len(left_out) - 1} more" if len(left_out) > 1 else ""
        causes = " ".join(dict.fromkeys(error.message for error in errors))
        advice = " ".join(dict.fromkeys(error.advice for error in errors))
        raise ImageError(
            f"the campaign {self.folder.path} has still to run {left_out[0]}{later}: {causes}",
            advice=f"{advice} Then go on with: harness resume {self.folder.path}",
        ) from errors[0]

    def _experiment(
        self, experiment: ExperimentSpec, position: int, remaining_s: float
    ) -> tuple[Status, Sequence[str]]:
        """Attempt until one is fit to publish or the retries are used up; the last is published as it is."""
        for tries_left in range(experiment.limits.retries, -1, -1):
            number = self.folder.next_attempt(experiment.experiment_id)
            start = self._start_of(experiment)
            attempt = self._attempt = Attempt(experiment, number, position, remaining_s, self, start)
            self._refuse_interruption()
            attempt.measure()
            self._refuse_interruption()
            if attempt.storage_error is not None:
                raise attempt.storage_error
            verdict = attempt.judge()
            if verdict.status is Status.INVALID:
                self._end_start(f"{experiment.experiment_id} is INVALID")
            if tries_left and _wants_retry(attempt, verdict):
                self.say(f"{experiment.experiment_id} is tried again: {' '.join(verdict.reasons)}")
            elif attempt.publish(verdict):
                attempt.cool_down()
                self._refuse_interruption()
                return verdict.status, verdict.reasons
            elif attempt.storage_error is not None:
                raise attempt.storage_error
            elif self.folder.final_folder(experiment.experiment_id).exists():  # or no later attempt could be published
                self._set_aside(experiment, attempt.failures[-1].message)
            attempt.cool_down()
        return Status.INVALID, [failure.message for failure in attempt.failures]

    def _start_of(self, experiment: ExperimentSpec) -> SharedStart | None:
        """The start of the replicas that serves it, with the loads that come next, in turn; None: it has one of its own."""
        if not experiment.one_start:
            return None
        if self._start is None or not self._start.serves(experiment):
            self._end_start(f"{experiment.experiment_id} came next")
            with_it = itertools.takewhile(lambda other: other.start == experiment.start, self._pending)
            self._start = SharedStart(self, [experiment, *with_it])
        return self._start

    def _end_start(self, why: str) -> None:
        start, self._start = self._start, None
        if start is not None:
            start.end(why)

    def _refuse_interruption(self) -> None:
        if self.interrupted.is_set():
            raise CampaignInterruptedError(
                f"the campaign {self.folder.path} was interrupted; what was finished is kept.",
                advice=f"Go on with: harness resume {self.folder.path}",
            )

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        """End in good order; a second signal ends at once."""
        self.interrupt()
        signal.signal(number, signal.SIG_DFL)


def _images(experiment: ExperimentSpec) -> tuple[str, str]:
    """What decides which images an experiment needs: names of its workload and of its condition."""
    return experiment.workload.name, experiment.condition_name


def _wants_retry(attempt: Attempt, verdict: Verdict) -> bool:
    """It says nothing, or a replica died where the campaign says that this is not enough."""
    if ReasonCode.VICTIM_DIED in verdict.codes:
        return False  # that is the answer
    experiment = attempt.experiment
    died = any(death.neighbour not in crashing(experiment.condition) for death in attempt.deaths)
    return verdict.status is Status.INVALID or (died and experiment.limits.on_replica_death is OnReplicaDeath.RETRY)
