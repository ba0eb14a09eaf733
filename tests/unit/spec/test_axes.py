"""Lists in a workload are one workload for every combination, told apart by their names."""

import pytest

from harness.errors import CampaignFileError
from harness.spec import CampaignSpec
from harness.spec.load import parse_campaign
from harness.spec.stress import StressSpec
from harness.spec.workload import axes_of, values_of


def parsed(workload: str) -> CampaignSpec:
    return parse_campaign(
        f"name: c\nworkloads:\n  - {{name: distilbert}}\n  - {workload}\nreplicas: [1]\n", origin="c.yaml"
    )


@pytest.mark.parametrize(
    ("workload", "names"),
    [
        ("{name: resnet50, batch_size: 8}", ["resnet50"]),
        ("{name: resnet50, batch_size: [1, 8]}", ["resnet50-b1", "resnet50-b8"]),
        ("{name: r, model: resnet50, precision: [fp32, fp16], execution: [eager, cuda-graph]}",
         ["r-fp32-eager", "r-fp32-cuda-graph", "r-fp16-eager", "r-fp16-cuda-graph"]),
        ("{name: mnist-training, options: {epochs: [1, 3], samples: 600, model_size: [small], learning_rate: [0.1]}}",
         ["mnist-training-e1-small-learning-rate-0-1", "mnist-training-e3-small-learning-rate-0-1"]),
        ("{name: own, factory: 'm:make', batch_size: [2, 4]}", ["own-b2", "own-b4"]),
    ],
)  # fmt: skip
def test_every_combination_is_a_workload(workload: str, names: list[str]) -> None:
    spec = parsed(workload)

    settings = spec.workloads[1:]
    assert [each.name for each in settings] == names
    assert {each.target for each in settings} <= {"resnet50", "mnist-training", "m:make"}
    assert CampaignSpec.model_validate_json(spec.model_dump_json(), strict=True) == spec


def test_settings_know_their_family_and_what_differs() -> None:
    settings = parsed("{name: mnist, batch_size: [1, 8], options: {samples: [60, 600], model_size: small}}").workloads[
        1:
    ]

    assert {each.family for each in settings} == {"mnist"}
    assert axes_of(settings) == ["batch_size", "samples"]
    assert values_of(settings[-1])["samples"] == 600


@pytest.mark.parametrize(
    ("workload", "line", "says"),
    [
        ("{name: resnet50, batch_size: [1, 0]}", 4, "must be at least 1"),
        ("{name: resnet50, precision: [fp32, fp8]}", 4, "'fp32', 'fp16' or 'bf16'"),
        ("{name: resnet50, batch_size: []}", 2, "`batch_size` lists no value"),
        ("{name: resnet50, options: {model_size: [a, a]}}", 2, "`options.model_size` lists a value twice"),
        ("{name: resnet50, batch_size: [1, 8], nonsense: 1}", 4, "nonsense"),
        ("{name: resnet50, trace: true, scenario: {kind: offline}}", 4, "`trace` follows requests of the closed loop"),
    ],
)
def test_a_fault_is_told_once_at_the_line_of_the_file(workload: str, line: int, says: str) -> None:
    with pytest.raises(CampaignFileError) as refused:
        parsed(workload)

    assert f"c.yaml:{line}: " in str(refused.value)
    assert says in str(refused.value)
    assert "has 1 fault" in str(refused.value)


def test_a_batch_is_raised_over_whole_numbers_each_a_workload_of_its_own() -> None:
    stress = StressSpec.model_validate({"load": "batch", "first": 4, "most": 16, "precision": 0.25}, strict=False)
    spec = CampaignSpec.model_validate(
        {
            "name": "c",
            "workloads": [{"name": "resnet50", "precision": ["fp32", "fp16"]}],
            "replicas": [1],
            "stress": stress,
        }
    )

    series = spec.series()
    assert [cells[0].workload.name for cells in series] == ["resnet50-fp32-b4", "resnet50-fp16-b4"]
    assert [cell.workload.batch_size for cell in series[0]] == [4, 5, 6, 7, 8, 10, 11, 13, 16]
    assert series[1][0].workload.family == "resnet50-fp16"


@pytest.mark.parametrize(
    ("stress", "says"),
    [
        ({"load": "batch", "first": 1.5}, "batches are whole numbers"),
        ({"load": "batch", "most": 1e6 * 2}, "less than or equal to"),
    ],
)
def test_a_batch_that_cannot_be_is_refused(stress: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        StressSpec.model_validate(stress, strict=False)
