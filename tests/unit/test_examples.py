"""The result sets that are shipped hold what their manifests say, and what their page says of them."""

import json
import re
import shlex
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest

from harness.analysis.format import DASH
from harness.analysis.statistics import t_interval
from harness.campaign.folder import open_folder
from harness.campaign.plan import expand
from harness.campaign.source import read_source
from harness.campaign.verify import verify_campaign

ROOT = Path(__file__).parents[2]
PAGE_COLUMNS = (  # as the summaries of format 1 call them; now latency_p50_exact and so on
    ("throughput", 1),
    ("latency_p50", 1e3),
    ("latency_p95", 1e3),
    ("latency_p99", 1e3),
    ("gpu_power", 1),
    ("energy", 1),
    ("fairness", 100),
)
ARCHIVES = sorted(ROOT.glob("examples/*/*.tar.xz"))


def test_there_is_a_result_set():
    assert ARCHIVES


def test_the_examples_stay_few_and_small():
    listed = subprocess.run(
        ["git", "ls-files", "examples"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    sizes = [(ROOT / name).stat().st_size for name in listed.splitlines()]

    assert len(sizes) <= 40
    assert sum(sizes) <= 21e6, "four fifths are the latencies of 2.9 million requests, which nothing makes smaller"


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name)
def test_every_shipped_result_set_verifies(archive, published):
    (campaign,) = published(archive.name)
    outcome = verify_campaign(campaign)

    assert outcome.ok, outcome.problems[0]
    assert not outcome.notes
    assert archive.name == f"{campaign.name}.tar.xz"
    planned = len(expand(open_folder(campaign).spec))
    if open_folder(campaign).spec.stress is None:
        assert outcome.experiments == planned
    else:
        assert 0 < outcome.experiments <= planned, "a stress campaign ends where something breaks"


@pytest.mark.parametrize(
    "line", re.findall(r"^harness .*", (ROOT / "examples/h200/README.md").read_text(), flags=re.MULTILINE)
)
def test_the_pages_commands_name_what_is_there(line):
    named = [word for word in shlex.split(line, comments=True) if word.startswith("examples/")]

    assert named
    assert all(list(ROOT.glob(word)) for word in named)


def figures(campaigns):
    """Every figure of the campaigns' runs together: mean and half of its interval, by workload, replicas, mode and measure."""
    values = defaultdict(list)
    for campaign in campaigns:
        for run in json.loads((campaign / "summary.json").read_text())["experiments"]:
            workload, replicas, sharing, _ = run["experiment"].split("_")
            for measure, value in run["figures"].items():
                values[workload, replicas.removeprefix("r"), sharing, measure].append(value)
    estimates = {key: t_interval(runs) for key, runs in values.items()}
    assert {estimate.n for estimate in estimates.values()} == {3}
    return {key: (estimate.mean, estimate.half_width) for key, estimate in estimates.items()}


@pytest.mark.parametrize(
    ("heading", "campaigns"),
    [("## At batch 1", "h200-sharing-*"), ("## When one replica keeps the GPU busy", "h200-busy-*")],
)
def test_a_pages_table_is_what_the_campaigns_measured(heading, campaigns, published):
    page = (ROOT / "examples/h200/README.md").read_text()
    lines = page[page.index(heading) :].splitlines()
    begin = next(number for number, line in enumerate(lines) if line.startswith("| | replicas | sharing |")) + 2
    end = lines.index("", begin)
    measured, workload, compared = figures(published(campaigns)), "", 0
    for line in lines[begin:end]:
        name, replicas, sharing, *shown = (part.strip() for part in line.strip("|").split("|"))
        workload = name.lower() or workload
        for (measure, scale), text in zip(PAGE_COLUMNS, shown, strict=True):
            if text == DASH:
                continue
            value, half = text.replace(",", "").split(" ± ")
            mean, true_half = measured[workload, replicas, sharing.lower(), measure]
            digits = len(value.partition(".")[2])
            assert f"{mean * scale:.{digits}f}" == value, (line, measure)
            assert true_half * scale < float(half[1:]) if half[0] == "<" else f"{true_half * scale:.{digits}f}" == half
            compared += 1
    assert compared == 21 * len(PAGE_COLUMNS) - 9


def test_the_readmes_ratios_are_what_the_campaigns_measured(published):
    rows = dict(re.findall(r"^\| (\w+) \| (\d.*) \|$", (ROOT / "README.md").read_text(), flags=re.MULTILINE))
    shown = {name.lower(): [float(each) for each in re.findall(r"([\d.]+) times", row)] for name, row in rows.items()}
    batches = [figures(published(name)) for name in ("h200-sharing-*", "h200-busy-*")]
    for workload, (eager, busy) in shown.items():
        ratios = [
            each[workload, "8", "mps", "throughput"][0] / each[workload, "8", "time-slicing", "throughput"][0]
            for each in batches
        ]
        assert (round(ratios[0], 1), round(ratios[1], 2)) == (eager, busy), workload
    assert shown.keys() == {"resnet50", "distilbert", "whisper"}


@pytest.mark.parametrize("path", sorted((ROOT / "examples" / "h200").glob("*.yaml")), ids=lambda path: path.name)
def test_every_campaign_file_beside_them_can_be_run(path):
    source = read_source(str(path))

    assert expand(source.spec)
    assert path.name in path.read_text().partition("name:")[0], "its first lines say how it is run"
