"""One start of the replicas for all loads of a sweep, on a fake backend and in simulated time."""

import shutil

import pytest

from harness.campaign import events
from harness.campaign.journal import read_events
from harness.campaign.plan import estimate, expand
from harness.campaign.progress import campaign_status
from harness.campaign.verify import verify_campaign
from harness.errors import CampaignInterruptedError, ReasonCode, ReplicaDiedError
from harness.results.manifest import Status
from harness.spec import Limits, SweepSpec, WorkloadSpec

SWEPT = {
    "workloads": [WorkloadSpec(name="llm", server={"command": ["serve", "{port}"], "protocol": "openai-chat"})],
    "sweep": SweepSpec(concurrency=[4, 8, 16, 32], one_start=True),
    "replicas": [1],
    "metrics": ["throughput"],
}


def begun(on):
    """The loads of each start, as they were served."""
    return [deployment.begun for deployment in on.backend.deployments]


def journal(on, kind):
    return [event for event in read_events(on.folder.state) if event["event"] == kind]


def test_a_start_serves_every_load_of_a_repeat_and_a_repeat_is_a_new_start(stage):
    on = stage(**SWEPT, repeats=3)

    outcome = on.runner().run()

    planned = [experiment.experiment_id for experiment in expand(on.folder.spec)]
    assert [name for loads in begun(on) for name in loads] == planned == list(outcome.statuses)
    assert [len(loads) for loads in begun(on)] == [4, 4, 4]
    assert all(deployment.stopped for deployment in on.backend.deployments)
    assert verify_campaign(on.folder.path).ok
    assert on.attempts() == [], "the start's own folder is gone, and its logs lie with each load"
    assert (on.folder.final_folder(planned[0]) / "logs" / "replica-0.log").is_file()
    for repeat, loads in enumerate(begun(on), start=1):
        for place, name in enumerate(loads, start=1):
            assert on.manifest(name).start == {
                "name": f"llm_r1_time-slicing_rep{repeat}-start1",
                "place": place,
                "order": loads,
                "warm": place > 1,
                "before": "",
                "because": "",
            }


def test_the_order_is_of_the_seed_and_another_one_in_each_repeat(stage):
    def orders(seed):
        spec = stage(**SWEPT, repeats=3, seed=seed).folder.spec
        names = [experiment.workload.name for experiment in expand(spec)]
        return [tuple(names[at : at + 4]) for at in (0, 4, 8)]

    assert orders(0) == orders(0) != orders(1)
    assert len(set(orders(0))) > 1
    assert {frozenset(order) for order in orders(0)} == {frozenset({"llm-c4", "llm-c8", "llm-c16", "llm-c32"})}


def test_a_plan_counts_starts(stage):
    shared, single = (
        estimate(expand(stage(**{**SWEPT, "repeats": 3, "sweep": sweep}).folder.spec))
        for sweep in (SWEPT["sweep"], SweepSpec(concurrency=[4, 8, 16, 32]))
    )

    assert (shared.starts, single.starts) == (3, 12)
    assert shared.starts_s == pytest.approx(single.starts_s / 4)
    assert shared.duration_s == single.duration_s


def test_what_is_still_to_come_has_each_start_once(stage):
    on = stage(**SWEPT, repeats=3)
    on.runner().run()
    first, *_, last = [folder for loads in begun(on) for folder in loads]
    for name in (first, last):
        shutil.rmtree(on.folder.final_folder(name))

    cost = estimate([run for run in expand(on.folder.spec) if run.experiment_id in {first, last}])
    assert campaign_status(on.folder.path).remaining_s == pytest.approx(cost.total_s)
    others = [run for run in expand(on.folder.spec) if run.repeat == 1][1:]
    for run in others:
        shutil.rmtree(on.folder.final_folder(run.experiment_id))
    assert campaign_status(on.folder.path).remaining_s == pytest.approx(5 * cost.duration_s / 2 + cost.starts_s)


