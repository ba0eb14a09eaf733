"""The local backend with real processes."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import urllib.request
from pathlib import Path

import psutil
import pytest

from harness.backends.local_replica import end_strays
from harness.errors import BackendError, ReplicaDiedError
from harness.metrics.nvml import GpuFacts
from harness.results import layout
from harness.spec import WorkloadSpec
from tests.support.cgroups import make_group
from tests.support.processes import DRAINED_S, eventually, marked


def test_every_replica_has_served_when_deploy_returns(deploy):
    deployment = deploy(replicas=3)

    for target in deployment.targets:
        with urllib.request.urlopen(target.metrics_url, timeout=60) as answer:
            text = answer.read().decode()
        served = next(line for line in text.splitlines() if line.startswith("inference_requests_total"))
        assert float(served.split()[1]) >= 1
        assert psutil.Process(target.pid).is_running()
    assert len({target.metrics_url for target in deployment.targets}) == 3


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU cannot be dealt out to two")
def test_each_replica_runs_on_cpus_of_its_own_and_says_which(deploy):
    deployment = deploy(replicas=2, workload={"cpus_per_replica": 1})

    pinned = [psutil.Process(target.pid).cpu_affinity() for target in deployment.targets]
    assert [len(cpus) for cpus in pinned] == [1, 1]
    assert pinned[0] != pinned[1]
    assert [status["cpus"] for status in deployment.statuses()] == pinned


def test_stop_drains_and_says_nothing_when_all_ends_well(deploy, tmp_path):
    deployment = deploy(replicas=2)

    assert deployment.stop(timeout_s=DRAINED_S) == []
    assert deployment.stop(timeout_s=DRAINED_S) == []
    status = json.loads((layout.replica_folder(tmp_path, 0) / "replica.json").read_text())
    assert status["phase"] == "stopped"


def test_a_death_is_noticed_and_named_with_its_last_lines(deploy, tmp_path):
    told = tmp_path / "told"
    deployment = deploy(factory="dies_when_told", replicas=2, told=str(told), replica=1)

    victim = psutil.Process(deployment.targets[1].pid)
    told.touch()
    victim.wait(timeout=120)
    assert eventually(lambda: deploy.deaths)
    assert [death.replica for death in deployment.deaths] == [1]
    assert "out of luck" in str(deployment.deaths[0])
    assert "exited with 7" in str(deployment.deaths[0])


def test_a_killed_replica_is_named_with_its_signal(deploy):
    deployment = deploy(replicas=1)

    os.kill(deployment.targets[0].pid, signal.SIGKILL)

    assert eventually(lambda: deploy.deaths)
    assert "was killed by signal 9" in str(deploy.deaths[0])


def test_grandchildren_that_ignore_sigterm_end_with_their_replica(deploy, tmp_path, campaign_id):
    deployment = deploy(factory="with_children", replicas=1)
    pids = [int(path.name.removeprefix("pid-")) for path in layout.replica_folder(tmp_path, 0).glob("pid-*")]
    assert len(pids) == 2
    assert all(psutil.pid_exists(pid) for pid in pids)

    deployment.stop(timeout_s=DRAINED_S)

    assert marked(campaign_id) == []


def test_a_replica_that_dies_while_starting_is_an_error_with_its_last_lines(deploy, campaign_id):
    with pytest.raises(ReplicaDiedError, match="no weights on this machine") as caught:
        deploy(factory="tests.support.dies_at_import:make", replicas=2)

    assert caught.value.advice
    assert marked(campaign_id) == []


def test_a_replica_that_never_serves_is_an_error_that_names_its_phase(deploy, campaign_id):
    with pytest.raises(BackendError, match=r"replica 0 \(and 1 more\) did not serve within 10 s \(phase warming\)"):
        deploy(factory="hangs", replicas=2, timing={"ready_timeout_s": 10})

    assert marked(campaign_id) == []


def test_a_replica_that_silently_runs_on_the_cpu_of_a_gpu_machine_is_an_error(deploy, monkeypatch):
    gpu = GpuFacts("a GPU that torch does not see", total_bytes=16_000_000_000, free_bytes=16_000_000_000)
    monkeypatch.setattr("harness.backends.local.gpu_facts", lambda: ([gpu], ""))
    workload = WorkloadSpec(name="resnet50", threads=1, options={"model_size": "tiny"})

    with pytest.raises(BackendError, match=r"replica 0 runs on the CPU although this machine has a GPU \(a GPU that"):
        deploy(workload=workload, replicas=1)


def test_deploying_can_be_aborted(deploy, campaign_id):
    abort = threading.Event()
    threading.Timer(0.5, abort.set).start()

    begun_s = time.monotonic()
    with pytest.raises(BackendError, match="stopped before every replica had served"):
        deploy(abort=abort, factory="slow_to_load", replicas=2, load_s=600)

    assert time.monotonic() - begun_s < 60
    assert marked(campaign_id) == []


HARNESS = """
    import sys, threading, time
    from pathlib import Path
    from harness.backends.local import LocalBackend
    from tests.support.experiments import experiment
    LocalBackend(sys.argv[1]).deploy(
        experiment(factory="with_children", replicas=2), Path(sys.argv[2]), abort=threading.Event(), on_death=print
    )
    print("ready", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def other_harness(tmp_path, campaign_id):
    """Another process that has deployed."""
    command = [sys.executable, "-c", textwrap.dedent(HARNESS), campaign_id, str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGSEGV])
