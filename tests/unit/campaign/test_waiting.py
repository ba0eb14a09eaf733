"""What goes away while a campaign runs is waited for; what cannot be had costs only the experiments that need it."""

import pytest

from harness.campaign import events
from harness.campaign.progress import campaign_status
from harness.campaign.verify import verify_campaign
from harness.errors import AwayError, BackendError, CampaignInterruptedError, ImageError, Issue, IssueLevel
from harness.results.manifest import Status, read_manifest
from harness.spec import ConditionSpec, Limits, OnReplicaDeath, WorkloadSpec
from tests.support.fake_backend import FakeBackend
from tests.unit.campaign.conftest import BESIDE, ONE, SENT, TWO

GONE = Issue(IssueLevel.ERROR, "prometheus", "Prometheus cannot be reached.", away=True)


class Outage(FakeBackend):
    """GONE is found for ``back_s`` seconds before each experiment but ``spared``."""

    def __init__(self, clock, back_s, *also, spared=ONE):
        super().__init__()
        self.clock, self.back_s, self.also, self.spared, self.since_s = clock, back_s, also, spared, {}

    def check(self, experiments):
        name = experiments[0].experiment_id
        since_s = self.since_s.setdefault(name, self.clock.now_s())
        is_back = name == self.spared or self.clock.now_s() - since_s >= self.back_s
        return () if is_back else (GONE, *self.also)


def outage(on, back_s, *also, spared=ONE):
    on.backend = Outage(on.clock, back_s, *also, spared=spared)
    return on.runner()


def said_of_waiting(on):
    return [notice for notice in on.notices() if "away" in notice]


def test_what_goes_away_between_experiments_is_waited_for_and_no_attempt_is_lost(stage):
    on = stage(limits=Limits(retries=0))
    runner = outage(on, 600)
    notes = []

    on.when(events.Notice, lambda: notes.append(campaign_status(on.folder.path).experiments[1].note))
    assert runner.run().statuses == {ONE: Status.VALID, TWO: Status.VALID}

    assert said_of_waiting(on) == [
        f"{TWO} waits up to 3600 s for what is away: Prometheus cannot be reached.",
        f"{TWO} goes on: what was away is back after 600 s.",
    ]
    assert on.manifest(TWO).steps["preflight"].reasons == [f"waited 600 s for what was away: {GONE.message}"]
    assert notes[0] == "waits up to 3600 s for what is away: Prometheus cannot be reached."
    assert on.manifest(TWO).attempt == 1
    assert on.manifest(TWO).verdict.reasons == []


def test_a_prometheus_that_is_restarted_at_every_boundary_of_nine_costs_none_of_them(stage):
    on = stage(replicas=[1, 3, 8], repeats=3, limits=Limits(retries=0))

    verdicts = outage(on, 30, spared="").run().statuses

    assert list(verdicts.values()) == [Status.VALID] * 9
    assert {on.manifest(name).attempt for name in verdicts} == {1}
    assert len(said_of_waiting(on)) == 18, "once when it is gone, once when it is back"


def test_what_does_not_come_back_pauses_the_campaign_and_counts_no_attempt(stage):
    on = stage(limits=Limits(retries=1, wait_s=60))
    with pytest.raises(CampaignInterruptedError, match=r"pauses after waiting \d+ s: Prometheus cannot") as caught:
        outage(on, 1e9).run()

    assert "harness resume" in caught.value.advice
    assert len(said_of_waiting(on)) == 1
    one, two = campaign_status(on.folder.path).experiments
    assert (one.status, two.status, two.attempts) == ("VALID", "pending", 0)
    assert "pauses after waiting" in two.note
    assert not on.folder.final_folder(TWO).exists()

    on.backend = FakeBackend()
    assert on.runner().run().statuses == {ONE: Status.VALID, TWO: Status.VALID}
    assert on.manifest(TWO).attempt == 1
    assert campaign_status(on.folder.path).experiments[1].attempts == 1
    assert verify_campaign(on.folder.path).ok


def test_for_what_will_not_mend_itself_nothing_is_waited_for(stage):
    on = stage(limits=Limits(retries=0))

    assert outage(on, 1e9, Issue(IssueLevel.ERROR, "rights", "this account may not.")).run().invalid == [TWO]

    assert said_of_waiting(on) == []


NO_REGISTRY = AwayError("replicas cannot start: ErrImagePull: no such host.", advice="Check it.")
ways_to_be_away = pytest.mark.parametrize("gone", [GONE, NO_REGISTRY], ids=["in preflight", "while starting"])


