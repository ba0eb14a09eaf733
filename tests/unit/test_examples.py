"""The result sets that are shipped hold what their manifests say, and what their page says of them."""

import json
import re
import shlex
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

import harness
from harness.analysis.format import DASH
from harness.analysis.statistics import t_interval
from harness.campaign.folder import open_folder
from harness.campaign.plan import expand
from harness.campaign.source import read_source
from harness.campaign.verify import verify_campaign

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "examples/h200/README.md").read_text()
CLUSTER = (ROOT / "examples/h200-cluster/README.md").read_text()
BUSY = (ROOT / "examples/busy-engine/README.md").read_text()
TWO_GPUS = (ROOT / "examples/two-gpus/README.md").read_text()
PAGE_COLUMNS = (  # as the summaries of format 1 call them; now latency_p50_exact and so on
    ("throughput", 1),
    ("latency_p50", 1e3),
    ("latency_p95", 1e3),
    ("latency_p99", 1e3),
    ("gpu_power", 1),
    ("energy", 1),
    ("fairness", 100),
)
ENGINE_COLUMNS = (
    ("throughput", 1),
    ("latency_p50_exact", 1),
    ("client_ttft_p50", 1e3),
    ("client_itl_p50", 1e3),
    ("energy", 1000 / 32),  # each answer has 32 tokens
    ("gpu_sm_active", 1),
    ("cpu_usage", 1),
)
SHARES = "h200-[as][ch][at][ri][ev]*"
"""Of shares.yaml and activity.yaml, which are in one table."""
SHARES_COLUMNS = (
    ("throughput", 1),
    ("latency_p50_exact", 1e3),
    ("latency_p99_exact", 1e3),
    ("gpu_power", 1),
    ("energy", 1),
    ("gpu_sm_active", 1),
    ("gpu_memory", 2**-30),
)
POD_MEASURES = ("throughput", "latency_p50_exact", "latency_p99_exact")
SM_MEASURES = (
    ("throughput", 1),
    ("latency_p50_exact", 1e3),
    ("latency_p99_worst", 1e3),
    ("fairness", 1),
    ("energy", 1),
)
ARCHIVES = sorted(ROOT.glob("examples/*/*.tar.xz"))


