"""The runner on a fake backend, simulated time and scripted metrics."""

import contextlib
import dataclasses
import json
import math
from datetime import datetime
from pathlib import Path

import pytest

from harness.campaign import events, experiment_run
from harness.campaign.journal import read_events
from harness.campaign.plan import estimate, expand
from harness.campaign.progress import campaign_status
from harness.campaign.verify import verify_campaign
from harness.errors import (
    BackendError,
    CampaignInterruptedError,
    DeviceInUseError,
    Issue,
    IssueLevel,
    ReasonCode,
    ReplicaDiedError,
    StorageError,
)
from harness.results.layout import metric_files
from harness.results.manifest import Status
from harness.results.tables import read_cells
from harness.spec import ConditionSpec, Limits, NeighbourSpec, OnReplicaDeath, WorkloadSpec
from tests.support.fake_metrics import FakeGpus, fake_sources, gpu_usage, sample
from tests.support.simulated_clock import SimulatedClock
from tests.unit.campaign.conftest import BESIDE, ONE, SENT, TIMING, TWO


def test_every_experiment_is_done_and_verifies(stage):
    on = stage()
    clock = SimulatedClock()
    begun_s = clock.now_s()

    outcome = on.runner(clock).run()

    assert outcome.statuses == {ONE: Status.VALID, TWO: Status.VALID}
    assert verify_campaign(on.folder.path).ok
    assert on.steps(ONE) == ["preflight", "deploy", "stabilise", "record", "clean-up", "export", "verify", "cool-down"]
    assert all(deployment.stopped for deployment in on.backend.deployments)
    assert clock.now_s() - begun_s == pytest.approx(2 * (10 + 20 + 30), abs=15)


def test_the_manifest_tells_how_the_attempt_went(stage):
    on = stage()
    on.runner().run()

    manifest = on.manifest(TWO)
    assert manifest.rows == 21
    assert manifest.attempt == 1
    assert manifest.absent_metrics == {"gpu_power": "no NVIDIA driver: libnvidia-ml.so.1 not found"}
    assert list(manifest.steps) == ["preflight", "deploy", "stabilise", "record", "clean-up"]
    assert len(manifest.replicas) == 2
    assert manifest.start_s % 1 == 0


def test_whoever_watches_is_told_the_figures_that_are_written(stage):
    on = stage(replicas=[2])
    on.runner().run()

    *_, last = (event for event in on.events if isinstance(event, events.RowsRecorded))
    assert {now.series for now in last.now} == {"all", "replica-0", "replica-1"}
    written = list(read_cells(metric_files(on.folder.final_folder(TWO))["throughput"], "throughput"))[-3:]
    assert {now.series: now.requests_per_s for now in last.now} == {series: value for series, _, value, _ in written}


def test_what_is_done_is_verified_and_not_repeated(stage):
    on = stage()
    on.runner().run()
    before = {
        path: path.read_bytes() for path in on.folder.path.rglob("*") if path.is_file() and path.name != "state.jsonl"
    }

    assert on.runner().run().statuses == {ONE: Status.VALID, TWO: Status.VALID}

    assert len(on.backend.deployments) == 2
    assert before == {path: path.read_bytes() for path in before}


def test_a_campaign_holds_its_gpu_until_it_ends_and_one_that_cannot_have_it_goes_on_later(stage):
    first, second, refused = stage(), stage(), []
    first.backend.name = second.backend.name = "local"

    def begin():
        with pytest.raises(DeviceInUseError, match="harness resume") as error:
            second.runner().run()
        refused.append(error.value.exit_code)

    first.when(events.StepBegins, begin, step="cool-down")
    first.runner().run()

    assert set(refused) == {15}
    assert [notice for notice in second.notices() if notice.startswith("waits")]
    assert set(second.runner().run().statuses.values()) == {Status.VALID}


def test_a_failed_deployment_is_tried_again(stage):
    on = stage(limits=Limits(retries=1))
    on.backend.deploy_errors = [BackendError("port on fire.")]

    assert on.runner().run().statuses == {ONE: Status.VALID, TWO: Status.VALID}

    assert on.manifest(ONE).attempt == 2
    assert (on.folder.path / "attempts" / f"{ONE}-1").is_dir()


