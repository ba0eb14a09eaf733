"""A campaign over the kinds of workloads: each one's own metrics are in its results, beside the fifteen of all."""

import csv
import json
import re

import pytest

from harness.analysis.campaign import analyse
from harness.analysis.report import report_of
from harness.metrics.catalogue import STANDARD, select
from tests.support.campaigns import Campaign

pytestmark = pytest.mark.long

CAMPAIGN = """
name: kinds
workloads:
  - {name: notebook, device: cpu, threads: 1, options: {model_size: tiny, burst_requests: 5, think_s: 0.1}}
  - {name: fine-tuning, model: bert-training, device: cpu, threads: 1, batch_size: 2, options: {model_size: tiny, tokens: 8}}
replicas: [1]
timing: {step_s: 0.5, stabilise_s: 0, record_s: 3, cooldown_s: 0}
"""
MODELS = {"notebook": "notebook", "fine-tuning": "bert-training"}
OUTCOMES = {
    "notebook": {"active_seconds", "idle_seconds"},
    "fine-tuning": {"training_steps", "loss_first", "loss_last"},
}


@pytest.fixture(scope="module")
def campaign(tmp_path_factory):
    """The folder of a campaign that ran to its end."""
    folder = tmp_path_factory.mktemp("kinds")
    campaign = Campaign(folder, CAMPAIGN)
    campaign.measured()
    return campaign.path


def values(experiment, metric, series):
    (path,) = experiment.glob(f"*_{metric}_*.csv")
    with path.open(newline="") as stream:
        return [float(row["value"]) for row in csv.DictReader(stream) if row["series"] == series and row["value"]]


@pytest.mark.parametrize("name", MODELS)
def test_an_experiment_has_the_fifteen_and_its_own(campaign, name):
    experiment = campaign / f"{name}_r1_time-slicing_rep1"
    own = [metric.name for metric in select("all", workload=MODELS[name])][len(STANDARD) :]
    manifest = json.loads((experiment / "manifest.json").read_text())
    assert manifest["experiment"]["metrics"] == [*STANDARD, *own]
    assert manifest["verdict"]["status"] != "INVALID", manifest["verdict"]
    assert len(list(experiment.glob(f"{name}_r1_*.csv"))) == len(STANDARD) + len(own)
    for metric in own:
        assert len(values(experiment, metric, "all")) >= 6, "one missed row at most"
        assert values(experiment, metric, "all") == values(experiment, metric, "replica-0")
    replica = json.loads((experiment / "replicas" / "replica-0" / "replica.json").read_text())
    assert replica["phase"] == "stopped"
    assert all(replica[fact] > 0 for fact in OUTCOMES[name])


def test_the_figures_agree_with_each_other(campaign):
    session, tuning = (campaign / f"{name}_r1_time-slicing_rep1" for name in MODELS)
    assert all(0 < share < 100 for share in values(session, "active_share", "all"))
    rates = zip(values(tuning, "inputs_per_second", "all"), values(tuning, "throughput", "all"), strict=True)
    assert all(inputs == pytest.approx(2 * steps) for inputs, steps in rates)


def test_the_report_shows_each_one_s_own_beside_those_of_all(campaign):
    report_of(analyse(campaign))
    parts = re.split(r"^### ", (campaign / "report.md").read_text(), flags=re.MULTILINE)
    for name in MODELS:
        (tables,) = [part for part in parts if part.startswith(f"{name}\n\n|")]
        assert tables.count("| Replicas |") == (2 if name == "fine-tuning" else 3)
        assert ("| Active time |" in tables) == (name == "notebook")
    cell = next(cell for cell in analyse(campaign).cells if cell.workload == "notebook")
    rows = values(campaign / "notebook_r1_time-slicing_rep1", "active_share", "all")
    assert cell.estimates["active_share"].mean == pytest.approx(sum(rows) / len(rows))


def test_a_pause_is_no_fault(campaign):
    manifest = json.loads((campaign / "notebook_r1_time-slicing_rep1" / "manifest.json").read_text())
    assert not any("steady" in reason or " is 0 in " in reason for reason in manifest["verdict"]["reasons"])
