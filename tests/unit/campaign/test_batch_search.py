"""A batch is raised until the GPU's memory is nearly full, or until it brings no more; out of memory is survived."""

import pytest

from harness.campaign.batch_search import MARGIN_PERCENT, TARGET_PERCENT, Tried, search
from harness.spec.profile import CapacityGoal


class Gpu:
    """Memory that grows with the batch, and throughput that reaches a plateau."""

    def __init__(self, idle_percent=3.0, percent_each=0.05, knee=1e9, figures=True):
        self.idle_percent, self.percent_each, self.knee, self.figures = idle_percent, percent_each, knee, figures
        self.asked = []

    def __call__(self, batch):
        self.asked.append(batch)
        percent = self.idle_percent + self.percent_each * batch
        if percent > 100:
            return Tried(batch, None, None, "out of memory", out_of_memory=True)
        return Tried(
            batch, float(min(batch, self.knee)), percent if self.figures else None, "" if self.figures else "no torch"
        )


@pytest.mark.parametrize("percent_each", [0.013, 0.05, 0.31, 1.9])
def test_the_memory_is_filled_to_85_percent_within_two_points(percent_each):
    gpu = Gpu(percent_each=percent_each)

    found = search(gpu, CapacityGoal.MEMORY, 1, 2**20)

    assert TARGET_PERCENT - MARGIN_PERCENT <= gpu(found.batch).memory_percent <= TARGET_PERCENT
    assert len(found.tried) < 20
    assert len({tried.batch for tried in found.tried}) == len(found.tried), "no batch is measured twice"


def test_where_one_input_more_is_too_much_the_last_that_fits_is_taken():
    found = search(Gpu(percent_each=30), CapacityGoal.MEMORY, 1, 1024)

    assert found.batch == 2
    assert "2 uses 63.0 %" in found.sentence


def test_the_largest_batch_allowed_ends_the_search():
    found = search(Gpu(percent_each=0.001), CapacityGoal.MEMORY, 1, 100)

    assert found.batch == 100
    assert "largest allowed" in found.sentence


def test_memory_that_is_not_known_is_not_taken_for_empty():
    found = search(Gpu(figures=False), CapacityGoal.MEMORY, 1, 1024)

    assert found.batch is None
    assert found.sentence == "How full the GPU's memory is cannot be told: no torch."


def test_a_first_batch_that_does_not_fit_is_said():
    found = search(Gpu(percent_each=200), CapacityGoal.MEMORY, 1, 1024)

    assert found.batch is None
    assert found.sentence == "Not even a batch of 1 can be taken: out of memory"


def test_the_knee_is_where_throughput_grows_no_more():
    gpu = Gpu(knee=100)

    found = search(gpu, CapacityGoal.KNEE, 1, 2**20)

    assert 95 <= found.batch <= 125
    assert max(gpu.asked) == 256
    assert "knee" in found.sentence


def test_memory_ends_the_search_for_the_knee():
    found = search(Gpu(percent_each=1.0), CapacityGoal.KNEE, 1, 1024)

    assert found.batch == 64
    assert "the memory is full at 128" in found.sentence


def test_a_failure_that_is_not_for_want_of_memory_is_no_capacity():
    gpu = Gpu()

    found = search(
        lambda batch: gpu(batch) if batch < 8 else Tried(batch, None, None, "boom"), CapacityGoal.KNEE, 1, 64
    )

    assert found.batch is None
    assert "boom" in found.sentence
