"""What a campaign file may say of a built-in workload, and what it gets by that."""

import pytest

from harness.campaign.plan import expand
from harness.errors import CampaignFileError
from harness.metrics.catalogue import STANDARD
from harness.replica.settings import from_environment
from harness.spec.load import parse_campaign
from harness.spec.replica import ReplicaSpec
from harness.spec.workload import BUILTIN_WORKLOADS, WorkloadSpec

FILE = "name: kinds\nreplicas: [1]\nworkloads:\n  - {{name: mine, model: {model}, batch_size: {batch_size}}}\n"


@pytest.mark.parametrize("model", BUILTIN_WORKLOADS)
def test_every_built_in_workload_has_the_fifteen_metrics_first(model):
    (experiment,) = expand(parse_campaign(FILE.format(model=model, batch_size=2), origin="c.yaml"))
    assert experiment.metrics[:15] == list(STANDARD)
    assert (len(experiment.metrics) == 15) == (model in {"resnet50", "distilbert", "whisper", "diffusion", "mnist"})


def test_named_metrics_are_the_named_ones_for_every_workload():
    text = FILE.format(model="notebook", batch_size=1) + "metrics: [throughput, active_share]\n"
    (experiment,) = expand(parse_campaign(text, origin="c.yaml"))
    assert experiment.metrics == ["throughput", "active_share"]


def test_text_generation_is_that_of_a_server_of_one_s_own():
    with pytest.raises(
        CampaignFileError, match=r"c\.yaml:4: .*no built-in workload `chat`.* server: .*docs/servers\.md"
    ):
        parse_campaign(FILE.format(model="chat", batch_size=1), origin="c.yaml")


def test_training_with_batch_normalisation_needs_two_images():
    with pytest.raises(CampaignFileError, match=r"c\.yaml:4: .*resnet50-training needs `batch_size` 2 or more"):
        parse_campaign(FILE.format(model="resnet50-training", batch_size=1), origin="c.yaml")


def test_what_two_processes_exchange_is_no_cuda_graph():
    text = FILE.format(model="data-parallel-training", batch_size="2, execution: cuda-graph")
    with pytest.raises(CampaignFileError, match=r"c\.yaml:4: .*no `execution` cuda-graph"):
        parse_campaign(text, origin="c.yaml")


@pytest.mark.parametrize(
    ("model", "more", "says"),
    [
        ("resnet50", "device: cpu, stream_priority: high", "`stream_priority` needs a GPU"),
        ("resnet50", "stream_priority: middle", "must be 'high' or 'low'"),
        ("data-parallel-training", "stream_priority: low", "collectives have streams of their own"),
        ("dram-hog", "precision: fp16", "`precision` has no effect on dram-hog"),
        ("resnet50", "cpus_per_replica: 0", "at least 1"),
        ("resnet50", "cpus_per_replica: 1, shared_cpus: 1", "keep one"),
        ("crash", "scenario: {kind: offline}", "`scenario` has no effect on crash"),
        ("dram-hok", "seed: 1", "did you mean `dram-hog"),
    ],
)
def test_what_has_no_effect_is_refused(model, more, says):
    with pytest.raises(CampaignFileError, match=says):
        parse_campaign(FILE.format(model=model, batch_size=f"1, {more}"), origin="c.yaml")


def test_the_priority_of_a_stream_reaches_the_replica():
    text = FILE.format(model="resnet50", batch_size="1, stream_priority: high")
    [workload] = parse_campaign(text, origin="c.yaml").workloads
    assert from_environment(ReplicaSpec(workload=workload).environment()).stream_priority == "high"


def test_int8_is_refused_in_a_file_and_names_fp8_and_stays_readable_in_results():
    with pytest.raises(
        CampaignFileError,
        match=r"c\.yaml:4: `workloads\.0\.options\.int8`: it was removed: say .*`options: {fp8: true}`",
    ):
        parse_campaign(FILE.format(model="resnet50", batch_size="1, options: {int8: true}"), origin="c.yaml")
    measured = {"name": "resnet50", "options": {"int8": True}}
    assert WorkloadSpec.model_validate(measured).options == {"int8": True}
