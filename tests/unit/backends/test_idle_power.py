"""The idle power of a GPU is read before anything of ours is on it, and reaches the manifest with the telemetry."""

from harness.backends import local
from harness.backends.local import LocalDeployment
from harness.clock import SystemClock
from harness.spec import ExperimentSpec, Limits, Sharing, Timing, WorkloadSpec
from tests.support.fake_metrics import FakeGpus


class OneGpu(FakeGpus):
    """Draws 71 W while no replica runs."""

    started: list[str] = []  # noqa: RUF012 - of one test
    uuids = ("GPU-a",)

    def __init__(self, **_wanted):
        super().__init__(1)

    def idle_power(self):
        return {"GPU-a": 400.0 if self.started else 71.0}


class NotStarted:
    """In place of a replica's process."""

    def __init__(self, slot, *_rest):
        OneGpu.started.append(slot.name)
        self.slot = slot

    def status(self):
        return {"device_uuid": "GPU-a"}


def test_idle_power_is_read_before_the_first_replica_starts(tmp_path, monkeypatch):
    monkeypatch.setattr(local, "NvmlGpus", OneGpu)
    monkeypatch.setattr(local, "LocalReplica", NotStarted)
    experiment = ExperimentSpec(
        workload=WorkloadSpec(name="resnet50"),
        replicas=2,
        sharing=Sharing.TIME_SLICING,
        repeat=1,
        timing=Timing(record_s=5),
        metrics=["throughput"],
        limits=Limits(),
    )
    deployment = LocalDeployment(experiment, tmp_path, "c" * 32, clock=SystemClock(), forks=lambda *_: None)
    assert len(OneGpu.started) == 2
    telemetry = deployment.telemetry(tmp_path / "telemetry.csv")
    assert telemetry.finish().devices == [{"uuid": "GPU-a", "idle_w": 71.0}]
