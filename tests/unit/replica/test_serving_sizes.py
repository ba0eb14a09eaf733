"""Any number of inputs up to the batch, in one pass: the same answers as one by one, however torch runs the model."""

import dataclasses

import pytest
import torch

from harness.replica.models import distilbert, execution, resnet50
from harness.replica.settings import Settings

SETTINGS = Settings(device="cpu", batch_size=5, options={"model_size": "tiny"}, torch_threads=1)


@pytest.mark.parametrize("make", [resnet50.make, distilbert.make], ids=["resnet50", "distilbert"])
def test_part_of_a_batch_is_answered_as_the_whole_one_is(make):
    workload = make(SETTINGS)
    step = execution.accelerate_up_to(workload.model, workload.pool[0], SETTINGS, torch.device("cpu"))

    with workload.serving():
        whole = step(workload.pool[0], 5)
        part = step(workload.pool[0], 3)
        served = [workload.serve_up_to()(inputs) for inputs in (1, 3, 5)]

    assert part.shape[0] == 3
    assert torch.allclose(part, whole[:3], atol=1e-5)
    assert served == [1, 3, 5]


def test_where_a_shape_is_fixed_a_batch_is_padded_to_the_next_power_of_two(monkeypatch):
    made = []

    def accelerate(forward, examples, settings, device):
        del settings, device
        made.append(len(examples[0]))
        return forward

    monkeypatch.setattr(execution, "accelerate", accelerate)
    settings = dataclasses.replace(SETTINGS, execution="compiled")
    batch = torch.arange(6.0)[:, None]
    step = execution.accelerate_up_to(lambda x: x * 2, batch, settings, torch.device("cpu"))

    assert made == [1, 2, 4, 6]
    assert [len(step(batch, inputs)) for inputs in range(1, 7)] == [1, 2, 4, 4, 6, 6]
    assert (step(batch, 3)[:3] == batch[:3] * 2).all()
