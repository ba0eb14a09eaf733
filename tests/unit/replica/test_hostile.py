"""Hostile neighbours on a CPU: what they do to the host's memory, when they begin, and what is refused."""

import inspect

import pytest

from harness.replica import hostile, registry
from harness.replica.errors import CannotBeMetError, ExitCode, SettingError, WorkloadError
from harness.replica.settings import Settings

MIB = 2**20


def made(name, **options):
    return registry.load(Settings(workload=name, device="cpu", options=options))


@pytest.fixture
def small_cache(tmp_path, monkeypatch):
    for index, size in enumerate(["32K", "1024K"]):
        (tmp_path / f"index{index}").mkdir()
        (tmp_path / f"index{index}/size").write_text(f"{size}\n")
    monkeypatch.setattr(hostile, "_CACHES", tmp_path)


@pytest.mark.usefixtures("small_cache")
@pytest.mark.parametrize(
    ("name", "options", "fact", "amount", "done"),
    [
        ("dram-hog", {"megabytes": 1}, "bytes_per_request", 8 * MIB, lambda used: used["target"].eq(1).all()),
        ("l2-hog", {}, "cache_bytes", MIB, lambda used: used["buffer"].eq(32).all()),
        ("launch-storm", {}, "kernels_per_request", 1000, lambda used: used["add"].__self__.item() == 1000),
    ],
)
def test_each_wears_and_says_how_much(name, options, fact, amount, done):
    workload = made(name, **options)

    assert (workload.name, workload.infer()) == (name, 1)
    assert workload.describe()["device"] == "cpu"
    assert workload.describe()[fact] == amount
    assert done(inspect.getclosurevars(workload._wear).nonlocals), "copies and passes are really made"


def test_memory_is_taken_to_the_limit_then_held_and_asked_for_again():
    hog = made("memory-hog", after_s=0, megabytes=8, limit_gb=0.0115)

    requests = [hog.infer() for _ in range(5)]

    assert requests == [1] * 5
    assert hog.outcome() == {"held_bytes_most": 10 * MIB, "memory_refusals": 1}
    assert hog.think_s() == hostile.WAIT_S
    hog.infer()
    assert hog.outcome()["memory_refusals"] == 2


def test_memory_that_is_freed_when_full_is_taken_again():
    hog = made("memory-hog", after_s=0, megabytes=2, limit_gb=0.005, when_full="free")

    held = [len(hog._blocks) for _ in range(7) if hog.infer()]

    assert held == [1, 2, 0, 1, 2, 0, 1]
    assert hog.think_s() == 0.0


def test_what_torch_cannot_allocate_is_a_refusal_and_no_failure():
    hog = made("memory-hog", after_s=0, megabytes=2**40, limit_gb=1e19)
    hog.infer()

    assert hog._part == 2**59


@pytest.mark.parametrize("name", ["memory-hog", "crash"])
def test_what_waits_does_nothing_at_first(name):
    workload = made(name, after_s=1000, **({"limit_gb": 1} if name == "memory-hog" else {}))

    assert [workload.infer() for _ in range(3)] == [1, 1, 1]
    assert workload.think_s() == hostile.WAIT_S


def test_a_crash_comes_when_it_is_due_and_says_that_it_was_wanted():
    workload = made("crash", after_s=0)

    with pytest.raises(WorkloadError, match="crashed as asked, 0 s after its first request") as caught:
        workload.infer()
    assert caught.value.exit_code is ExitCode.FAILED


@pytest.mark.parametrize(
    ("name", "options", "error", "says"),
    [
        ("pcie-hog", {}, CannotBeMetError, "fills the link to a GPU, and there is none"),
        ("memory-hog", {}, CannotBeMetError, "until Linux kills processes; set its option limit_gb"),
        ("memory-hog", {"when_full": "burn"}, SettingError, "'burn' is not one of hold, free"),
        ("dram-hog", {"megabytes": 0}, SettingError, "megabytes 0 is not 1 or more"),
    ],
)
def test_what_makes_no_sense_is_refused(name, options, error, says):
    with pytest.raises(error, match=says):
        made(name, **options)