def test_the_examples_stay_few_and_small():
    listed = subprocess.run(
        ["git", "ls-files", "examples"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    sizes = [(ROOT / name).stat().st_size for name in listed.splitlines()]

    assert len(sizes) <= 100
    assert sum(sizes) <= 16e6, "publish a set with --resolution 1us"


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name)
def test_every_shipped_result_set_verifies(archive, published):
    (campaign,) = published(archive.name)
    outcome = verify_campaign(campaign)

    assert outcome.ok, outcome.problems[0]
    assert archive.name == f"{campaign.name}.tar.xz"
    planned = len(expand(open_folder(campaign).spec))
    finished = f"{outcome.experiments} of {planned} experiments are finished"
    notes = [note for note in outcome.notes if not re.search(r"instants were rounded to \d+ ns", note)]
    assert len(notes) < len(outcome.notes), "it is condensed"
    if open_folder(campaign).spec.stress is not None:
        assert not notes
        assert 0 < outcome.experiments <= planned, "a stress campaign ends where something breaks"
    elif notes:
        assert notes == [f"{campaign}: {finished}."]
        assert finished in (archive.parent / "README.md").read_text(), "the page says which set is not whole"
    else:
        assert outcome.experiments == planned


@pytest.mark.parametrize("line", re.findall(r"^harness .*", PAGE + TWO_GPUS + CLUSTER, flags=re.MULTILINE))
def test_the_pages_commands_name_what_is_there(line):
    named = [word for word in shlex.split(line, comments=True) if word.startswith("examples/")]

    assert named
    assert all(list(ROOT.glob(word)) for word in named)


def figures(campaigns, repeats=3):
    """Every figure of the campaigns' runs together: mean and half of its interval, by workload, replicas, mode with what it is told apart by, and measure."""
    values = defaultdict(list)
    for campaign in campaigns:
        for run in json.loads((campaign / "summary.json").read_text())["experiments"]:
            workload, replicas, *modes, _ = run["experiment"].split("_")
            for measure, value in run["figures"].items():
                values[workload, replicas.removeprefix("r"), " ".join(modes), measure].append(value)
    estimates = {key: t_interval(runs) for key, runs in values.items()}
    assert {estimate.n for estimate in estimates.values()} <= set(repeats if isinstance(repeats, tuple) else (repeats,))
    return {key: (estimate.mean, estimate.half_width) for key, estimate in estimates.items()}


def rows_of_table(page, heading):
    """The cells of each row of the first table below a heading."""
    lines = page[page.index(heading) :].splitlines()
    begin = next(number for number, line in enumerate(lines) if line.startswith("|---|")) + 1
    return [[part.strip() for part in line.strip("|").split("|")] for line in lines[begin : lines.index("", begin)]]


@pytest.mark.parametrize(
    ("heading", "campaigns", "columns", "named", "repeats", "told"),
    [
        ("## At batch 1", "h200-sharing-*", PAGE_COLUMNS, "{}", 3, 21 * len(PAGE_COLUMNS) - 9),
        ("## When one replica keeps the GPU busy", "h200-busy-*", PAGE_COLUMNS, "{}", 3, 21 * len(PAGE_COLUMNS) - 9),
        ("## Shares of the GPU", SHARES, SHARES_COLUMNS, "{}", 3, 10 * len(SHARES_COLUMNS)),
        ("## Servers of a language model", "h200-engine-*", ENGINE_COLUMNS, "llama-{}rps", 3, 18 * len(ENGINE_COLUMNS)),
    ],
)
def test_a_pages_table_is_what_the_campaigns_measured(heading, campaigns, columns, named, repeats, told, published):
    measured, workload, compared = figures(published(campaigns), repeats), "", 0
    for line in rows_of_table(PAGE, heading):
        name, replicas, sharing, *shown = line
        workload = named.format(name.lower()) if name else workload
        for (measure, scale), text in zip(columns, shown, strict=True):
            if text == DASH:
                continue
            mode = sharing.lower().replace("/", "-over-")
            assert_told(measured[workload, replicas, mode, measure], scale, text)
            compared += 1
    assert compared == told


def assert_told(estimate, scale, text):
    """The text is this mean and half of its interval, rounded as it is."""
    value, half = text.replace(",", "").split(" ± ")
    mean, true_half = (number * scale for number in estimate)
    digits = len(value.partition(".")[2])
    assert f"{mean:.{digits}f}" == value
    assert true_half < float(half[1:]) if half[0] == "<" else f"{true_half:.{digits}f}" == half


def measured_by(archive):
    """Mean, lower and upper limit of every measure of the latest such set, by workload, replicas, sharing mode, limits and measure."""
    *_, path = sorted(ROOT.glob(f"examples/h200-cluster/{archive}.tar.xz"))
    keys = ["workload", "replicas", "sharing", "mps_limits", "measure"]
    return harness.load(path).summary().set_index(keys)[["mean", "ci95_low", "ci95_high"]].T.to_dict("list")


def test_the_page_of_pods_says_what_the_pass_measured():
    pods, workload = measured_by("h200-cluster-pass-*"), ""
    for name, replicas, told in rows_of_table(CLUSTER, "## Time-sliced pods"):
        workload = name.lower() or workload
        throughput, p50, p99 = (
            pods[workload, int(replicas), "time-slicing", "", measure][0] for measure in POD_MEASURES
        )
        assert [float(text) for text in told.split(", ")] == [
            pytest.approx(throughput, abs=0.5 if throughput > 100 else 0.05),
            pytest.approx(1e3 * p50, rel=5e-3),
            pytest.approx(1e3 * p99, rel=2e-2),
        ]


def test_the_page_of_pods_says_what_every_mode_measured():
    workload = ""
    for name, mode, replicas, _, *sides, difference in rows_of_table(CLUSTER, "## Every mode"):
        workload = name.lower() or workload
        cell, means = (workload, int(replicas), mode.lower()), []
        for kind, text in (("", sides[0]), ("local-", sides[2])):
            measured = measured_by(f"h200-cluster-{workload}-{kind}2026*")
            limits = "12%" if kind and mode == "MPS" else ""
            figures = [measured.get((*cell, limits, measure), [0])[0] for measure in (*POD_MEASURES, "fairness")]
            means.append(figures)
            shown = [float(part.replace(",", "")) for part in re.split(r", (?=\S)", text.replace(DASH, "0"))]
            scaled = [figures[0], 1e3 * figures[1], 1e3 * figures[2], figures[3] if replicas != "1" else 0]
            assert shown == [pytest.approx(figure, rel=6e-3, abs=0.006) for figure in scaled]
        told = [f"{100 * (of_pods / beside - 1):+.1f}%" for of_pods, beside in zip(*means, strict=True)][:2]
        assert difference.replace("\N{MINUS SIGN}", "-") == ", ".join(told)


def test_the_page_of_pods_says_what_shares_and_green_contexts_measured():
    measured = measured_by("sm-shares-*")
    for sharing, _, *shown in rows_of_table(CLUSTER, "## Which multiprocessors"):
        limits = re.findall(r"[0-9.]+%", sharing)
        cell = "resnet50", 8, "mps" if limits else "green-contexts", *(limits or [""])
        for (measure, scale), text in zip(SM_MEASURES, shown, strict=True):
            mean, low, high = measured[(*cell, measure)]
            assert_told((mean, (high - low) / 2), scale, text)


@pytest.mark.parametrize("path", sorted((ROOT / "examples" / "h200").glob("*.yaml")), ids=lambda path: path.name)
def test_every_campaign_file_beside_them_can_be_run(path):
    source = read_source(str(path))

    assert expand(source.spec)
    assert path.name in path.read_text().partition("name:")[0], "its first lines say how it is run"


def test_the_model_of_the_engine_s_campaign_has_its_weights_and_a_token_for_each_word(tmp_path):
    program = ROOT / "examples/h200/make_model.py"
    small = ["--layers", "1", "--hidden", "64", "--heads", "4"]
    subprocess.run([sys.executable, program, tmp_path / "model", *small], check=True, capture_output=True, timeout=240)

    shape = json.loads((tmp_path / "model/config.json").read_text())
    words = json.loads((tmp_path / "model/tokenizer.json").read_text())["model"]["vocab"]
    assert (shape["architectures"], shape["num_hidden_layers"]) == (["LlamaForCausalLM"], 1)
    assert len(words) == shape["vocab_size"] == 32_000
    assert f"python {program.relative_to(ROOT)} /tmp/model" in (ROOT / "examples/h200/engine.yaml").read_text()


def test_the_page_of_the_busy_engine_says_what_its_set_measured():
    (archive,) = ROOT.glob("examples/busy-engine/*.tar.xz")
    keys = ["replicas", "sharing", "mps_limits", "load", "measure"]
    measured = (
        harness.load(archive).summary().set_index(keys)[["mean", "ci95_low", "ci95_high", "runs"]].T.to_dict("list")
    )
    rows = rows_of_table(BUSY, "## What sharing costs it")
    assert len(rows) == 8
    at_32 = (("ttft_p50_exact", 1e3), ("tpot_p50_exact", 1e3), ("gpu_sm_active", 1), ("energy_per_1000_tokens", 1))
    columns = [*((load, "output_tokens_per_s", 1) for load in (4, 8, 16, 32)), *((32, *column) for column in at_32)]
    for servers, mode, starts, *told in rows:
        sharing, _, limit = mode.replace(" of the SMs each", "").lower().partition(", ")
        for text, (load, measure, scale) in zip(told, columns, strict=True):
            mean, low, high, runs = measured[int(servers), sharing, limit.upper(), load, measure]
            value, _, half = text.replace(",", "").rstrip("%").partition(" ± ")
            most, _, fewer = starts.rstrip(")").partition(" (")
            assert runs == int(fewer.partition(" at ")[0] if fewer.endswith(f" at {load}") else most)
            assert f"{mean * scale:.{len(value.partition('.')[2])}f}" == value
            true_half = (high - low) / 2 * scale
            if half.startswith("<"):
                assert true_half < float(half[1:])
            elif half:
                assert float(half) == pytest.approx(true_half, rel=0.06, abs=0.5)