def test_a_death_ends_the_start_and_the_rest_runs_in_another_one_that_says_so(stage):
    on = stage(**SWEPT, limits=Limits(retries=0))
    order = [experiment.experiment_id for experiment in expand(on.folder.spec)]
    on.when(
        events.RowsRecorded,
        lambda: on.backend.deployments[0].die(0, at_s=on.clock.now_s()),
        experiment_id=order[1],
        rows=5,
    )

    outcome = on.runner().run()

    assert begun(on) == [order[:2], order[2:]]
    assert outcome.statuses[order[1]] is Status.INVALID
    assert [outcome.statuses[name] for name in (order[0], *order[2:])] == [Status.VALID] * 3
    [first, second] = journal(on, "start-begins")
    assert (first["before"], second["before"]) == ("", first["start"])
    assert [event["start"] for event in journal(on, "start-ends")] == [first["start"], second["start"]]
    later = on.manifest(order[2])
    assert (later.start["name"], later.start["place"], later.start["order"]) == (second["start"], 1, order[2:])
    assert "replica 0" in later.start["because"]
    remarks = [finding["message"] for finding in later.findings if finding["code"] == ReasonCode.REMARK]
    assert any(second["start"] in remark and first["start"] in remark for remark in remarks)
    assert any(second["start"].removesuffix("2") in notice and order[3] in notice for notice in on.notices())


def test_a_load_that_failed_is_tried_again_in_a_new_start_with_the_rest(stage):
    on = stage(**SWEPT)
    order = [experiment.experiment_id for experiment in expand(on.folder.spec)]
    on.backend.deploy_errors = [ReplicaDiedError("replica 0 exited with 1 (while starting).")]

    outcome = on.runner().run()

    assert begun(on) == [order]
    assert set(outcome.statuses.values()) == {Status.VALID}
    assert [event["start"][-6:] for event in journal(on, "start-begins")] == ["start1", "start2"]
    assert (on.folder.path / "attempts" / f"{order[0]}-1" / "logs" / "replica-0.log").is_file()


def test_replicas_that_do_not_become_idle_serve_no_further_load(stage):
    on = stage(**SWEPT)
    order = [experiment.experiment_id for experiment in expand(on.folder.spec)]
    on.when(
        events.RowsRecorded,
        lambda: on.backend.deployments[0].unfinished.append("replica 0 did not answer all requests"),
        experiment_id=order[0],
        rows=5,
    )

    outcome = on.runner().run()

    assert begun(on) == [order[:1], order[1:]]
    assert set(outcome.statuses.values()) == {Status.VALID}, "what was measured is as good as ever"
    assert on.manifest(order[1]).start["because"] == "replica 0 did not answer all requests"


def test_what_an_interruption_left_is_measured_in_a_new_start(stage):
    on = stage(**SWEPT)
    order = [experiment.experiment_id for experiment in expand(on.folder.spec)]
    runner = on.runner()
    on.when(events.RowsRecorded, runner.interrupt, experiment_id=order[2], rows=5)
    with pytest.raises(CampaignInterruptedError):
        runner.run()
    assert on.backend.deployments[0].stopped

    on.react = lambda _event: None
    on.runner().run()

    assert begun(on) == [order[:3], order[2:]]
    assert on.manifest(order[1]).start["name"].endswith("start1")
    resumed = on.manifest(order[2]).start
    assert (resumed["name"][-6:], resumed["place"], resumed["order"]) == ("start2", 1, order[2:])
    assert resumed["because"] == "the harness was interrupted"


def test_a_death_after_the_first_row_is_a_verdict_and_no_division_by_zero(stage):
    on = stage(**SWEPT, limits=Limits(retries=0))
    name = expand(on.folder.spec)[0].experiment_id
    on.when(
        events.RowsRecorded,
        lambda: on.backend.deployments[0].die(0, at_s=on.clock.now_s()),
        experiment_id=name,
        rows=1,
    )

    assert on.runner().run().statuses[name] is Status.INVALID
    assert on.manifest(name).rows == 1
    assert ReasonCode.REPLICA_DIED in on.manifest(name).verdict.codes


def test_two_configurations_share_no_start(stage):
    on = stage(**{**SWEPT, "replicas": [1, 2], "repeats": 2})

    on.runner().run()

    assert [len(loads) for loads in begun(on)] == [4, 4, 4, 4]
    assert [{name.split("_", 1)[1] for name in loads} for loads in begun(on)] == [
        {f"r{replicas}_time-slicing_rep{repeat}"} for repeat in (1, 2) for replicas in (1, 2)
    ]