def test_files_that_do_not_verify_are_kept_aside_and_the_retry_is_published(stage):
    on = stage(replicas=[1])
    damaged = []

    def damage():
        if not damaged:
            damaged.append(next(on.folder.final_folder(ONE).glob("*throughput*.csv")))
            damaged[0].write_text("torn")

    on.when(events.StepBegins, damage, step="verify")
    assert on.runner().run().statuses == {ONE: Status.VALID}
    assert verify_campaign(on.folder.path).ok
    assert len(on.backend.deployments) == 2
    (aside,) = [event for event in read_events(on.folder.state) if event["event"] == "set-aside"]
    assert (Path(aside["place"]) / damaged[0].name).read_text() == "torn"


def test_data_that_say_nothing_are_a_failure_to_try_again(stage):
    on = stage(replicas=[1], limits=Limits(retries=1))
    idle = [True, False]

    def once_idle(replicas):
        served = 0 if idle.pop(0) else 100
        return fake_sources(replicas, lambda _replica, scrape: sample([0.004] * (served * scrape)))

    on.backend.sources = once_idle

    assert on.runner().run().statuses == {ONE: Status.VALID}

    assert on.manifest(ONE).attempt == 2
    assert any("tried again" in notice for notice in on.notices())


def test_an_experiment_that_never_starts_is_invalid_with_its_reason_and_the_campaign_goes_on(stage):
    on = stage(limits=Limits(retries=1))
    on.backend.deploy_errors = [ReplicaDiedError("out of memory.", advice="Buy more.")] * 2

    outcome = on.runner().run()

    assert outcome.statuses == {ONE: Status.INVALID, TWO: Status.VALID}
    assert outcome.invalid == [ONE]
    manifest = on.manifest(ONE)
    assert manifest.verdict.reasons == ["deploy: out of memory."]
    assert manifest.verdict.codes == [ReasonCode.REPLICA_DIED]
    assert manifest.verdict.advice == ["Buy more."]
    assert set(manifest.absent_metrics) == set(manifest.experiment.metrics)
    assert verify_campaign(on.folder.path).ok


def test_invalid_experiments_run_again_only_when_asked(stage):
    on = stage(limits=Limits(retries=0))
    on.backend.deploy_errors = [BackendError("no.")]
    on.runner().run()

    assert on.runner().run().invalid == [ONE]
    assert on.runner().run(again=[Status.INVALID]).invalid == []


def test_a_refused_preflight_starts_nothing(stage):
    on = stage(limits=Limits(retries=0))
    memory = Issue(IssueLevel.ERROR, "memory", "too small.", "Use fewer replicas.", ReasonCode.OUT_OF_MEMORY)
    on.backend.findings = [Issue(IssueLevel.ERROR, "gpu", "there is none."), memory]

    assert on.runner().run().invalid == [ONE, TWO]

    assert on.backend.deployments == []
    assert on.manifest(ONE).verdict.advice == ["Use fewer replicas."]
    assert on.manifest(ONE).verdict.codes == [ReasonCode.OUT_OF_MEMORY]


def test_what_sends_carries_the_campaigns_own_mark(stage, monkeypatch):
    marks = []

    def begin_load(*_args, campaign_id, **_named):
        marks.append(campaign_id)
        raise BackendError("nobody sends.")

    monkeypatch.setattr(experiment_run, "begin_load", begin_load)
    on = stage(workloads=SENT, replicas=[1])
    on.runner().run()

    assert set(marks) == {on.folder.campaign_id}


def test_what_preflight_warned_of_is_in_the_manifest(stage):
    on = stage(replicas=[1])
    on.backend.findings = [Issue(IssueLevel.WARNING, "load", "other work runs on this machine.")]

    assert on.runner().run().statuses == {ONE: Status.VALID}

    assert on.manifest(ONE).steps["preflight"].reasons == ["other work runs on this machine."]
    assert on.manifest(ONE).steps["deploy"].reasons == []