def away_for_good(on, gone):
    """From the second experiment on."""
    if gone is GONE:
        return outage(on, 1e9)
    on.backend.deploy_errors = [None, *[gone] * 1000]
    return on.runner()


@ways_to_be_away
def test_without_patience_the_campaign_pauses_at_once(stage, gone):
    on = stage(limits=Limits(wait_s=0))
    with pytest.raises(CampaignInterruptedError, match=f"pauses after waiting 0 s: {gone.message}"):
        away_for_good(on, gone).run()

    assert said_of_waiting(on) == []
    assert [one.status for one in campaign_status(on.folder.path).experiments] == ["VALID", "pending"]


@ways_to_be_away
def test_waiting_ends_at_an_interruption(stage, gone):
    on = stage()
    runner = away_for_good(on, gone)
    on.when(events.Notice, runner.interrupt)

    with pytest.raises(CampaignInterruptedError, match="was interrupted"):
        runner.run()

    assert len(said_of_waiting(on)) == 1
    assert not on.folder.final_folder(TWO).exists()
    assert on.attempts() == []


GONE_IMAGE = Issue(IssueLevel.ERROR, "image", "localhost/w:1 is not in the store of a.", "Build it there.")
NO_IMAGE = ImageError("replicas cannot start: ErrImagePull: manifest unknown.", advice="Check the image's name.")


@pytest.mark.parametrize("where", ["preflight", "rehearsal", "deploy"])
def test_an_image_that_is_not_there_stops_the_campaign_and_writes_no_experiment_off(stage, where):
    on = stage(limits=Limits(retries=1))
    on.backend.findings = [GONE_IMAGE] if where == "preflight" else []
    on.backend.rehearsal = NO_IMAGE if where == "rehearsal" else []
    on.backend.deploy_errors = [NO_IMAGE] if where == "deploy" else []

    with pytest.raises(
        ImageError, match=rf"has still to run {ONE} and 1 more: .*(manifest unknown|is not in the store)"
    ) as caught:
        on.runner().run()

    assert caught.value.exit_code == BackendError.exit_code
    assert f"Then go on with: harness resume {on.folder.path}" in caught.value.advice
    one, two = campaign_status(on.folder.path).experiments
    assert (one.status, one.attempts, two.status) == ("pending", 0, "pending")
    assert "manifest unknown" in one.note or "is not in the store" in one.note
    assert on.attempts() == []

    on.backend = FakeBackend()
    assert on.runner().run().statuses == {ONE: Status.VALID, TWO: Status.VALID}
    assert verify_campaign(on.folder.path).ok


def statuses(on):
    return {status.experiment_id: status.status for status in campaign_status(on.folder.path).experiments}


class LacksOneImage(FakeBackend):
    """Nobody has the image of the workload `gone`, nor that of a neighbour."""

    def deploy(self, experiment, *args, **named):
        if experiment.workload.name == "gone" or experiment.neighbours:
            raise NO_IMAGE
        return super().deploy(experiment, *args, **named)


def test_what_needs_other_images_is_run_where_one_is_not_there(stage):
    workloads = [WorkloadSpec(name=name, factory="a:b") for name in ("gone", "tiny")]
    on = stage(workloads=workloads, conditions=[ConditionSpec(name="alone"), BESIDE], replicas=[1, 2])
    on.backend = LacksOneImage()

    with pytest.raises(ImageError) as caught:
        on.runner().run()

    one, two = (f"tiny_r{replicas}_time-slicing_alone_rep1" for replicas in (1, 2))
    found = statuses(on)
    assert {name for name, status in found.items() if status == "VALID"} == {one, two}
    assert set(found.values()) == {"VALID", "pending"}
    first, *others = [name for name, status in found.items() if status == "pending"]
    cause = f"has still to run {first} and {len(others)} more: {NO_IMAGE.message}"
    assert caught.value.message == f"the campaign {on.folder.path} {cause}"
    assert caught.value.advice == f"{NO_IMAGE.advice} Then go on with: harness resume {on.folder.path}"
    begun = [event for event in on.events if isinstance(event, events.StepBegins) and event.step == "deploy"]
    assert not any("gone_r2" in event.experiment_id for event in begun), "gone_r1 failed for the same image"
    assert [event.number for event in begun] == [list(found).index(event.experiment_id) + 1 for event in begun]
    assert f"{first} cannot be run: {NO_IMAGE.message}" in on.notices()

    on.backend = FakeBackend()
    assert set(on.runner().run().statuses.values()) == {Status.VALID}
    assert len(on.backend.deployments) == len(found) - 2
    assert verify_campaign(on.folder.path).ok


