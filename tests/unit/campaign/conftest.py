"""A campaign folder on which a campaign is run, with a fake backend, simulated time and scripted metrics."""

import dataclasses

import pytest

from harness.campaign import events
from harness.campaign.folder import create
from harness.campaign.runner import CampaignRunner
from harness.results.manifest import read_manifest
from harness.spec import ConditionSpec, NeighbourSpec, Timing, WorkloadSpec
from tests.support.experiments import campaign
from tests.support.fake_backend import FakeBackend
from tests.support.fake_metrics import FakeGpus
from tests.support.simulated_clock import SimulatedClock

TIMING = Timing(step_s=1, stabilise_s=10, record_s=20, cooldown_s=30)
BESIDE = ConditionSpec(
    name="beside", neighbours=[NeighbourSpec(workload=WorkloadSpec(name="noisy", factory="a:b"), replicas=2)]
)
SENT = [WorkloadSpec(name="tiny", factory="a:b", scenario={"kind": "http", "rate": 10})]
ONE, TWO = "tiny_r1_time-slicing_rep1", "tiny_r2_time-slicing_rep1"


def vars_of(event):
    return {field.name: getattr(event, field.name) for field in dataclasses.fields(event)}


class Stage:
    """A campaign folder, and whatever happens on it."""

    def __init__(self, results, **changes):
        values = {"timing": TIMING, "metrics": ["latency_p50", "throughput", "total_count", "cpu_psi", "gpu_power"]}
        self.folder = create(results, campaign(**values | changes), text="text", source="shipped:test")
        self.backend = FakeBackend()
        self.clock = SimulatedClock()  # of all runs: two recordings of the same second would be the same
        self.events = []
        self.react = lambda _event: None

    def runner(self, clock=None, gpus=FakeGpus):
        def listen(event):
            self.events.append(event)
            self.react(event)

        return CampaignRunner(self.folder, self.backend, clock=clock or self.clock, listener=listen, gpus=gpus)

    def when(self, kind, do, **fields):
        """Do something at every event of a kind that has these values."""

        def react(event):
            if isinstance(event, kind) and fields.items() <= vars_of(event).items():
                do()

        self.react = react

    def notices(self):
        return [event.message for event in self.events if isinstance(event, events.Notice)]

    def seconds(self, step):
        return [e.seconds for e in self.events if isinstance(e, events.StepEnds) and e.step == step]

    def attempts(self):
        """Names of what lies among the attempts."""
        return sorted(folder.name for folder in (self.folder.path / "attempts").iterdir())

    def steps(self, experiment_id):
        return [e.step for e in self.events if isinstance(e, events.StepBegins) and e.experiment_id == experiment_id]

    def manifest(self, experiment_id):
        return read_manifest(self.folder.final_folder(experiment_id))


@pytest.fixture
def stage(tmp_path):
    return lambda **changes: Stage(tmp_path, **changes)
