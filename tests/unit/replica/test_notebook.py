"""An interactive session: the same one from the same seed, and its two times are all of its time."""

import dataclasses
import statistics
import time

import pytest
import torch

from harness.replica.errors import SettingError
from harness.replica.models import resnet50
from harness.replica.settings import Settings

SESSION = Settings(workload="notebook", device="cpu", batch_size=2, options={"model_size": "tiny"})


def made(options=None, **changes):
    options = dict(SESSION.options) | (options or {})
    return resnet50.Notebook(dataclasses.replace(SESSION, options=options, **changes))


def pauses(workload, number=4000):
    return [workload.think_s() for _ in range(number)]


def test_bursts_and_pauses_have_the_means_that_are_asked_for():
    found = pauses(made({"burst_requests": 20, "think_s": 0.5}))
    thought = [pause_s for pause_s in found if pause_s]
    assert len(found) / len(thought) == pytest.approx(20, rel=0.25)
    assert statistics.fmean(thought) == pytest.approx(0.5, rel=0.25)
    assert statistics.stdev(thought) == pytest.approx(0.5, rel=0.35), "exponential: as wide as its mean"


def test_a_session_is_the_same_from_the_same_seed_and_another_for_another_replica():
    assert pauses(made()) == pauses(made())
    assert pauses(made()) != pauses(made(replica=1))
    assert pauses(made()) != pauses(made(seed=1))


@pytest.mark.parametrize(("options", "pauses_after"), [({"burst_requests": 1}, True), ({"think_s": 0}, False)])
def test_it_thinks_after_every_request_or_after_none(options, pauses_after):
    assert {bool(pause_s) for pause_s in pauses(made(options), 500)} == {pauses_after}


def test_working_is_active_and_the_rest_is_idle():
    workload = made()
    with workload.serving():
        workload.infer()
        earliest_s = time.perf_counter()
        for family in workload.published():
            family.reset()
        begun_s = time.perf_counter()
        assert [workload.infer() for _ in range(3)] == [2, 2, 2]
        worked_s = time.perf_counter() - begun_s
    time.sleep(0.05)
    asked_s = time.perf_counter()
    outcome = workload.outcome()
    assert worked_s / 2 < outcome["active_seconds"] <= worked_s
    assert outcome["idle_seconds"] >= 0.05
    assert asked_s - begun_s <= sum(outcome.values()) <= time.perf_counter() - earliest_s


def test_a_request_that_fails_is_not_active_for_ever(monkeypatch):
    workload = made()

    def fail():
        raise RuntimeError("broken")

    monkeypatch.setattr(workload._work, "infer", fail)
    with pytest.raises(RuntimeError, match="broken"):
        workload.infer()
    before = workload.outcome()["active_seconds"]
    time.sleep(0.01)
    assert workload.outcome()["active_seconds"] == before


def test_its_work_is_that_of_resnet50():
    alone = resnet50.make(Settings(device="cpu", batch_size=2, options={"model_size": "tiny"}))
    session = made()
    assert all(torch.equal(one, two) for one, two in zip(alone.pool, session.pool, strict=True))
    with alone.serving():
        assert session.answer(session.pool[0]).tolist() == alone.answer(alone.pool[0]).tolist()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"burst_requests": 0}, "burst_requests 0 is not 1 or more"),
        ({"burst_requests": 2.5}, "must be a int"),
        ({"think_s": -1}, "think_s must be a number"),
        ({"think_s": "long"}, "think_s must be a number, e.g. 2, not 'long'"),
    ],
)
def test_a_session_that_cannot_be_is_refused(options, says):
    with pytest.raises(SettingError, match=says):
        made(options)
