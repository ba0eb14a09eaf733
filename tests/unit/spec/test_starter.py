"""Campaign files to begin with: each is valid, commented and says what a file without it has."""

import re
from pathlib import Path

import pytest

from harness.campaign import source
from harness.campaign.plan import expand
from harness.campaign.source import TEMPLATES, read_source, starter_for, starter_text
from harness.metrics.nvml import GpuFacts
from harness.sharing.mps import Mps
from harness.spec import CampaignSpec, KubernetesSpec
from harness.spec.experiment import SloSpec
from harness.spec.load import parse_campaign
from tests.unit.spec.short_file import GOOD, models


def test_the_starter_is_valid_and_names_every_field():
    text = starter_text("My Campaign")

    assert parse_campaign(text, origin="starter").name == "my-campaign"
    for model in set(models()) - {CampaignSpec}:
        if model.__name__ not in {"ExperimentSpec", "Toleration", "SloSpec"}:
            assert all(re.search(rf"\b{name}:", text) for name in model.model_fields if name != "variant_of"), model
    # Of an objective, every metric and every percentile that its fields are made of.
    assert {part for name in SloSpec.model_fields for part in name.split("_")} <= set(re.findall("[a-z0-9]+", text))


def test_uncommenting_everything_in_the_starter_is_valid():
    lines = [re.sub(r"^(\s*)# (\w+: |\w+:$)", r"\1\2", line) for line in starter_text("mine").splitlines()]

    text = (
        "\n".join(lines)
        .replace("backend: local", "backend: kubernetes")
        .replace("sharing: [time-slicing]", "sharing: [mps]")
    )
    spec = parse_campaign(text, origin="starter")
    assert spec.limits.retries == 1
    assert spec.kubernetes == KubernetesSpec()


PURPOSES = sorted(path.stem for path in TEMPLATES.glob("*.yaml"))
TIMING = {"step_s": 5, "stabilise_s": 30, "record_s": 120, "cooldown_s": 10}


def mig_gpu(monkeypatch, *, instances):
    gpu = GpuFacts("GPU", 80 * 10**9, 80 * 10**9, "GPU-0", "default", bool(instances), tuple("abcdefg"[:instances]))
    monkeypatch.setattr(source, "gpu_facts", lambda: ([gpu], ""))
    monkeypatch.setattr(Mps, "running", lambda _self, _uuids: [])
    monkeypatch.setattr("harness.sharing.mps.shutil.which", lambda _name: "/usr/bin/nvidia-cuda-mps-control")


@pytest.mark.parametrize("purpose", PURPOSES)
def test_a_short_starter_is_valid_commented_and_says_the_timing_of_all(purpose, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(starter_for(purpose, "My Campaign"))

    spec = read_source(str(file)).spec
    assert expand(spec)
    assert spec.name == "my-campaign"
    assert TIMING.items() <= spec.timing.model_dump().items()
    lines = file.read_text().splitlines()
    assert 20 <= len(lines) <= 35
    assert sum("# " in line for line in lines) >= 5
    assert max(map(len, lines)) <= 120


def test_the_starter_and_the_page_say_the_timing_that_a_file_without_one_has():
    page = (Path(__file__).parents[3] / "docs" / "campaigns.md").read_text()

    assert parse_campaign(starter_text("mine"), origin="starter").timing == parse_campaign(GOOD, origin="c").timing
    assert TIMING.items() <= parse_campaign(GOOD, origin="c").timing.model_dump().items()
    assert page.count("timing: {step_s: 5, stabilise_s: 30, record_s: 120, cooldown_s: 10}") == 1


@pytest.mark.parametrize("purpose", ["sharing", "serving"])
@pytest.mark.parametrize(
    ("instances", "modes", "refused"),
    [
        (0, ["exclusive", "time-slicing", "mps"], "# Not now: sharing mig needs a GPU with MIG on, and GPU has it off"),
        (7, ["mig"], "# Not now: the GPU is divided (MIG is on), and sharing mps would use one instance of it."),
        (2, ["time-slicing"], "# Not now: 4 replicas need a MIG instance each, and the machine has 2."),
    ],
)
def test_a_short_starter_has_the_modes_of_this_machine(monkeypatch, purpose, instances, modes, refused):
    mig_gpu(monkeypatch, instances=instances)

    text = starter_for(purpose, "mine")

    assert [mode.value for mode in parse_campaign(text, origin="starter").sharing] == modes
    assert refused in text


def test_without_a_gpu_a_short_starter_has_time_slicing_and_says_why(monkeypatch):
    monkeypatch.setattr(source, "gpu_facts", lambda: ([], "no driver"))

    text = starter_for("sharing", "mine")

    assert [mode.value for mode in parse_campaign(text, origin="starter").sharing] == ["time-slicing"]
    assert "\n# Not now: exclusive, mps, mig; there is no GPU here (no driver).\nsharing: [time-slicing]" in text


def test_the_starter_of_a_cluster_names_place_image_and_prometheus():
    cluster = parse_campaign(starter_for("kubernetes", "mine"), origin="starter").kubernetes

    assert cluster == KubernetesSpec()
    assert {"namespace", "image", "prometheus_service"} <= cluster.model_fields_set