def die_at(on, row, replica=0, neighbour=""):
    on.when(
        events.RowsRecorded,
        lambda: on.backend.deployments[-1].die(replica, at_s=0.0, neighbour=neighbour),
        rows=row,
    )


def test_a_death_degrades_and_is_named(stage):
    on = stage(replicas=[2], limits=Limits(on_replica_death=OnReplicaDeath.DEGRADE))
    die_at(on, 5)

    assert on.runner().run().statuses == {TWO: Status.DEGRADED}

    assert on.manifest(TWO).rows == 21
    code, reason = on.manifest(TWO).verdict.coded_reasons[0]
    assert code is ReasonCode.REPLICA_DIED
    assert "replica 0 was killed by signal 9" in reason


def test_a_death_is_a_retry_where_the_campaign_says_so(stage):
    on = stage(replicas=[2], limits=Limits(on_replica_death=OnReplicaDeath.RETRY, retries=1))
    on.when(
        events.RowsRecorded,
        lambda: len(on.backend.deployments) == 1 and on.backend.deployments[0].die(0, at_s=0.0),
        rows=5,
    )

    assert on.runner().run().statuses == {TWO: Status.VALID}

    assert on.manifest(TWO).attempt == 2
    assert len(on.backend.deployments) == 2


def test_the_death_of_all_ends_the_recording_and_what_was_recorded_is_kept(stage):
    on = stage(replicas=[1], limits=Limits(retries=0))
    die_at(on, 5)

    assert on.runner().run().statuses == {ONE: Status.INVALID}

    assert on.manifest(ONE).rows == 5
    assert verify_campaign(on.folder.path).ok


def test_a_neighbour_has_its_own_series_and_place_in_the_manifest(stage):
    on = stage(replicas=[1], conditions=[BESIDE])

    assert on.runner().run().statuses == {"tiny_r1_time-slicing_beside_rep1": Status.VALID}

    manifest = on.manifest("tiny_r1_time-slicing_beside_rep1")
    assert len(manifest.replicas) == 1
    assert [status["phase"] for status in manifest.neighbours["noisy"]] == ["serving", "serving"]
    assert manifest.recording["metrics"]["throughput"]["series"] == [
        "replica-0",
        "noisy/replica-0",
        "noisy/replica-1",
        "all",
        "noisy/all",
    ]
    assert "neighbours/noisy/logs/replica-1.log" in manifest.files
    assert verify_campaign(on.folder.path).ok


def test_the_death_of_a_neighbour_degrades_and_is_named_and_the_recording_goes_on(stage):
    on = stage(replicas=[1], conditions=[BESIDE])
    die_at(on, 5, replica=1, neighbour="noisy")

    assert on.runner().run().statuses == {"tiny_r1_time-slicing_beside_rep1": Status.DEGRADED}

    manifest = on.manifest("tiny_r1_time-slicing_beside_rep1")
    assert manifest.rows == 21
    assert manifest.verdict.codes[0] is ReasonCode.NEIGHBOUR_DIED
    assert "replica 1 of the neighbour noisy was killed by signal 9" in manifest.verdict.reasons[0]


CRASHED = "tiny_r1_time-slicing_crashed_rep1"


@pytest.fixture
def beside_a_crash(stage):
    """A campaign beside a neighbour that crashes in row 5, or not; and with it whom the test names."""

    def make(*victims, crashes=True, **changes):
        beside = ConditionSpec(name="crashed", neighbours=[NeighbourSpec(workload=WorkloadSpec(name="crash"))])
        on = stage(conditions=[beside], **{"replicas": [1]} | changes)
        on.outcome = lambda: on.runner().run()

        def crash():
            for replica in victims:
                on.backend.deployments[-1].die(replica, at_s=on.clock.now_s())
            if crashes:
                on.backend.deployments[-1].die(0, at_s=on.clock.now_s(), exit_code=1, neighbour="crash")

        on.when(events.RowsRecorded, crash, rows=5)
        return on

    return make


