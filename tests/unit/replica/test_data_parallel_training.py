"""Two processes train one network: they agree on it, it is that of one process at twice the batch, and they end together.

The second is told each step, deaf to signals, gone with the replica and never without it.
"""

import os
import signal
import subprocess
import sys

import psutil
import pytest
import torch
import torch.distributed as dist

from harness.replica import registry
from harness.replica.errors import ExitCode, OutOfMemoryError, SettingError, WorkloadError
from harness.replica.models import data_parallel_training
from harness.replica.models.data_parallel_training import _error_of
from harness.replica.settings import Settings
from tests.support import second_rank
from tests.support.processes import eventually

STEPS = 6
TINY = {"model_size": "tiny", "samples": 40}


def made(name="data-parallel-training", batch_size=4, options=None, **changes):
    options = TINY | (options or {})
    return registry.load(Settings(workload=name, device="cpu", batch_size=batch_size, options=options, **changes))


@pytest.fixture
def pair(tmp_path, monkeypatch):
    """The replica's side, and where the other one leaves its weights."""
    monkeypatch.setenv(second_rank.FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.setattr(data_parallel_training, "__name__", second_rank.__name__)
    monkeypatch.setattr(data_parallel_training, "NOTICE_S", 600)  # then it would end this process
    workload = made()
    yield workload, tmp_path
    workload.close()
    dist.destroy_process_group()


def test_both_hold_what_one_process_at_twice_the_batch_holds_and_end_together(pair):
    workload, folder = pair
    alone = made("mnist-training", batch_size=8)
    start = {name: weights.clone() for name, weights in alone.model.state_dict().items()}

    assert [workload.infer() for _ in range(STEPS)] == [8] * STEPS, "images of both"
    losses = [alone.last_loss for _ in range(STEPS) if alone.infer()]

    assert workload.outcome() == {
        "training_steps": STEPS,
        "loss_first": pytest.approx(losses[0], rel=1e-5),
        "loss_last": pytest.approx(losses[-1], rel=1e-4),
    }
    assert eventually((folder / f"{STEPS}.pt").exists)
    first, second = workload.model.state_dict(), torch.load(folder / f"{STEPS}.pt")
    for name, weights in alone.model.state_dict().items():
        assert torch.equal(first[name], second[name])
        torch.testing.assert_close(first[name], weights, rtol=1e-3, atol=1e-4)
        assert not torch.allclose(start[name], weights, atol=1e-3), "steps that change nothing would prove nothing"
    facts = workload.describe()
    assert (facts["processes"], facts["collectives"]) == (2, "gloo")

    os.kill(facts["second_pid"], signal.SIGKILL)
    with pytest.raises(WorkloadError, match=r"second process was ended by SIGKILL, and the replica ends with it; if"):
        [workload.infer() for _ in range(3)]


def test_each_trains_on_its_half_of_the_batch():
    whole = made("mnist-training", batch_size=8)
    halves = [
        data_parallel_training.RankTraining(Settings(batch_size=4, device="cpu", options=TINY), r) for r in (0, 1)
    ]
    for _ in range(7):  # more than an epoch
        images, labels = whole._next_batch()
        parts = [half._next_batch() for half in halves]
        assert torch.equal(images, torch.cat([part[0] for part in parts]))
        assert torch.equal(labels, torch.cat([part[1] for part in parts]))


@pytest.mark.parametrize(
    ("code", "exit_code", "says"),
    [
        (4, ExitCode.OUT_OF_MEMORY, "the second process ended with 4, see its own words above, and the replica"),
        (1, ExitCode.FAILED, "ended with 1, see"),
        (0, ExitCode.FAILED, "ended with 0"),
        (-signal.SIGSEGV, ExitCode.FAILED, r"ended by SIGSEGV, and the replica ends with it\."),
    ],
)
def test_how_the_second_ended_is_said_and_is_how_the_replica_ends(code, exit_code, says):
    error = _error_of(code)
    with pytest.raises(WorkloadError, match=says):
        raise error
    assert error.exit_code is exit_code


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"batch_size": 21}, "42 in a step is more than the 40 images"),
        ({"options": {"prefetch": -1}}, "prefetch -1"),
    ],
)
def test_what_cannot_be_is_refused_before_a_second_process_starts(changes, says, monkeypatch):
    monkeypatch.setattr(data_parallel_training, "SecondProcess", lambda *_: pytest.fail("it was started"))
    with pytest.raises(SettingError, match=says):
        made(**changes)


MODULE = "tests.support.second_steps"


@pytest.fixture
def second(monkeypatch):
    """Starts one, and ends it."""
    monkeypatch.setattr(data_parallel_training, "NOTICE_S", 600)  # then it would end this process
    begun = []

    def start(**options):
        begun.append(data_parallel_training.SecondProcess(MODULE, Settings(options=options), 7))
        return begun[-1]

    yield start
    for process in begun:
        process.close()


@pytest.fixture
def replica():
    """A process that pauses, and the id of its second process."""
    command = [sys.executable, "-m", MODULE, "replica"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        yield process, psutil.Process(int(process.stdout.readline()))
        process.kill()


def test_it_takes_a_step_when_it_is_told_leaves_signals_to_the_replica_and_is_gone_when_it_is_closed(second, capfd):
    process = second()
    process.step()
    assert eventually(lambda: capfd.readouterr().out == "step at 7\n")

    for number in (signal.SIGTERM, signal.SIGINT):
        os.kill(process.pid, number)
    process.step()

    assert eventually(lambda: capfd.readouterr().out == "step at 7\n")

    process.close()
    assert eventually(lambda: not psutil.pid_exists(process.pid))


@pytest.mark.parametrize(
    ("fail", "error", "says"),
    [("memory", OutOfMemoryError, "out of memory"), ("bug", WorkloadError, "ZeroDivisionError")],
)
def test_what_it_fails_of_is_how_the_replica_ends(second, capfd, fail, error, says):
    process = second(fail=fail)
    process.step()
    process._process.wait(60)
    with pytest.raises(error, match=r"the second process ended with \d, see its own words above"):
        process.require_alive()
    assert says in capfd.readouterr().err.splitlines()[-1]
    with pytest.raises(error):
        process.step()


def test_a_replica_that_is_killed_takes_it_along(replica):
    process, second = replica
    process.kill()
    second.wait(60)


def test_a_replica_that_does_not_look_ends_with_it(replica):
    process, second = replica
    second.kill()
    _, said = process.communicate(timeout=60)
    assert process.returncode == ExitCode.FAILED
    assert said.splitlines()[-1].startswith("replica: the second process was ended by SIGKILL, and the replica ends")