def test_a_plan_that_follows_from_its_results_ends_after_the_block_that_lacks_one(stage):
    workloads = [WorkloadSpec(name=name, factory="a:b") for name in ("gone", "tiny")]
    on = stage(workloads=workloads, replicas=[1], repeats={"until_known": {"max": 3}}, order="interleaved")
    on.backend = LacksOneImage()

    with pytest.raises(ImageError, match=r"has still to run gone_r1_time-slicing_rep1: .*manifest unknown"):
        on.runner().run()

    assert len(on.backend.deployments) == 1
    assert statuses(on) == {"gone_r1_time-slicing_rep1": "pending", "tiny_r1_time-slicing_rep1": "VALID"}

    on.backend = FakeBackend()
    assert not on.runner().run().invalid
    assert verify_campaign(on.folder.path).ok


@pytest.mark.parametrize(("where", "step", "waited_s"), [("rehearsal", "preflight", 50), ("deploy", "deploy", 300)])
def test_a_registry_that_is_away_is_waited_for_within_one_attempt_that_says_so(stage, where, step, waited_s):
    on = stage(replicas=[1], limits=Limits(retries=0))
    on.backend = FakeBackend(**{f"{where}_errors": [NO_REGISTRY] * 5})
    notes = []

    on.when(events.Notice, lambda: notes.append(campaign_status(on.folder.path).experiments[0].note))
    assert on.runner().run().statuses == {ONE: Status.VALID}

    assert said_of_waiting(on) == [
        f"{ONE} waits up to 3600 s for what is away: {NO_REGISTRY.message}",
        f"{ONE} goes on: what was away is back after {waited_s} s.",
    ]
    assert notes[0] == f"waits up to 3600 s for what is away: {NO_REGISTRY.message}"
    assert on.steps(ONE) == ["preflight", "deploy", "stabilise", "record", "clean-up", "export", "verify", "cool-down"]
    manifest, remark = on.manifest(ONE), f"waited {waited_s} s for what was away: {NO_REGISTRY.message}"
    assert manifest.steps[step].reasons == [remark]
    assert remark in [finding["message"] for finding in manifest.findings]
    assert manifest.verdict.reasons == []
    assert manifest.attempt == campaign_status(on.folder.path).experiments[0].attempts == 1
    assert on.attempts() == []


def test_what_fails_after_it_was_waited_for_says_both(stage):
    on = stage(replicas=[1], limits=Limits(retries=0))
    on.backend.deploy_errors = [NO_REGISTRY, BackendError("out of memory.")]

    assert on.runner().run().invalid == [ONE]

    assert on.manifest(ONE).verdict.reasons == ["deploy: out of memory."]
    waited = f"waited 60 s for what was away: {NO_REGISTRY.message}"
    assert on.manifest(ONE).steps["deploy"].reasons == ["deploy: out of memory.", waited]
    assert [finding["message"] for finding in on.manifest(ONE).findings] == [waited]


class WithoutLoadPods(FakeBackend):
    """The pods that send do not get their image, which is away at first."""

    def load_pods(self, *_args, **_named):
        raise NO_REGISTRY if len(self.deployments) == 1 else NO_IMAGE


def test_replicas_whose_load_has_no_image_are_not_left_running(stage):
    on = stage(workloads=SENT, replicas=[1])
    on.backend = WithoutLoadPods()

    with pytest.raises(ImageError):
        on.runner().run()

    assert [deployment.stopped for deployment in on.backend.deployments] == [True, True]
    assert on.attempts() == []


class LosesReplicasMeanwhile(FakeBackend):
    """Some die while the pods that send wait for their image; they cannot be placed later."""

    def __init__(self, dying):
        super().__init__()
        self._dying = dying

    def load_pods(self, *_args, **_named):
        if len(self.deployments) > 1:
            raise BackendError("no room.")
        for index in self._dying:
            self.deployments[0].die(index, at_s=1.0)
        raise NO_REGISTRY


@pytest.mark.parametrize(
    ("dying", "wanted"),
    [([0], OnReplicaDeath.DEGRADE), ([0, 1], OnReplicaDeath.DEGRADE), ([0], OnReplicaDeath.RETRY)],
)
def test_a_death_in_a_start_that_was_given_up_is_no_death_of_the_next_and_ends_no_wait(stage, dying, wanted):
    on = stage(workloads=SENT, replicas=[2], limits=Limits(retries=0, on_replica_death=wanted))
    on.backend = LosesReplicasMeanwhile(dying)
    on.runner().run()

    (experiment,) = on.folder.path.glob("tiny_r2_*")
    reasons = read_manifest(experiment).verdict.reasons
    assert reasons == ["deploy: no room."]