def test_a_crash_that_was_wanted_and_harmed_nobody_is_an_answer_and_no_flaw(beside_a_crash):
    on = beside_a_crash(limits=Limits(on_replica_death=OnReplicaDeath.RETRY, retries=1))

    assert on.outcome().statuses == {CRASHED: Status.VALID}

    manifest = on.manifest(CRASHED)
    assert (manifest.attempt, manifest.rows) == (1, 21)
    [answer] = [finding for finding in manifest.findings if finding["code"] == ReasonCode.VICTIM_SURVIVED]
    assert "replica 0 of the neighbour crash exited with 1" in answer["message"]
    assert any(answer["message"] in notice for notice in on.notices())
    assert verify_campaign(on.folder.path).ok


def test_a_victim_of_a_wanted_crash_is_the_answer_and_the_campaign_has_not_failed(beside_a_crash):
    on = beside_a_crash(0, limits=Limits(on_replica_death=OnReplicaDeath.RETRY, retries=1))

    outcome = on.outcome()

    assert outcome.statuses == {CRASHED: Status.INVALID}, "its figures are no figures"
    assert outcome.invalid == []
    manifest = on.manifest(CRASHED)
    assert manifest.attempt == 1
    assert ReasonCode.VICTIM_DIED in manifest.verdict.codes
    assert on.runner().run().invalid == [], "a campaign that goes on knows it, too"


def test_one_victim_of_two_degrades(beside_a_crash):
    on = beside_a_crash(1, replicas=[2])

    assert list(on.outcome().statuses.values()) == [Status.DEGRADED]

    codes = on.manifest(CRASHED.replace("r1", "r2")).verdict.codes
    assert {ReasonCode.VICTIM_DIED, ReasonCode.REPLICA_DIED} <= set(codes)


def test_a_crash_that_did_not_come_is_no_answer(beside_a_crash):
    on = beside_a_crash(crashes=False)

    assert on.outcome().statuses == {CRASHED: Status.DEGRADED}

    assert on.manifest(CRASHED).verdict.codes == [ReasonCode.NOT_JUDGED]


def test_an_unclean_end_degrades(stage):
    on = stage(replicas=[1])
    on.backend.stop_problems = ["replica 0 did not drain within 10 s and was killed."]

    assert on.runner().run().statuses == {ONE: Status.DEGRADED}


@pytest.mark.parametrize(
    "step", ["preflight", "deploy", "stabilise", "record", "clean-up", "export", "verify", "cool-down"]
)
def test_an_interruption_in_any_step_leaves_a_campaign_that_goes_on(stage, step):
    on = stage()
    runner = on.runner()
    on.when(events.StepBegins, runner.interrupt, step=step)

    with pytest.raises(CampaignInterruptedError, match="what was finished is kept") as caught:
        runner.run()
    assert "harness resume" in caught.value.advice
    assert all(deployment.stopped for deployment in on.backend.deployments)

    on.react = lambda _event: None
    assert on.runner().run().statuses == {ONE: Status.VALID, TWO: Status.VALID}
    assert verify_campaign(on.folder.path).ok


@pytest.mark.parametrize(("celsius", "rest_s"), [(20, 30), (50, 5)])
def test_a_cool_down_ends_when_the_gpus_are_cool_or_its_time_is_over(stage, celsius, rest_s):
    timing = TIMING.model_copy(update={"cooldown_gpu_celsius": celsius})
    on = stage(replicas=[1], timing=timing)

    def cooling(_device, reading):
        return dataclasses.replace(gpu_usage(), gauges={"temperature_celsius": 55.0 - reading})

    on.runner(gpus=lambda: FakeGpus(1, cooling)).run()

    assert on.seconds("cool-down") == [pytest.approx(rest_s, abs=1.5)]


@pytest.mark.parametrize("celsius", [None, 20])
def test_a_death_cuts_no_cool_down_short(stage, celsius):
    timing = TIMING.model_copy(update={"cooldown_gpu_celsius": celsius})
    on = stage(replicas=[1], timing=timing, limits=Limits(retries=1))
    die_at(on, 5)

    on.runner(gpus=lambda: FakeGpus(1)).run()

    assert on.seconds("cool-down") == [pytest.approx(TIMING.cooldown_s, abs=1.5)] * 2


