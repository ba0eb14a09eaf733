"""Repeats until something is known, on a fake backend whose throughput is made up for each experiment."""

import random
from contextlib import closing

import pytest

from harness.analysis.campaign import analyse
from harness.analysis.contrasts.comparison import gather
from harness.analysis.contrasts.until_known import share_of_look
from harness.analysis.narrative import caveats
from harness.analysis.statistics import t_interval
from harness.campaign import events
from harness.campaign.folder import create
from harness.campaign.journal import Journal, read_events
from harness.campaign.plan import certain, estimate, expand, most
from harness.campaign.planners import BLOCK, BLOCKS_END
from harness.campaign.progress import campaign_status
from harness.campaign.runner import CampaignRunner
from harness.campaign.verify import verify_campaign
from harness.errors import BackendError
from harness.results.manifest import Status
from harness.spec import Limits, Repeats, Sharing, Timing, UntilKnown
from tests.support.experiments import campaign
from tests.support.fake_backend import FakeBackend
from tests.support.fake_metrics import FakeGpus, fake_sources, sample
from tests.support.simulated_clock import SimulatedClock

SHARING = [Sharing.TIME_SLICING, Sharing.MPS]
TIMING = Timing(step_s=1, stabilise_s=0, record_s=10, cooldown_s=0)
BUSY = 200
SCATTER = {1: 0.01, 2: 0.04}
"""By replicas: with one the modes differ clearly, with two they are equal and scatter."""


class KilledError(BaseException):
    """Nothing of the harness catches it."""


class Stage:
    def __init__(self, results, **wishes):
        wanted = UntilKnown(**{"compare": ["throughput"], "max": 6} | wishes)
        spec = campaign(
            sharing=SHARING,
            repeats=Repeats(until_known=wanted),
            timing=TIMING,
            metrics=["throughput", "total_count"],
            limits=Limits(retries=0),
        )
        self.folder = create(results, spec, text="text", source="shipped:test")
        self.backend = FakeBackend(sources=self.sources)
        self.now = ""
        self.notices = []
        self.kill_at = None

    def sources(self, replicas):
        noise = random.Random(self.now).gauss(0, SCATTER[replicas])
        faster = 2 if "_r1_mps" in self.now else 1
        served = round(BUSY * faster * (1 + noise))
        return fake_sources(replicas, lambda _replica, scrape: sample([0.004] * (served * scrape)))

    def listen(self, event):
        if isinstance(event, events.StepBegins):
            self.now = event.experiment_id
            if (event.experiment_id, event.step) == self.kill_at:
                self.kill_at = None
                raise KilledError
        elif isinstance(event, events.Notice):
            self.notices.append(event.message)

    def run(self, **wishes):
        runner = CampaignRunner(self.folder, self.backend, clock=SimulatedClock(), listener=self.listen, gpus=FakeGpus)
        return runner.run(**wishes)

    def journal(self, kind):
        return [event for event in read_events(self.folder.state) if event["event"] == kind]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    on = Stage(tmp_path_factory.mktemp("results"))
    return on, on.run()


def repeats_of(names, cell):
    return [int(name.rpartition("rep")[2]) for name in names if name.startswith(cell)]


def test_a_decided_cell_gets_no_more_time_and_the_others_do(finished):
    on, outcome = finished

    assert repeats_of(outcome.statuses, "tiny_r1_time-slicing") == repeats_of(outcome.statuses, "tiny_r1_mps")
    assert repeats_of(outcome.statuses, "tiny_r1_mps") == [1, 2, 3]
    assert repeats_of(outcome.statuses, "tiny_r2_mps") == list(range(1, len(on.journal(BLOCK)) + 1))
    assert len(on.journal(BLOCK)) > 3
    (end,) = on.journal(BLOCKS_END)
    assert "tiny r1 mps against time-slicing: throughput is different" in end["answers"][0]
    assert end["why"] == "No repeats are left to do."
    assert any(end["answers"][-1] in notice for notice in on.notices)
    assert verify_campaign(on.folder.path).ok


