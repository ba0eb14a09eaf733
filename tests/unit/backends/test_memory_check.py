"""How much memory a replica is expected to need: every built-in workload has an estimate, and training grows with its batch."""

import os

import psutil
import pytest

from harness.backends import local_check
from harness.campaign import preflight
from harness.errors import IssueLevel, ReasonCode
from harness.metrics.nvml import GpuFacts
from harness.spec import ExperimentSpec, Limits, Sharing, Timing, WorkloadSpec
from harness.spec.workload import BUILTIN_WORKLOADS
from tests.support.cgroups import Machine


def findings(name, replicas, *, check="memory", sharing=Sharing.TIME_SLICING, gpus=1, **workload):
    experiment = ExperimentSpec(
        workload=WorkloadSpec(name=name, **workload),
        replicas=replicas,
        sharing=sharing,
        gpus=gpus,
        repeat=1,
        timing=Timing(),
        metrics=["throughput"],
        limits=Limits(),
    )
    return [finding for finding in local_check.check_machine([experiment]) if finding.check == check]


@pytest.fixture
def ten_gigabytes_free(monkeypatch):
    memory = psutil.virtual_memory()._replace(available=10_000_000_000)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)


def test_every_built_in_workload_has_an_estimate():
    assert set(local_check.NEEDS_GB) == set(BUILTIN_WORKLOADS)


@pytest.mark.usefixtures("ten_gigabytes_free")
@pytest.mark.parametrize(
    ("name", "workload", "fit"),
    [
        ("resnet50", {"batch_size": 128}, 8),
        ("resnet50-training", {"batch_size": 2}, 7),
        ("resnet50-training", {"batch_size": 128}, 5),
        ("bert-training", {"batch_size": 101}, 2),
        ("bert-training", {"batch_size": 101, "options": {"model_size": "tiny"}}, 16),
        ("data-parallel-training", {"batch_size": 51}, 4),
        ("data-parallel-training", {"options": {"model_size": "tiny"}}, 8),
        ("diffusion", {}, 6),
        ("whisper", {}, 6),
        ("whisper", {"memory_gb": 5}, 2),
    ],
)
def test_as_many_replicas_as_fit_are_let_through_and_one_more_is_refused(name, workload, fit):
    assert findings(name, fit, **workload) == []
    (refused,) = findings(name, fit + 1, **workload)
    assert (refused.severity, refused.code) == (IssueLevel.ERROR, ReasonCode.OUT_OF_MEMORY)
    assert f"{fit + 1} replicas of {name} need about" in refused.message
    assert "10.0 GB are free" in refused.message


@pytest.mark.usefixtures("ten_gigabytes_free")
def test_what_every_load_of_a_sweep_needs_is_refused_once():
    server = {"command": ["no-such-engine", "{port}"], "protocol": "openai-chat"}
    loads = [
        ExperimentSpec(
            workload=WorkloadSpec(name=f"llm-c{load}", variant_of="llm", memory_gb=30, server=server),
            replicas=1,
            sharing=Sharing.TIME_SLICING,
            repeat=1,
            timing=Timing(),
            metrics=["throughput"],
            limits=Limits(),
        )
        for load in (4, 8)
    ]
    errors = [issue.message for issue in local_check.check_machine(loads) if issue.severity is IssueLevel.ERROR]

    assert errors == [
        "1 replica of llm needs about 30.0 GB of memory (30 GB each), and 10.0 GB are free.",
        "the workload llm starts no-such-engine, and there is no such program.",
    ]


@pytest.mark.parametrize(
    ("sharing", "gpus", "replicas", "refused"),
    [
        (Sharing.EXCLUSIVE, 2, 2, False),
        (Sharing.EXCLUSIVE, 1, 1, False),
        (Sharing.TIME_SLICING, 1, 2, True),
        (Sharing.TIME_SLICING, 2, 2, False),
        (Sharing.TIME_SLICING, 2, 3, True),
    ],
)
def test_the_replicas_of_a_gpu_are_held_against_the_memory_of_that_gpu(monkeypatch, sharing, gpus, replicas, refused):
    here = [
        GpuFacts(name="GPU", total_bytes=80 << 30, free_bytes=79_000_000_000, uuid=f"GPU-{one}") for one in range(2)
    ]
    monkeypatch.setattr(local_check, "gpu_facts", lambda: (here, ""))
    found = findings("whisper", replicas, check="GPU memory", sharing=sharing, gpus=gpus, memory_gb=60)
    assert bool(found) is refused


@pytest.mark.usefixtures("ten_gigabytes_free")
@pytest.mark.parametrize(
    ("workload", "severity"),
    [
        ({}, IssueLevel.ERROR),
        ({"variant_of": "bert-training"}, IssueLevel.WARNING),
        ({"variant_of": "bert-training", "memory_gb": 81}, IssueLevel.ERROR),
    ],
)
def test_a_batch_of_several_is_tried_on_a_gpu_though_its_estimate_is_too_large(monkeypatch, workload, severity):
    gpu = GpuFacts(name="GPU", total_bytes=80 << 30, free_bytes=79_000_000_000, uuid="GPU-0")
    monkeypatch.setattr(local_check, "gpu_facts", lambda: ([gpu], ""))

    (issue,) = findings("bert-training", 1, check="GPU memory", batch_size=2048, **workload)

    assert issue.severity is severity
    if "memory_gb" not in workload:
        assert findings("bert-training", 1, batch_size=2048, **workload) == []  # of the host it takes no more


@pytest.mark.usefixtures("ten_gigabytes_free")
def test_what_a_cgroup_leaves_of_memory_and_cpus_counts(tmp_path, monkeypatch):
    machine = Machine(tmp_path).in_group("/a").has("", cgroup__controllers="cpu memory")
    machine.has("a", memory__max=400_000_000, memory__current=100_000_000, cpu__max="50000 100000")
    monkeypatch.setattr(local_check, "Cgroup", lambda: machine.cgroup)

    (refused,) = findings("resnet50", 1)
    assert (refused.severity, refused.code) == (IssueLevel.ERROR, ReasonCode.OUT_OF_MEMORY)
    assert "0.3 GB are free" in refused.message
    (limited,) = findings("resnet50", 1, check="cpus")
    assert limited.severity is IssueLevel.WARNING

    monkeypatch.setattr(preflight, "Cgroup", lambda: machine.cgroup)
    cpus = len(os.sched_getaffinity(0))
    said = {check.name: (check.ok, check.found) for check in preflight.examine() if check.name in {"cpus", "memory"}}
    assert said == {
        "cpus": (False, f"0.5 of {cpus} CPUs by the cgroup's quota"),
        "memory": (False, "0.3 GB available of the cgroup's limit of 0.4 GB"),
    }