def test_gpus_of_other_machines_end_a_cool_down_by_what_the_backend_knows(stage):
    on = stage(replicas=[1], timing=TIMING.model_copy(update={"cooldown_gpu_celsius": 50}))
    there = iter([math.inf, 60.0, 49.0])
    on.backend.celsius = lambda: next(there)

    on.runner(gpus=lambda: FakeGpus(1)).run()

    assert on.seconds("cool-down") == [pytest.approx(2, abs=1.5)]
    assert next(there, None) is None


def test_every_step_is_in_the_journal_before_the_next_begins(stage):
    on = stage(replicas=[1])
    seen = []

    def react(event):
        if isinstance(event, events.StepBegins):
            lines = [(e["event"], e.get("step")) for e in read_events(on.folder.state)]
            seen.append(lines[-1] == ("step-begins", event.step))

    on.react = react
    on.runner().run()

    assert seen == [True] * 8


def began_s(name, state):
    """When an experiment's first attempt began, seconds since the epoch."""
    begins = next(event for event in read_events(state) if event.get("experiment") == name)
    return datetime.fromisoformat(begins["at"]).timestamp()


def test_status_before_during_and_after(stage):
    on = stage()
    assert campaign_status(on.folder.path).done == 0
    seen = []
    on.when(
        events.StepBegins,
        lambda: seen.append(campaign_status(on.folder.path, now_s=began_s(TWO, on.folder.state) + 10)),
        experiment_id=TWO,
        step="record",
    )

    on.runner().run()

    during, after = seen[0], campaign_status(on.folder.path)
    assert (during.done, during.running) == (1, True)
    starts_s = estimate(expand(on.folder.spec)[1:]).starts_s
    assert during.remaining_s == pytest.approx(60 + starts_s - 10)
    assert [each.status for each in during.experiments] == ["VALID", "running"]
    assert during.experiments[1].note == "record"
    assert (after.done, after.running, after.remaining_s) == (2, False, 0)
    assert after.activity == "finished"
    json.dumps(dataclasses.asdict(after))


def test_the_backend_rehearses_once_a_run_and_what_it_found_is_kept(stage):
    on = stage(replicas=[1, 2])
    on.backend.rehearsal = [Issue(IssueLevel.WARNING, "canary", "io_psi gives no sample here.")]

    assert set(on.runner().run().statuses.values()) == {Status.VALID}

    assert (on.backend.rehearsed, on.backend.rehearsed_with_load) == ([ONE], [False])
    assert "io_psi gives no sample here." in on.manifest(ONE).steps["preflight"].reasons


def test_replicas_that_make_no_requests_are_rehearsed_with_what_sends_them(stage):
    on = stage(workloads=SENT, limits=Limits(retries=0))
    on.backend.rehearsal = BackendError("seen enough.")

    on.runner().run()

    assert set(on.backend.rehearsed_with_load) == {True}


def test_a_rehearsal_that_fails_spends_no_hour_and_is_tried_again_by_the_next_experiment(stage):
    on = stage(replicas=[1, 2], limits=Limits(retries=0))
    on.backend.rehearsal = BackendError("the canary did not serve.")

    assert set(on.runner().run().statuses.values()) == {Status.INVALID}

    assert on.backend.deployments == []
    assert len(on.backend.rehearsed) == 2
    assert on.manifest(ONE).verdict.reasons == ["preflight: the canary did not serve."]


@pytest.mark.parametrize("ending", ["whole", "interrupted", "no disk"])
def test_the_backend_puts_back_what_it_changed_however_a_run_ends(stage, ending):
    on = stage(replicas=[1])
    runner = on.runner()

    def end():
        assert on.backend.closed == 0
        if ending == "interrupted":
            runner.interrupt()
        if ending == "no disk":
            raise StorageError("the disk is full.")

    on.when(events.StepBegins, end, step="record")
    errors = {"interrupted": CampaignInterruptedError, "no disk": StorageError}
    with pytest.raises(errors[ending]) if ending in errors else contextlib.nullcontext():
        runner.run()

    assert on.backend.closed == 1
    assert on.events[-1] == events.Notice("what was changed is put back.")
