"""Which GPU each replica gets, and what NVML says of a divided GPU."""

from types import SimpleNamespace

import pytest

from harness.backends.devices import device_environment, in_use
from harness.errors import BackendError
from harness.metrics.nvml import GpuFacts, gpu_facts
from harness.spec import Device, Sharing, WorkloadSpec
from tests.support.experiments import experiment
from tests.support.machines import gpu


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


def divided():
    """NVML of a machine with one GPU divided in two, of which one place is empty."""

    def handle_of(_gpu, place):
        if place == 0:
            raise ValueError
        return "instance"

    return SimpleNamespace(
        NVMLError=ValueError,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetMemoryInfo=lambda _: SimpleNamespace(total=80, free=70),
        nvmlDeviceGetName=lambda _: "A100",
        nvmlDeviceGetComputeMode=lambda _: handle_of(_, 0),  # it does not say
        nvmlSystemGetDriverVersion=lambda: "580.159.04",
        nvmlDeviceGetMigMode=lambda _: (1, 1),
        nvmlDeviceGetComputeRunningProcesses=lambda _: [SimpleNamespace(pid=12)],
        nvmlDeviceGetCpuAffinity=lambda _, words: [0b1010, *[0] * (words - 1)],
        nvmlDeviceGetMaxMigDeviceCount=lambda _: 2,
        nvmlDeviceGetMigDeviceHandleByIndex=handle_of,
        nvmlDeviceGetUUID=lambda handle: f"MIG-{handle}",
    )


def test_what_nvml_says_of_a_divided_gpu():
    assert gpu_facts(divided()) == (
        [
            GpuFacts(
                "A100",
                80,
                70,
                uuid="MIG-0",
                compute_mode="",
                driver="580.159.04",
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
    assert gpu_facts(divided()) == ([], "the driver shows no device that CUDA_VISIBLE_DEVICES lets through")