def test_no_process_survives_a_harness_that_dies(other_harness, campaign_id, number):
    assert len(marked(campaign_id)) >= 8  # a guard, a replica, a child and a grandchild, twice

    other_harness.send_signal(number)
    other_harness.wait()

    assert eventually(lambda: not marked(campaign_id)), marked(campaign_id)


def test_a_sweep_ends_what_killed_guards_left(other_harness, campaign_id):
    guards = [process for process in marked(campaign_id) if "supervisor.py" in " ".join(process.cmdline())]
    for guard in guards:
        guard.kill()
    other_harness.kill()
    other_harness.wait()  # until then its descendants are ours, too
    assert eventually(lambda: len(marked(campaign_id)) <= 4), "a replica outlives its guard"

    end_strays(campaign_id)

    assert marked(campaign_id) == []
    assert end_strays(campaign_id) == []


def test_a_sweep_leaves_other_campaigns_alone(deploy, campaign_id):
    deployment = deploy(replicas=1)

    end_strays(f"{campaign_id}-other")

    assert psutil.Process(deployment.targets[0].pid).is_running()


def test_replicas_find_workloads_in_the_folder_the_harness_was_started_in(deploy, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(Path("tests/support/tiny_workload.py").read_text())
    monkeypatch.chdir(tmp_path)

    assert len(deploy(factory="mine:steady", replicas=1).targets) == 1


def test_a_replica_that_the_kernel_kills_for_want_of_memory_says_so_with_the_limit(tmp_path, campaign_id):
    group = make_group("memory", f"harness-{campaign_id[:40]}")
    (group / "memory.limit_in_bytes").write_text("400000000")
    script = textwrap.dedent(f"""
        import os, pathlib, threading
        pathlib.Path({str(group / "cgroup.procs")!r}).write_text(str(os.getpid()))
        from harness.backends.local import LocalBackend
        from tests.support.experiments import experiment
        died = threading.Event()
        deaths = []
        def died_of(death):
            deaths.append(death)
            died.set()
        told = pathlib.Path({str(tmp_path / "told")!r})
        spec = experiment(factory="hungry", replicas=1, told=str(told))
        deployment = LocalBackend({campaign_id!r}).deploy(
            spec, pathlib.Path({str(tmp_path)!r}), abort=threading.Event(), on_death=died_of
        )
        told.touch()
        died.wait(60)
        deployment.stop(timeout_s=10)
        print(deaths[0].code.value, deaths[0].brief, sep="|")
    """)
    try:
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    finally:
        eventually(lambda: not (group / "cgroup.procs").read_text())
        group.rmdir()

    assert done.stdout.strip() == (
        "out-of-memory|replica 0 ended: out of memory, killed by the kernel (cgroup limit 0.4 GB)"
    ), done.stderr