def test_status_and_report_know_what_is_known_and_that_nothing_is_missing(finished):
    on, outcome = finished
    status = campaign_status(on.folder.path)

    assert (status.done, len(status.experiments), status.activity) == (len(outcome.statuses),) * 2 + ("finished",)
    assert "throughput is different" in status.answers[0]
    analysis = analyse(on.folder.path)
    assert analysis.unfinished == []
    assert analysis.progress.sentences() == on.journal(BLOCKS_END)[0]["answers"]
    assert any("followed from the results" in sentence for sentence in caveats(analysis))


def test_intervals_of_the_report_and_the_comparison_allow_for_the_looks(finished):
    on, _ = finished
    pool = gather([on.folder.path])

    assert any("followed from the results" in sentence for sentence in pool.unlike)
    (cell,) = [cell for cell in pool.analyses[0].cells if (cell.replicas, cell.sharing) == (1, "mps")]
    figures = cell.figures("throughput")
    assert cell.estimates["throughput"] == t_interval(figures, share_of_look(UntilKnown(max=6), 3))
    assert cell.estimates["throughput"].half_width > t_interval(figures).half_width


def test_killed_anywhere_it_ends_where_it_would_have(finished, tmp_path):
    whole, outcome = finished
    on = Stage(tmp_path)
    for killed in ("tiny_r2_mps_rep2", "tiny_r2_time-slicing_rep4"):
        on.kill_at = (killed, "record")
        with pytest.raises(KilledError):
            on.run()
        assert killed in [one.experiment_id for one in campaign_status(on.folder.path).experiments]
        assert analyse(on.folder.path).unfinished

    assert on.run().statuses.keys() == outcome.statuses.keys()
    assert on.journal(BLOCKS_END)[-1]["answers"] == whole.journal(BLOCKS_END)[-1]["answers"]
    assert on.run().statuses.keys() == outcome.statuses.keys()  # nothing is left to do


def test_a_budget_ends_the_campaign_between_experiments_and_stays_spent(tmp_path):
    on = Stage(tmp_path, budget="200 s")  # three blocks of four experiments are 120 s and their starts

    outcome = on.run()

    assert set(repeats_of(outcome.statuses, "tiny_r2_mps")) >= {1, 2, 3}
    (end,) = on.journal(BLOCKS_END)
    assert end["why"] == "The budget of 200 s leaves no time for what comes next."
    assert "1 open" in end["answers"][-1]
    assert campaign_status(on.folder.path).activity == "finished"
    assert analyse(on.folder.path).unfinished == []
    assert on.run().statuses == outcome.statuses


def test_the_budget_is_looked_at_before_every_experiment(tmp_path):
    on = Stage(tmp_path, budget="200 s")
    usual = on.sources

    def slow(replicas):
        if "mps" in on.now:
            with closing(Journal(on.folder.state)) as journal:
                journal.append("step-ends", experiment="lost", seconds=185.0)  # an attempt that was
        return usual(replicas)

    on.backend.sources = slow

    assert list(on.run().statuses) == [f"tiny_r{name}_rep1" for name in ("1_time-slicing", "2_time-slicing", "1_mps")]

    assert "budget of 200 s" in on.journal(BLOCKS_END)[0]["why"]
    assert campaign_status(on.folder.path).activity == "finished"


def test_invalid_runs_count_for_nothing_and_a_cell_without_two_in_a_row_is_given_up(tmp_path):
    on = Stage(tmp_path)
    on.backend.deploy_errors = [BackendError("no.")] * 12

    assert len(on.run().invalid) == 12

    assert "throughput is not measured, after 3 repeats" in on.journal(BLOCKS_END)[0]["answers"][0]
    assert len(on.run(again=[Status.INVALID]).statuses) > 12  # and now they tell something
    assert "throughput is different" in on.journal(BLOCKS_END)[1]["answers"][0]


def test_the_plan_says_the_least_and_the_most(tmp_path):
    spec = Stage(tmp_path, budget="2 h").folder.spec

    assert len(certain(spec)) == 3 * 4
    assert estimate(certain(spec)).duration_s == 120
    assert most(spec) == estimate(expand(spec))
    cost = most(Stage(tmp_path / "less", budget="130 s").folder.spec)
    assert cost.duration_s + cost.starts_s == pytest.approx(130)
