"""Any number of inputs up to the batch, in one pass: the same answers as one by one, however torch runs the model."""

import dataclasses

import pytest
import torch

from harness.replica.models import distilbert, execution, resnet50
from harness.replica.settings import Settings
from harness.spec.scenario import ScenarioSpec

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


@pytest.mark.parametrize(
    ("changes", "largest", "made", "served"),
    [
        ({"execution": "compiled"}, 6, [1, 2, 4, 6], {1: 1, 2: 2, 3: 4, 4: 4, 5: 6, 6: 6}),
        (
            {"execution": "cuda-graph", "scenario": ScenarioSpec(kind="offline")},
            300,
            [300],
            {1: 300, 44: 300, 300: 300},
        ),
    ],
    ids=["padded to the next power of two", "whole batches of Offline"],
)
def test_a_batch_is_padded_where_shapes_are_fixed(monkeypatch, changes, largest, made, served):
    sizes = []

    def accelerate(forward, examples, _settings, _device):
        sizes.append(len(examples[0]))
        return forward

    monkeypatch.setattr(execution, "accelerate", accelerate)
    batch = torch.arange(float(largest))[:, None]
    step = execution.accelerate_up_to(
        lambda x: x * 2, batch, dataclasses.replace(SETTINGS, **changes), torch.device("cpu")
    )

    assert sizes == made
    assert {inputs: len(step(batch, inputs)) for inputs in served} == served
    assert (step(batch, 3)[:3] == batch[:3] * 2).all()


def test_as_many_shapes_may_be_compiled_as_are_served(monkeypatch):
    limits = torch._dynamo.config
    monkeypatch.setattr(limits, "recompile_limit", 8)
    monkeypatch.setattr(limits, "fail_on_recompile_limit_hit", False)
    monkeypatch.setattr(torch, "compile", lambda forward, **_: forward)
    settings = dataclasses.replace(SETTINGS, execution="compiled")
    execution.accelerate_up_to(lambda x: x * 2, torch.zeros(1024, 1), settings, torch.device("cpu"))

    assert limits.recompile_limit == 11
    assert limits.fail_on_recompile_limit_hit, "no shape is served eagerly without a word"
