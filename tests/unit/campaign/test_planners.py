"""Each way of planning behind one interface: what is next follows from the folder, and from nothing else."""

import pytest

from harness.campaign.folder import create
from harness.campaign.journal import Journal, read_events
from harness.campaign.plan import expand
from harness.campaign.planners import POINT, Planner, StopRule, StressPlanner, UntilKnownPlanner, planner_of
from harness.errors import HarnessError
from harness.spec import Repeats, StopWhenKnown, StressSpec, UntilKnown
from tests.support.experiments import campaign, experiment

STRESS = {"stress": StressSpec(first=1, most=4), "replicas": [1]}
KINDS = {Planner: {}, StressPlanner: STRESS, UntilKnownPlanner: {"repeats": Repeats(until_known=UntilKnown())}}


@pytest.mark.parametrize("kind", KINDS)
def test_a_campaign_has_the_planner_that_it_asks_for(kind, tmp_path):
    planner = planner_of(create(tmp_path, campaign(**KINDS[kind]), text="", source="shipped:t"))

    assert type(planner) is kind
    assert {each.experiment_id for each in planner.known()} <= {each.experiment_id for each in expand(planner.spec)}
    assert planner.explained() == frozenset()
    assert not planner.out_of_time()


def test_a_matrix_is_given_whole_and_once(tmp_path):
    planner = planner_of(create(tmp_path, campaign(), text="", source="shipped:t"))

    assert planner.following() == expand(planner.spec)
    assert planner.following() == []


def test_a_point_is_in_the_journal_before_it_runs_given_again_after_a_kill_and_refused_where_it_left_nothing(tmp_path):
    folder = create(tmp_path, campaign(**STRESS), text="", source="shipped:t")
    journal = Journal(folder.state)
    planner = planner_of(folder, journal)

    [first] = planner.following()

    assert [event["experiment"] for event in read_events(folder.state) if event["event"] == POINT] == [
        first.experiment_id
    ]
    assert planner_of(folder, journal).following() == [first], "as a harness that goes on does"
    with pytest.raises(HarnessError, match="left no result"):
        planner.following()
    journal.close()


def test_of_a_recording_too_short_for_a_look_nothing_is_called_wide(tmp_path):
    rule = StopRule(
        experiment(replicas=1, timing={"step_s": 5, "record_s": 60}), StopWhenKnown(min_s=30), tmp_path, start_s=0.0
    )
    assert not rule.due(6)

    record = rule.record(rows=7, planned_rows=7)
    assert (record["known"], record["figures"], record["recorded_s"], record["planned_s"]) == (False, {}, 30, 30)
    assert "could not be judged before" in record["why"]
