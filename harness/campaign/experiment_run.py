"""One attempt at one experiment: its steps, each ending in a result rather than an exception."""

from __future__ import annotations

import json
import math
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.analysis.client_result import ClientResult, evaluate
from harness.backends.base import Deployment, ReplicaDeath, RunningLoad
from harness.campaign import preflight
from harness.campaign.events import Notice, ProgressWriter, RowsRecorded, StepBegins, StepEnds
from harness.campaign.load_process import begin_load, needs_load
from harness.campaign.plan import estimate, loads
from harness.campaign.planners import StopRule
from harness.campaign.verdict import (
    GroupWatch,
    crashes,
    give_verdict,
    ignored_settings,
    judge_data,
    lack_of_memory,
)
from harness.errors import (
    AwayError,
    BackendError,
    CampaignInterruptedError,
    HarnessError,
    ImageError,
    LoadError,
    ReasonCode,
    StorageError,
    VerificationError,
)
from harness.metrics.catalogue import CATALOGUE
from harness.metrics.nvml import NvmlGpus
from harness.metrics.quality import Finding, Severity
from harness.metrics.rows import RecordingRequest, RecordingSummary
from harness.metrics.telemetry import TelemetrySummary
from harness.results import layout
from harness.results.files import atomic_write, storage_errors
from harness.results.manifest import Manifest, Provenance, StepRecord, Verdict
from harness.results.provenance import collect
from harness.results.requests import Window
from harness.results.verification import verify_experiment
from harness.results.writers import finalise
from harness.spec import ExperimentSpec, OnReplicaDeath
from harness.spec.condition import crashing

if TYPE_CHECKING:
    from harness.campaign.runner import CampaignRunner
    from harness.campaign.shared_start import SharedStart

STEPS = ("preflight", "deploy", "stabilise", "record", "clean-up", "export", "verify", "cool-down")
REHEARSAL = "rehearsal"
COOLDOWN_POLL_S = 1.0
WAIT_POLL_S = {"preflight": 10.0, "deploy": 60.0}  # a start of all pods takes some ten seconds, and asks the registry
SETTLE_S = 0.3  # how early the recorder is called, so that its first scrape is on time


