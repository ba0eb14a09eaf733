"""One object a sharing mode: what each refuses of a machine, and what it asks of a cluster."""

import os
import shutil
import subprocess

import pytest

from harness.errors import IssueLevel
from harness.sharing import modes
from harness.sharing.mode import ThisMachine
from harness.sharing.modes import MODES, mode_of
from harness.sharing.mps import Mps
from harness.spec import MpsLimits, Sharing, WorkloadSpec
from tests.support.cuda_library import library_folder
from tests.support.experiments import experiment
from tests.support.machines import GPU, gpu

RUNNING = Mps.running


@pytest.fixture(autouse=True)
def with_control(monkeypatch):
    monkeypatch.setattr("harness.sharing.mps.shutil.which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(Mps, "running", lambda _self, _gpus: [])


def found(sharing, machine=(GPU,), **wishes):
    findings = mode_of(sharing).check(experiment(sharing=sharing, **wishes), machine, "no driver")
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
    assert message in found(sharing, machine=[gpu(**machine)], **wishes)[IssueLevel.ERROR]


@pytest.mark.parametrize(
    ("driver", "message"),
    [
        ("580.159.04", "need driver 590.44.01 or newer, which has CUDA 13.1; this machine has 580.159.04."),
        ("590.44.01", "are not measured: no driver that has them (590.44.01 or newer) was there to try them"),
        ("", "this machine has a driver that does not say its version."),
    ],
)
def test_static_partitions_are_refused_with_the_driver_that_they_need_and_the_one_there_is(driver, message):
    limits = MpsLimits(share="1/N", static_partitions=True)
    assert message in found(Sharing.MPS, machine=[gpu(driver=driver)], mps=limits)[IssueLevel.ERROR]


def test_exclusive_process_is_enough_for_mps_and_for_one_replica():
    machine = [gpu(compute_mode="exclusive-process")]
    assert found(Sharing.MPS, machine=machine) == {}
    assert found(Sharing.TIME_SLICING, machine=machine, replicas=1) == {}


def test_shares_that_add_up_to_more_than_the_gpu_are_worth_a_warning():
    message = found(Sharing.MPS, replicas=8, mps=MpsLimits(share=50))[IssueLevel.WARNING]
    assert message == "8 replicas of 50% of the multiprocessors add up to 400%: they overlap."
    assert found(Sharing.MPS, replicas=8, mps=MpsLimits(share="1/N")) == {}


def test_a_daemon_that_runs_already_is_an_error(monkeypatch):
    monkeypatch.setattr(Mps, "running", lambda _self, _gpus: [431])
    assert "an MPS daemon runs already (process 431)" in found(Sharing.MPS)[IssueLevel.ERROR]


def test_a_machine_without_the_control_program_is_an_error(monkeypatch):
    monkeypatch.setattr("harness.sharing.mps.shutil.which", lambda _name: None)
    assert "there is no nvidia-cuda-mps-control" in found(Sharing.MPS)[IssueLevel.ERROR]


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
            assert (daemon.pid in RUNNING(Mps(), ["GPU-a"])) == found
        finally:
            daemon.kill()


@pytest.mark.parametrize(("nodes", "found"), [(["nvidia0"], False), (["nvidia0", "nvidia1"], True)])
def test_a_daemon_serves_no_gpu_whose_device_node_its_container_lacks(tmp_path, monkeypatch, nodes, found):
    for minor, uuid in enumerate(("GPU-b", "GPU-a")):
        told = tmp_path / "gpus" / f"0000:0{minor}:00.0" / "information"
        told.parent.mkdir(parents=True)
        told.write_text(f"Model: \t\t NVIDIA H200\nGPU UUID: \t {uuid}\nDevice Minor: \t {minor}\n")
    for node in nodes:
        (tmp_path / node).touch()
    monkeypatch.setattr("harness.sharing.mps.GPUS_OF_THE_DRIVER", tmp_path / "gpus")
    monkeypatch.setattr("harness.sharing.mps.DEVICE_NODE", f"{tmp_path}/nvidia{{minor}}")
    program = tmp_path / "nvidia-cuda-mps-control"
    shutil.copy(shutil.which("sleep"), program)
    with subprocess.Popen([program, "60"], env={}) as daemon:
        try:
            assert (daemon.pid in RUNNING(Mps(), ["GPU-a"])) == found
        finally:
            daemon.kill()


def test_a_daemon_that_has_ended_serves_nobody(tmp_path):
    program = tmp_path / "nvidia-cuda-mps-control"
    shutil.copy(shutil.which("true"), program)
    with subprocess.Popen([program]) as daemon:
        os.waitid(os.P_PID, daemon.pid, os.WEXITED | os.WNOWAIT)  # it stays in the list of processes
        assert daemon.pid not in RUNNING(Mps(), ["GPU-a"])


def test_every_sharing_mode_is_one_object_that_says_how_a_cluster_comes_under_it():
    assert [mode.sharing for mode in MODES.values()] == list(Sharing)
    nothing_does = [mode.sharing for mode in MODES.values() if not mode.switch_command]
    assert nothing_does == [Sharing.GREEN_CONTEXTS, Sharing.AS_FOUND]
    assert all(mode.switch_command.startswith(("harness node sharing ", "")) for mode in MODES.values())


@pytest.mark.parametrize("sharing", list(Sharing))
@pytest.mark.parametrize(("pipes", "under"), [("/mps", True), ("", False), (None, None)])
def test_whether_a_replica_is_under_mps_is_seen_by_the_mode(sharing, pipes, under):
    status = {} if pipes is None else {"mps_pipe_directory": pipes}
    wanted = sharing in {Sharing.MPS, Sharing.GREEN_CONTEXTS}
    assert bool(mode_of(sharing).contradiction(status)) == (under not in {None, wanted})


@pytest.mark.parametrize(
    ("device", "wrong"),
    [
        ("NVIDIA H100 80GB HBM3", {Sharing.MIG}),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", {Sharing.EXCLUSIVE}),
        ("", set()),
    ],
)
def test_whether_a_replica_is_on_an_instance_is_seen_by_the_devices_name(device, wrong):
    status = {"device": "cuda", "device_name": device}
    assert {sharing for sharing in Sharing if mode_of(sharing).contradiction(status)} == wrong


@pytest.fixture
def groups(tmp_path_factory, monkeypatch):
    """A Hopper GPU of the stand-in for CUDA's driver."""
    monkeypatch.setenv("LD_LIBRARY_PATH", library_folder(tmp_path_factory.mktemp("driver")))
    modes._sizes.cache_clear()
    yield
    modes._sizes.cache_clear()


@pytest.mark.usefixtures("groups")
@pytest.mark.parametrize(
    ("wishes", "variables", "severity", "message"),
    [
        (
            {"replicas": 3},
            {},
            IssueLevel.WARNING,
            "each of 3 replicas has 40 of the 132 multiprocessors of NVIDIA H200",
        ),
        ({"replicas": 3}, {}, IssueLevel.WARNING, "; 12 are unused."),
        ({"replicas": 16}, {"FAKE_CUDA_SMS": "128"}, IssueLevel.WARNING, "8 of the 128"),
        ({"replicas": 6, "gpus": 2}, {}, IssueLevel.WARNING, "each of 3 replicas has 40"),
        (
            {"replicas": 17},
            {},
            IssueLevel.ERROR,
            "divides the 132 multiprocessors of NVIDIA H200 into 16 groups at most",
        ),
        (
            {},
            {"FAKE_CUDA_VERSION": "12020"},
            IssueLevel.ERROR,
            "the driver is of CUDA 12.2, and they need 12.4 or newer",
        ),
        ({}, {"FAKE_CUDA_FAILS": "100"}, IssueLevel.ERROR, "no CUDA-capable device is detected"),
        (
            {"workload": WorkloadSpec(name="tiny", model="data-parallel-training")},
            {},
            IssueLevel.ERROR,
            "tiny starts processes of its own",
        ),
    ],
)
def test_how_many_multiprocessors_each_replica_gets_is_known_before(monkeypatch, wishes, variables, severity, message):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    issues = mode_of(Sharing.GREEN_CONTEXTS).check(experiment(sharing=Sharing.GREEN_CONTEXTS, **wishes), (GPU, GPU), "")
    assert any(issue.severity is severity and message in issue.message for issue in issues)


@pytest.mark.usefixtures("groups")
def test_what_mps_refuses_is_refused_for_groups_under_it_too(monkeypatch):
    assert "the GPU is divided (MIG is on)" in found(Sharing.GREEN_CONTEXTS, machine=[gpu(mig=True)])[IssueLevel.ERROR]
    monkeypatch.setattr(Mps, "running", lambda _self, _gpus: [431])
    assert "an MPS daemon runs already (process 431)" in found(Sharing.GREEN_CONTEXTS)[IssueLevel.ERROR]


@pytest.mark.parametrize(
    ("gpus", "taken"),
    [([], ["0/3", "1/3", "2/3"]), (["GPU-a", "GPU-b"], ["0/3", "0/3", "1/3", "1/3", "2/3", "2/3"])],
)
def test_no_two_replicas_on_a_gpu_take_the_same_group(tmp_path, monkeypatch, gpus, taken):
    """Neighbours are counted after the measured replicas, and have groups of their own."""
    monkeypatch.setattr("harness.sharing.mps.MpsDaemon", lambda _host, logs, _gpus: FakeDaemon(logs.name))
    host = ThisMachine("test", None, {}, tmp_path / "mps")
    setup = mode_of(Sharing.GREEN_CONTEXTS).set_up(host, gpus=gpus, limits=None, replicas_per_gpu=3)
    told = [setup.environment(position) for position in range(len(taken))]
    assert [variables["REPLICA_SM_GROUP"] for variables in told] == taken
    assert {variables["REPLICA_SHARING"] for variables in told} == {"harness.replica.green_contexts:join"}
    assert len({(variables["PIPES"], variables["REPLICA_SM_GROUP"]) for variables in told}) == len(taken)
    assert setup.put_back() == []


class FakeDaemon:
    def __init__(self, pipes):
        self.environment = {"PIPES": pipes}

    def stop(self):
        return []
