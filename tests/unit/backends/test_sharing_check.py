"""Which ways of sharing a machine's GPUs allow, machine by machine."""

import os
import shutil
import subprocess

import pytest

from harness.backends import sharing_check
from harness.backends.devices import device_environment, in_use
from harness.backends.mps import foreign_daemons
from harness.backends.sharing_check import check_sharing
from harness.errors import BackendError, Severity
from harness.metrics.nvml import GpuFacts, gpu_facts
from harness.spec import Device, MpsLimits, Sharing, WorkloadSpec
from tests.support.experiments import experiment

GPU = GpuFacts("NVIDIA H200", 150_000_000_000, 149_000_000_000, compute_mode="default")


def gpu(**changes):
    values = {name: getattr(GPU, name) for name in GPU.__slots__}
    return GpuFacts(**values | changes)


@pytest.fixture(autouse=True)
def with_control(monkeypatch):
    monkeypatch.setattr(sharing_check.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(sharing_check, "foreign_daemons", lambda _gpus: [])


def found(sharing, machine=(GPU,), **wishes):
    findings = check_sharing(experiment(sharing=sharing, **wishes), machine, "no driver")
    return {finding.severity: finding.message for finding in findings}


@pytest.mark.parametrize("sharing", list(Sharing))
def test_only_time_slicing_and_what_is_left_as_found_can_do_without_a_gpu(sharing):
    assert (found(sharing, machine=()) == {}) == (sharing in {Sharing.TIME_SLICING, Sharing.AS_FOUND})


def test_what_is_left_as_found_is_not_looked_at():
    """The servers are on the GPU already, and on however many."""
    assert found(Sharing.AS_FOUND, machine=[gpu(processes=(17,), mig=True)], gpus=2) == {}


@pytest.mark.parametrize("sharing", [Sharing.EXCLUSIVE, Sharing.TIME_SLICING, Sharing.MPS])
def test_an_idle_gpu_is_fine(sharing):
    assert found(sharing, replicas=1) == {}


@pytest.mark.parametrize(
    ("sharing", "machine", "wishes", "message"),
    [
        (Sharing.EXCLUSIVE, {"processes": (17,)}, {}, "other processes compute on the GPU: 17."),
        (Sharing.TIME_SLICING, {"compute_mode": "exclusive-process"}, {}, "it takes one process"),
        (Sharing.TIME_SLICING, {"compute_mode": "prohibited"}, {}, "compute mode is prohibited"),
        (Sharing.MPS, {"mig": True}, {}, "the GPU is divided (MIG is on)"),
        (Sharing.MPS, {}, {"mps": MpsLimits(pinned_memory_gb=80)}, "2 replicas of 80 GB cannot fit into 150.0 GB"),
        (Sharing.MIG, {}, {}, "sharing mig needs a GPU with MIG on, and NVIDIA H200 has it off or has none."),
        (
            Sharing.MIG,
            {"mig": True, "mig_uuids": ("MIG-a",)},
            {},
            "2 replicas need a MIG instance each, and the machine has 1.",
        ),
        (Sharing.MPS, {}, {"workload": {"device": "cpu"}}, "runs on the CPU, where sharing mps means nothing"),
        (Sharing.TIME_SLICING, {}, {"gpus": 2}, "the campaign uses 2 GPUs, and the machine has 1."),
    ],
)
def test_what_cannot_be_is_an_error_with_its_reason(sharing, machine, wishes, message):
    assert message in found(sharing, machine=[gpu(**machine)], **wishes)[Severity.ERROR]


def test_exclusive_process_is_enough_for_mps_and_for_one_replica():
    machine = [gpu(compute_mode="exclusive-process")]
    assert found(Sharing.MPS, machine=machine) == {}
    assert found(Sharing.TIME_SLICING, machine=machine, replicas=1) == {}


def test_shares_that_add_up_to_more_than_the_gpu_are_worth_a_warning():
    message = found(Sharing.MPS, replicas=8, mps=MpsLimits(share=50))[Severity.WARNING]
    assert message == "8 replicas of 50 % of the multiprocessors add up to 400 %: they overlap."
    assert found(Sharing.MPS, replicas=8, mps=MpsLimits(share="1/N")) == {}


def test_a_daemon_that_runs_already_is_an_error(monkeypatch):
    monkeypatch.setattr(sharing_check, "foreign_daemons", lambda _gpus: [431])
    assert "an MPS daemon runs already (process 431)" in found(Sharing.MPS)[Severity.ERROR]


def test_a_machine_without_the_control_program_is_an_error(monkeypatch):
    monkeypatch.setattr(sharing_check.shutil, "which", lambda _name: None)
    assert "there is no nvidia-cuda-mps-control" in found(Sharing.MPS)[Severity.ERROR]


@pytest.mark.parametrize(
    ("served", "found"),
    [("GPU-a", True), ("GPU-b,GPU-a", True), ("GPU-b", False), ("0", True), (None, True)],
    ids=["this one", "this one too", "another one", "a number", "all"],
)
def test_a_daemon_matters_where_it_may_serve_the_gpu_that_is_used(tmp_path, served, found):
    program = tmp_path / "nvidia-cuda-mps-control"
    shutil.copy(shutil.which("sleep"), program)
    with subprocess.Popen([program, "60"], env={} if served is None else {"CUDA_VISIBLE_DEVICES": served}) as daemon:
        try:
            assert (daemon.pid in foreign_daemons(["GPU-a"])) == found
        finally:
            daemon.kill()


def test_a_daemon_that_has_ended_serves_nobody(tmp_path):
    program = tmp_path / "nvidia-cuda-mps-control"
    shutil.copy(shutil.which("true"), program)
    with subprocess.Popen([program]) as daemon:
        os.waitid(os.P_PID, daemon.pid, os.WEXITED | os.WNOWAIT)  # it stays in the list of processes
        assert daemon.pid not in foreign_daemons(["GPU-a"])


@pytest.fixture
def two_visible_gpus(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2, 5")
    machine = [gpu(uuid="GPU-two"), gpu(uuid="GPU-five")]
    monkeypatch.setattr("harness.backends.devices.gpu_facts", lambda: (machine, ""))


@pytest.mark.usefixtures("two_visible_gpus")
def test_replicas_take_several_gpus_in_turn():
    spec = experiment(gpus=2, replicas=3)
    given = [device_environment(spec, index)["CUDA_VISIBLE_DEVICES"] for index in range(3)]
    assert given == ["GPU-two", "GPU-five", "GPU-two"]
    with pytest.raises(BackendError, match="uses 3 GPUs, and CUDA_VISIBLE_DEVICES lets 2 through here"):
        device_environment(experiment(gpus=3), 0)


@pytest.mark.usefixtures("two_visible_gpus")
def test_a_chosen_gpu_is_named_by_its_uuid_and_no_choice_stays_none(monkeypatch):
    assert device_environment(experiment(gpus=1), 1) == {"CUDA_VISIBLE_DEVICES": "GPU-two"}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-a")
    assert device_environment(experiment(gpus=1), 1) == {}
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert device_environment(experiment(gpus=1), 1) == {"CUDA_VISIBLE_DEVICES": "GPU-two"}
    monkeypatch.setattr("harness.backends.devices.gpu_facts", lambda: ([gpu()], ""))
    assert device_environment(experiment(gpus=1), 1) == {}


@pytest.mark.usefixtures("two_visible_gpus")
@pytest.mark.parametrize(
    ("sharing", "gpus", "replicas", "given"),
    [
        (Sharing.TIME_SLICING, 2, 1, ["GPU-two,GPU-five"]),
        (Sharing.EXCLUSIVE, 2, 1, ["GPU-two,GPU-five"]),
        (Sharing.TIME_SLICING, 2, 2, ["GPU-two", "GPU-five"]),
        (Sharing.TIME_SLICING, 1, 1, ["GPU-two"]),
        (Sharing.MPS, 2, 1, ["GPU-two"]),
    ],
)
def test_a_replica_of_two_processes_gets_two_gpus_where_they_suffice(sharing, gpus, replicas, given):
    spec = experiment(gpus=gpus, replicas=replicas, sharing=sharing)
    spec = spec.model_copy(update={"workload": WorkloadSpec(name="data-parallel-training", batch_size=8)})
    assert [device_environment(spec, index)["CUDA_VISIBLE_DEVICES"] for index in range(replicas)] == given


@pytest.mark.usefixtures("two_visible_gpus")
@pytest.mark.parametrize(
    ("gpus", "replicas", "used"),
    [
        (1, [(Device.AUTO, {"device": "cuda:0", "device_uuid": "GPU-five"})], {"GPU-five"}),
        (1, [(Device.AUTO, {"device_uuid": "GPU-two", "second_device_uuid": "GPU-five"})], {"GPU-two", "GPU-five"}),
        (1, [(Device.AUTO, {}), (Device.AUTO, {})], {"GPU-two"}),
        (2, [(Device.AUTO, {})], {"GPU-two"}),
        (2, [(Device.CPU, {}), (Device.CUDA, {})], {"GPU-five"}),
        (2, [(Device.CPU, {}), (Device.AUTO, {"device": "cpu", "device_uuid": ""})], set()),
    ],
)
def test_the_gpus_in_use_are_those_that_the_replicas_say_or_were_given(monkeypatch, gpus, replicas, used):
    assert in_use(experiment(gpus=gpus), replicas) == used
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-a")
    monkeypatch.setattr("harness.backends.devices.gpu_facts", lambda: ([], "no driver"))
    assert in_use(experiment(gpus=gpus), replicas) == set()


def test_without_a_gpu_nothing_is_chosen(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr("harness.backends.devices.gpu_facts", lambda: ([], "no driver"))
    assert device_environment(experiment(gpus=2), 1) == {}


def test_each_replica_has_a_mig_instance_of_its_own(monkeypatch):
    machine = [gpu(mig=True, mig_uuids=("MIG-a", "MIG-b"))]
    monkeypatch.setattr("harness.backends.devices.gpu_facts", lambda: (machine, ""))
    spec = experiment(sharing=Sharing.MIG, replicas=2)
    assert [device_environment(spec, index)["CUDA_VISIBLE_DEVICES"] for index in range(2)] == ["MIG-a", "MIG-b"]
    with pytest.raises(BackendError, match="replica 2 has no MIG instance: there are 2"):
        device_environment(spec, 2)


class _Nvml:
    """NVML of a machine with one GPU divided in two, of which one place is empty."""

    class NVMLError(Exception):
        pass

    class _Memory:
        total, free = 80, 70

    class _Process:
        pid = 12

    def nvmlInit(self):  # noqa: N802 - NVML's names
        pass

    nvmlShutdown = nvmlInit  # noqa: N815

    def nvmlDeviceGetCount(self):  # noqa: N802
        return 1

    def nvmlDeviceGetHandleByIndex(self, index):  # noqa: N802
        return index

    def nvmlDeviceGetMemoryInfo(self, _handle):  # noqa: N802
        return self._Memory

    def nvmlDeviceGetName(self, _handle):  # noqa: N802
        return "A100"

    def nvmlDeviceGetComputeMode(self, _handle):  # noqa: N802
        raise self.NVMLError

    def nvmlDeviceGetMigMode(self, _handle):  # noqa: N802
        return 1, 1

    def nvmlDeviceGetComputeRunningProcesses(self, _handle):  # noqa: N802
        return [self._Process]

    def nvmlDeviceGetCpuAffinity(self, _handle, words):  # noqa: N802
        return [0b1010, *[0] * (words - 1)]

    def nvmlDeviceGetMaxMigDeviceCount(self, _handle):  # noqa: N802
        return 2

    def nvmlDeviceGetMigDeviceHandleByIndex(self, _handle, place):  # noqa: N802
        if place == 0:
            raise self.NVMLError
        return "instance"

    def nvmlDeviceGetUUID(self, handle):  # noqa: N802
        return f"MIG-{handle}"


def test_what_nvml_says_of_a_divided_gpu():
    assert gpu_facts(_Nvml()) == (
        [
            GpuFacts(
                "A100",
                80,
                70,
                uuid="MIG-0",
                compute_mode="",
                mig=True,
                mig_uuids=("MIG-instance",),
                processes=(12,),
                near_cpus=(1, 3),
            )
        ],
        "",
    )


def test_a_gpu_that_is_hidden_is_none(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert gpu_facts(_Nvml()) == ([], "the driver shows no device that CUDA_VISIBLE_DEVICES lets through")