@dataclass(slots=True)
class Attempt:
    """One attempt: measure, judge, publish, cool down, each once.

    ``start``: of the replicas, where it is shared with other loads of the sweep; ``remarks``: what the current step noticed without
    failing; ``abort`` ends a start or a recording.
    """

    experiment: ExperimentSpec
    number: int
    position: int
    remaining_after_s: float
    shared: CampaignRunner
    start: SharedStart | None = None
    abort: threading.Event = field(default_factory=threading.Event)
    failures: list[Finding] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    unclean_ends: list[str] = field(default_factory=list)
    deaths: list[ReplicaDeath] = field(default_factory=list)
    steps: dict[str, StepRecord] = field(default_factory=dict)
    storage_error: StorageError | None = None
    findings: list[Finding] = field(default_factory=list)
    of_machine: list[Finding] = field(default_factory=list)
    summary: RecordingSummary | None = None
    stopping: StopRule | None = None
    telemetry: TelemetrySummary | None = None
    statuses: list[dict[str, Any]] = field(default_factory=list)
    neighbours: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    provenance: Provenance | None = None
    start_s: float = 0.0
    ended_s: float = 0.0
    client: ClientResult | None = None
    _deployment: Deployment | None = None
    _load: RunningLoad | None = None

    @property
    def folder(self) -> Path:
        """Where the attempt's files lie until it is done."""
        return layout.attempt_folder(self.shared.folder.path, self.experiment.experiment_id, self.number)

    def measure(self) -> None:
        """Preflight, deploy, stabilise, record; and clean up, whatever came of those.

        Raises CampaignInterruptedError and ImageError where something was away or cannot be had; nothing of the attempt is left.
        """
        if not self._step("preflight", self._preflight):
            self.ended_s = self.shared.clock.now_s()
            return
        try:
            _ = (
                self._step("deploy", self._deploy)
                and self._step("stabilise", self._stabilise)
                and self._step("record", self._record)
            )
        finally:
            if self._deployment is not None:
                self._step("clean-up", self._clean_up)
            self.ended_s = self.shared.clock.now_s()
            if self.start is not None:
                self.start.leave(self)

    def judge(self) -> Verdict:
        """How far what was measured can be trusted."""
        experiment, summary, condition = self.experiment, self.summary, self.experiment.condition
        failed = {failure.message for failure in self.failures}
        begun = [self.steps[name] for name in ("preflight", "deploy") if name in self.steps]
        reasons = [reason for step in begun for reason in step.reasons if reason not in failed]
        stopping = self._stopping()
        remarks = [*reasons, *([stopping["why"]] if stopping else [])]
        window = Window(summary.start_s if summary else self.start_s, (summary and summary.end_s) or self.ended_s)
        effects = [
            *crashes(experiment, self.folder, window, self.deaths),
            *lack_of_memory(experiment, self.deaths, self.neighbours),
        ]
        for effect in effects:
            self.shared.say(f"{experiment.experiment_id}: {effect.message}")
        self.findings = [
            *effects,
            *(Finding(Severity.INFO, ReasonCode.REMARK, "", remark) for remark in remarks),
            *judge_data(self.folder, summary, experiment),
            *self.of_machine,
            *(self._deployment.others_on_gpus(self.folder / layout.TELEMETRY) if self._deployment else ()),
            *ignored_settings(self.statuses),
        ]
        recorded = summary is not None and summary.end_s is not None and summary.end_s > summary.start_s
        if recorded and self.provenance is not None:
            self.client = evaluate(experiment, self.folder, window, statuses=self.statuses, provenance=self.provenance)
            self.findings += self.client.findings
        return give_verdict(
            self.findings,
            failures=self.failures,
            deaths=[death for death in self.deaths if death.neighbour not in crashing(condition)],
            unclean_ends=self.unclean_ends,
            replicas=experiment.replicas,
        )

    def publish(self, verdict: Verdict) -> bool:
        """Export and verify; True when the experiment's folder is there and holds what it should."""
        return self._step("export", lambda: self._export(verdict)) and self._step("verify", self._verify)

    def cool_down(self) -> None:
        """Rest until the cool-down, counted from the clean-up, is over or the GPUs are cool."""
        if "deploy" not in self.steps:
            return  # nothing ran that could be warm
        self._step("cool-down", self._cool_down)

    def _step(self, name: str, action: Callable[[], None]) -> bool:
        """Run one step between two lines of the journal; its failure becomes a reason."""
        shared, identity = self.shared, self.experiment.experiment_id
        timing = self.experiment.timing
        phases = {"stabilise": timing.stabilise_s, "record": timing.record_s, "cool-down": timing.cooldown_s}
        runs_already = self.start is not None and self.start.running
        later = {"deploy": 0.0 if runs_already else estimate([self.experiment]).starts_s, **phases}
        to_come_s = sum(later.get(step, 0.0) for step in STEPS[STEPS.index(name) :])
        remaining_s = self.remaining_after_s + to_come_s  # the start of the replicas included
        self._log("step-begins", name)
        shared.listener(StepBegins(identity, self.position, self.number, name, phases.get(name), remaining_s))
        begun_s = shared.clock.now_s()
        reasons: list[str] = []
        try:
            self._until_back(name, action)
        except (CampaignInterruptedError, ImageError) as error:
            self._log("pauses", name, why=error.message)
            raise
        except HarnessError as error:
            reasons.append(f"{name}: {error.message}")
            self.failures.append(Finding(Severity.INVALID, error.code, "", reasons[0], error.advice))
            if isinstance(error, StorageError):
                self.storage_error = error
        seconds = shared.clock.now_s() - begun_s
        self.steps[name] = StepRecord(
            started_at=layout.iso(begun_s), seconds=max(seconds, 0.0), ok=not reasons, reasons=[*reasons, *self.remarks]
        )
        self.remarks = []
        shared.listener(StepEnds(identity, name, not reasons, seconds, reasons))
        self._log("step-ends", name, ok=not reasons, seconds=round(seconds, 6), reasons=reasons)
        return not reasons

    def _until_back(self, step: str, action: Callable[[], None]) -> None:
        """Do it, and again while what it needs is away, for ``limits.wait_s``; how long that was is a remark of the step."""
        path, clock, limit_s = self.shared.folder.path, self.shared.clock, self.experiment.limits.wait_s
        since_s = waited_s = 0.0
        while True:
            try:
                action()
                break
            except AwayError as error:
                now_s = clock.now_s()
                if limit_s and not since_s:
                    self._tell("waits", step, f"waits up to {limit_s:g} s for what is away: {error.message}")
                since_s = since_s or now_s
                if now_s >= since_s + limit_s:
                    raise CampaignInterruptedError(
                        f"the campaign {path} pauses after waiting {now_s - since_s:.0f} s: {error.message}",
                        advice=f"{error.advice} When it is back, go on with: harness resume {path}".lstrip(),
                    ) from error
                if clock.wait_until(min(now_s + WAIT_POLL_S[step], since_s + limit_s), self.shared.interrupted):
                    raise  # the runner says that it was interrupted
                waited_s = clock.now_s() - since_s
                self.remarks = [f"waited {waited_s:.0f} s for what was away: {error.message}"]
        if since_s:
            self._tell("waited", step, f"goes on: what was away is back after {waited_s:.0f} s.")

    def _tell(self, event: str, step: str, sentence: str) -> None:
        """For whoever watches, and for `harness status`."""
        self._log(event, step, why=sentence)
        self.shared.say(f"{self.experiment.experiment_id} {sentence}")

    def _log(self, event: str, step: str, **fields: object) -> None:
        identity = self.experiment.experiment_id
        self.shared.journal.append(event, experiment=identity, attempt=self.number, step=step, **fields)

    def _preflight(self) -> None:
        step_s = self.experiment.timing.step_s
        self.start_s = math.floor(self.shared.clock.now_s() / step_s) * step_s  # until the recording sets its own
        runs_already = self.start is not None and self.start.running
        backend = None if runs_already else self.shared.backend  # which would find its own replicas in the way
        findings = preflight.check([self.experiment], self.shared.folder.path, backend)
        preflight.refuse_errors(findings, under_way=True)
        self.remarks += [finding.message for finding in findings]
        if not self.shared.rehearsed:
            self._rehearse()

    def _rehearse(self) -> None:
        shared = self.shared
        folder = layout.attempt_folder(shared.folder.path, REHEARSAL, shared.folder.next_attempt(REHEARSAL))
        send = self._send if needs_load(self.experiment) else None
        with self._nothing_left(folder):
            findings = shared.backend.rehearse(
                self.experiment, folder, abort=self.abort, send=send, notice=self.shared.say
            )
        preflight.refuse_errors(findings)
        self.remarks += [finding.message for finding in findings]
        shared.rehearsed = True

    def _deploy(self) -> None:
        with self._nothing_left(self.folder):
            with storage_errors(self.folder):
                self.folder.mkdir(parents=True)
            if self.start is not None:
                self._deployment = self._begin_in(self.start)
            else:
                self._deployment = self.shared.backend.deploy(
                    self.experiment, self.folder, abort=self.abort, on_death=self.on_death, notice=self.shared.say
                )
            if self._deployment.switch:
                self._log("switched", "deploy", **self._deployment.switch)
            if needs_load(self.experiment):
                self._load = self._send(self.experiment, self.folder, self._deployment.statuses())

    def _begin_in(self, start: SharedStart) -> Deployment:
        deployment = start.begin(self)
        if start.before:
            self.remarks.append(f"Measured in {start.name}; the start before, {start.before}, ended: {start.because}.")
        return deployment

    @contextmanager
    def _nothing_left(self, folder: Path) -> Iterator[None]:
        """Where an image does not come nothing was measured: end what runs already, and leave no folder of the try."""
        try:
            yield
        except (AwayError, ImageError):
            if self._deployment is not None:
                self._deployment.stop(timeout_s=self.experiment.drain_timeout_s)
                self._deployment, self.deaths = None, []
                self.abort.clear()  # a death in what was given up ends nothing else
                if self.shared.interrupted.is_set():
                    self.abort.set()
            with storage_errors(folder):
                if folder.exists():
                    shutil.rmtree(folder)
            raise

    def _send(self, experiment: ExperimentSpec, folder: Path, statuses: Sequence[Mapping[str, Any]]) -> RunningLoad:
        """Have requests sent to replicas that make none themselves. See base.Send."""
        backend, campaign_id = self.shared.backend, self.shared.folder.campaign_id
        return begin_load(backend, experiment, folder, statuses, campaign_id=campaign_id, abort=self.abort)

    def on_death(self, death: ReplicaDeath) -> None:
        """Called from the backend's thread."""
        self.deaths.append(death)
        self.shared.listener(Notice(str(death)))
        wanted = self.experiment.limits.on_replica_death
        retry = wanted is OnReplicaDeath.RETRY and not crashing(self.experiment.condition)
        if retry or sum(not dead.neighbour for dead in self.deaths) == self.experiment.replicas:
            self.abort.set()

    def _stabilise(self) -> None:
        timing = self.experiment.timing
        ready_s = self.shared.clock.now_s()
        # The recorder fills one window before its first row, so the rows cannot begin earlier than that.
        earliest_s = ready_s + max(timing.stabilise_s, self._lead_s())
        self.start_s = math.ceil(earliest_s / timing.step_s) * timing.step_s
        if self.shared.clock.wait_until(self.start_s - self._lead_s(), self.abort):
            raise self._aborted("before the recording")

    def _lead_s(self) -> float:
        timing = self.experiment.timing
        return timing.window_s - timing.step_s + SETTLE_S

    def _record(self) -> None:
        assert self._deployment is not None  # noqa: S101 - record follows deploy
        timing = self.experiment.timing
        identity, replicas = self.experiment.experiment_id, self.experiment.replicas
        writer = ProgressWriter(
            self.folder,
            workload=self.experiment.workload.name,
            replicas=replicas,
            metrics=self.experiment.metrics,
            start_s=self.start_s,
            step_s=timing.step_s,
        )
        if timing.stop_when_known is not None:
            self.stopping = StopRule(self.experiment, timing.stop_when_known, self.folder, start_s=self.start_s)
        request = RecordingRequest(
            metrics=[CATALOGUE[name] for name in self.experiment.metrics],
            step_s=timing.step_s,
            window_s=timing.window_s,
            sink=writer,
            clock=self.shared.clock,
            wake=self.abort,
            on_tick=lambda rows, of_rows: self.shared.listener(
                RowsRecorded(identity, rows, of_rows, timing.window_s, writer.now)
            ),
            notice=self.shared.say,
            enough=self.stopping,
        )
        groups, telemetry = GroupWatch(), self._deployment.telemetry(self.folder / layout.TELEMETRY)
        with writer:
            if telemetry is not None:
                telemetry.start()
            try:
                self.summary = self._deployment.recording(request).record(self.start_s, timing.rows)
            finally:
                self.telemetry = None if telemetry is None else telemetry.finish()
        self.of_machine += groups.findings() if self.shared.here else ()
        if self.summary.stopped:
            raise self._aborted(f"after {self.summary.rows} of {timing.rows} rows")

    def _aborted(self, when: str) -> BackendError:
        if not self.deaths:
            return BackendError(f"interrupted {when}.")
        deaths = "; ".join(death.brief for death in self.deaths)  # a notice has each with its last lines
        return BackendError(f"stopped {when}: {deaths}.", code=self.deaths[0].code)

    def _clean_up(self) -> None:
        assert self._deployment is not None  # noqa: S101 - measure calls it only then
        if self._load is not None:  # before the servers go: what it cannot send is no error of theirs
            self.unclean_ends += self._load.stop()
        self._ask(self._deployment)
        self.provenance = self._deployment.provenance()
        timeout_s = self.experiment.drain_timeout_s
        if self.start is None:
            self.unclean_ends += self._deployment.stop(timeout_s=timeout_s)
        elif not self.start.goes_on(self):
            self.unclean_ends += self.start.stop(timeout_s=timeout_s)
        self.deaths += [death for death in self._deployment.deaths if death not in self.deaths]
        self._ask(self._deployment)  # what a process says last is what it served

    def _ask(self, deployment: Deployment) -> None:
        self.statuses = [dict(status) for status in deployment.statuses()]
        self.neighbours = {
            name: [dict(status) for status in statuses] for name, statuses in deployment.neighbour_statuses().items()
        }

    def _export(self, verdict: Verdict) -> None:
        with storage_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)  # a refused preflight has made none
        experiment, recorded = self.experiment, self.summary.rows if self.summary else 0
        why = f"not recorded: {self.failures[0].message if self.failures else 'the recording did not begin'}"
        manifest = Manifest(
            experiment_id=experiment.experiment_id,
            campaign=self.shared.folder.path.name,
            attempt=self.number,
            experiment=experiment,
            command=["harness", *sys.argv[1:]],
            provenance=self.provenance or collect(),
            replicas=self.statuses,
            neighbours=self.neighbours,
            steps=self.steps,
            switch=dict(self._deployment.switch) if self._deployment else {},
            seeds={"workload": experiment.workload.seed, "campaign": self.shared.folder.spec.seed},
            loads=self._loads(),
            start=self.start.record(self) if self.start else {},
            start_s=self.start_s,
            rows=recorded or experiment.timing.rows,
            absent_metrics=self.summary.absent if self.summary and recorded else dict.fromkeys(experiment.metrics, why),
            recording=self.summary.to_dict() if self.summary else {},
            stopping=self._stopping(),
            telemetry=self.telemetry.to_dict() if self.telemetry else {},
            findings=[asdict(finding) for finding in self.findings],
            verdict=verdict,
        )
        for name, content in (self.client.files if self.client else {}).items():
            with storage_errors(self.folder):
                atomic_write(self.folder / name, json.dumps(content, indent=2) + "\n", replace=True)
        finalise(self.folder, self.shared.folder.final_folder(experiment.experiment_id), manifest)

    def _loads(self) -> dict[str, dict[str, Any]]:
        try:
            return {name: facts.model_dump(mode="json") for name, facts in loads([self.experiment]).items()}
        except LoadError:  # changed since it was asked
            return {}

    def _stopping(self) -> dict[str, Any]:
        """Why the recording was as long as it was; empty where the clock alone decides, or where it failed."""
        if self.stopping is None or self.summary is None or self.summary.stopped:
            return {}
        return self.stopping.record(rows=self.summary.rows, planned_rows=self.experiment.timing.rows)

    def _verify(self) -> None:
        folder = self.shared.folder.final_folder(self.experiment.experiment_id)
        for problem in verify_experiment(folder).problems:
            raise VerificationError(f"{problem.path}: {problem.message}", advice="Check the disk (dmesg, smartctl).")

    def _cool_down(self) -> None:
        timing, clock, interrupted = self.experiment.timing, self.shared.clock, self.shared.interrupted
        deadline_s = self.ended_s + timing.cooldown_s
        if timing.cooldown_gpu_celsius is None:
            clock.wait_until(deadline_s, interrupted)
            return
        with closing(self.shared.gpus()) as gpus:
            while clock.now_s() < deadline_s and self._hottest(gpus) > timing.cooldown_gpu_celsius:
                if clock.wait_until(min(clock.now_s() + COOLDOWN_POLL_S, deadline_s), interrupted):
                    return

    def _hottest(self, gpus: NvmlGpus) -> float:
        there = self._deployment.hottest_celsius() if self._deployment else None
        return gpus.hottest_celsius() if there is None else there
