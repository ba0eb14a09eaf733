"""Who gets which CPUs: whole cores, near the GPU, nobody's twice; and who is refused."""

import os

import pytest

from harness.backends import devices
from harness.errors import BackendError, IssueLevel
from harness.metrics.nvml import GpuFacts
from harness.spec import ConditionSpec, NeighbourSpec, WorkloadSpec
from tests.support.experiments import experiment


def gpu(*near):
    return GpuFacts("a GPU", 1, 1, near_cpus=near)


@pytest.fixture(autouse=True)
def eight_cpus_of_four_cores(tmp_path, monkeypatch):
    """CPU n and n + 4 are threads of core n; cores 0 and 1 are one node, 2 and 3 the other."""
    for cpu in range(8):
        (tmp_path / f"cpu{cpu}/topology").mkdir(parents=True)
        (tmp_path / f"cpu{cpu}/topology/thread_siblings_list").write_text(f"{cpu % 4},{cpu % 4 + 4}\n")
    monkeypatch.setattr(devices, "TOPOLOGY", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)))


def dealt(wanted, replicas, *gpus, **changes):
    return devices.deal_cpus(experiment(replicas=replicas, workload={"cpus_per_replica": wanted}, **changes), gpus)


def test_the_threads_of_a_core_go_to_one_replica():
    assert dealt(2, 3) == [(0, 4), (1, 5), (2, 6)]
    assert dealt(3, 2) == [(0, 1, 4), (2, 5, 6)]


def test_the_cpus_near_the_gpu_are_dealt_out_first():
    assert dealt(2, 3, gpu(2, 3, 6, 7)) == [(2, 6), (3, 7), (0, 4)]
    assert dealt(2, 2, gpu(0, 1, 4, 5), gpu(2, 3, 6, 7), gpus=2) == [(0, 4), (2, 6)]
    assert dealt(1, 1, gpu()) == [(0,)], "where the driver does not tell, any are near"
    on_cpu = experiment(replicas=1, workload={"cpus_per_replica": 2, "device": "cpu"})
    assert devices.deal_cpus(on_cpu, [gpu(2, 3, 6, 7)]) == [(0, 4)]


def test_neighbours_have_their_own_and_who_has_no_wish_none():
    beside = NeighbourSpec(workload=WorkloadSpec(name="whisper", cpus_per_replica=1), replicas=2)
    condition = ConditionSpec(name="beside", neighbours=[beside])

    assert dealt(2, 1, condition=condition) == [(0, 4), (1,), (5,)]
    assert dealt(None, 1, condition=condition) == [(), (0,), (4,)]


def test_more_than_there_are_is_refused_before_and_at_the_start():
    spec = experiment(replicas=3, workload={"cpus_per_replica": 3})

    [finding] = devices.check_cpus(spec, [])
    assert (finding.severity, finding.check) == (IssueLevel.ERROR, "cpus")
    assert finding.message == "the replicas want 9 CPUs of their own, and the harness may use 8."
    with pytest.raises(BackendError, match="want 9 CPUs of their own"):
        devices.deal_cpus(spec, [])


def test_who_is_far_from_its_gpu_is_told():
    spec = experiment(replicas=3, workload={"cpus_per_replica": 2})

    [finding] = devices.check_cpus(spec, [gpu(2, 3, 6, 7)])
    assert finding.severity is IssueLevel.WARNING
    assert finding.message.startswith("1 replica gets CPUs that are not near their GPU")
    assert list(devices.check_cpus(experiment(replicas=2, workload={"cpus_per_replica": 2}), [gpu(2, 3, 6, 7)])) == []
    assert list(devices.check_cpus(experiment(replicas=2), [gpu(2)])) == []
