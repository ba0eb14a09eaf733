"""A sweep of a workload's load: an axis of the campaign, at the same load per GPU where that is asked for."""

import pytest
from pydantic import ValidationError

from harness.analysis.campaign import key_of
from harness.campaign.plan import expand
from harness.campaign.planners import with_more_repeats
from harness.campaign.source import CampaignSource
from harness.spec import CampaignSpec, ExperimentSpec, Sharing, SweepSpec

CHAT = {"name": "llm", "server": {"command": ["serve", "{port}"], "protocol": "openai-chat"}}
BESIDE = {"name": "beside", "neighbours": [{"workload": {"name": "whisper"}}]}
BY_LOADGEN = {"name": "resnet50", "scenario": {"kind": "server", "rate": 1, "latency_limit_ms": 100}}
AT_A_RATE = {"name": "llm", "server": {**CHAT["server"], "rate": 1}}


def campaign(sweep, workload=CHAT, **changes):
    values = {"name": "loads", "workloads": [workload], "replicas": [1], "sharing": ["time-slicing"], "sweep": sweep}
    return CampaignSpec.model_validate({**values, **changes})


def test_every_load_is_a_workload_of_its_own_name_that_says_its_load():
    spec = campaign({"concurrency": [4, 8]}, replicas=[1, 2], repeats=2)

    cells = spec.cells()
    assert [(cell.workload.name, cell.replicas, cell.workload.server.concurrency) for cell in cells] == [
        ("llm-c4", 1, 4), ("llm-c4", 2, 4), ("llm-c8", 1, 8), ("llm-c8", 2, 8),
    ]  # fmt: skip
    experiment = expand(spec)[2]
    assert experiment.experiment_id == "llm-c8_r1_time-slicing_rep1"
    assert experiment.load.model_dump(mode="json") == {"kind": "concurrency", "value": 8, "per": "replica"}
    assert ExperimentSpec.model_validate_json(experiment.model_dump_json()) == experiment
    assert experiment.cell == cells[2]


def test_the_load_of_a_gpu_is_divided_among_the_replicas_on_it():
    spec = campaign({"concurrency": [8], "per": "gpu"}, sharing=["exclusive", "mps"], replicas=[1, 2, 4, 8], gpus=2)

    asked = {(cell.sharing.value, cell.replicas): cell.workload.server.concurrency for cell in spec.cells()}
    assert asked == {
        ("exclusive", 1): 8, ("exclusive", 2): 8, ("mps", 1): 8, ("mps", 2): 8, ("mps", 4): 4, ("mps", 8): 2,
    }  # fmt: skip
    assert {cell.workload.name for cell in spec.cells()} == {"llm-c8-per-gpu"}, "so that modes and counts are compared"
    assert {cell.load.in_words for cell in spec.cells()} == {"8 resident requests per GPU"}


def test_as_many_servers_as_resident_requests_have_one_each():
    cells = campaign({"concurrency": [4, 8, 16, 32], "per": "gpu"}, replicas=[1, 2, 4]).cells()

    asked = {(cell.load.value, cell.replicas): cell.workload.server.concurrency for cell in cells}
    assert asked == {(load, count): load // count for load in (4, 8, 16, 32) for count in (1, 2, 4)}


def test_a_rate_is_swept_of_servers_and_scenarios():
    scenario = {"name": "resnet50", "scenario": {"kind": "http", "rate": 1}}
    rates = [2.5, 10]

    of_server = campaign({"rate": rates, "per": "gpu"}, AT_A_RATE, replicas=[4]).cells()
    assert [(cell.workload.name, cell.workload.server.rate) for cell in of_server] == [
        ("llm-rate-2-5-per-gpu", 0.625),
        ("llm-rate-10-per-gpu", 2.5),
    ]
    of_scenario = campaign({"rate": rates}, scenario).cells()
    assert [cell.workload.scenario.rate for cell in of_scenario] == rates
    assert {cell.workload.target for cell in of_scenario} == {"resnet50"}


@pytest.mark.parametrize(
    ("sweep", "changes", "why"),
    [
        ({}, {}, "either `rate` or `concurrency`"),
        ({"rate": [1], "concurrency": [1]}, {}, "either `rate` or `concurrency`"),
        ({"concurrency": [4, 4]}, {}, "listed twice"),
        ({"concurrency": [4, 6], "per": "gpu"}, {"replicas": [1, 4]}, "6 resident requests per GPU do not divide"),
        ({"concurrency": [6], "per": "gpu"}, {"replicas": [3], "gpus": 2}, "3 replicas do not divide evenly among 2 GPUs"),
        ({"rate": [1]}, {}, "the workload llm has no rate"),
        ({"concurrency": [1]}, {"workloads": [AT_A_RATE]}, "the workload llm has no concurrency"),
        ({"concurrency": [1]}, {"workloads": [{"name": "resnet50"}]}, "the workload resnet50 has no concurrency"),
        ({"concurrency": [1]}, {"stress": {"load": "replicas"}}, "`stress` raises the load itself"),
        ({"concurrency": [1], "one_start": True}, {"conditions": [BESIDE]}, "beside has neighbours, which are started with each load"),
        ({"rate": [1], "one_start": True}, {"workloads": [BY_LOADGEN]}, "the LoadGen that asks resnet50 serves one load a process"),
    ],
)  # fmt: skip
def test_what_no_replica_could_be_asked_is_refused(sweep, changes, why):
    with pytest.raises(ValidationError, match=why):
        campaign(sweep, **changes)


def test_more_repeats_are_of_the_loads_that_need_them():
    spec = campaign({"concurrency": [4, 8, 16]}, sharing=["time-slicing", "mps"])
    wanting = next(cell for cell in spec.cells() if cell.load.value == 8 and cell.sharing is Sharing.MPS)

    more = with_more_repeats(CampaignSource(spec, "", "given"), {key_of(wanting): 3}).spec

    assert (more.sweep, more.sharing, more.repeats) == (SweepSpec(concurrency=[8]), [Sharing.MPS], 3)
    assert [key_of(cell) for cell in more.cells()] == [key_of(wanting)]


def test_more_repeats_of_a_part_have_nothing_that_speaks_of_the_rest():
    spec = CampaignSpec.model_validate(
        {
            "name": "part",
            "workloads": [{"name": "resnet50"}],
            "replicas": [1, 2],
            "sharing": ["time-slicing", "mps"],
            "mps": {"share": ["all", "1/N"]},
            "exclude": [{"sharing": "mps", "replicas": 1}, {"sharing": "time-slicing", "replicas": 2}],
        }
    )
    further = with_more_repeats(CampaignSource(spec, "", ""), {key_of(spec.cells()[0]): 2}).spec

    assert (further.mps, further.exclude) == (None, [])
    assert CampaignSpec.model_validate_json(further.model_dump_json()) == further
