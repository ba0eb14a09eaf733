"""The result sets that are shipped hold what their manifests say, and what their page says of them."""

import json
import math
import re
import shlex
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest

from harness.analysis.format import DASH, TIMES
from harness.analysis.statistics import t_interval
from harness.campaign.folder import open_folder
from harness.campaign.plan import expand
from harness.campaign.source import read_source
from harness.campaign.verify import verify_campaign

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "examples/h200/README.md").read_text()
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
ARCHIVES = sorted(ROOT.glob("examples/*/*.tar.xz"))


def test_there_is_a_result_set():
    assert ARCHIVES


def test_the_examples_stay_few_and_small():
    listed = subprocess.run(
        ["git", "ls-files", "examples"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    sizes = [(ROOT / name).stat().st_size for name in listed.splitlines()]

    assert len(sizes) <= 100
    assert sum(sizes) <= 12e6, "publish a set with --resolution 1us"


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name)
def test_every_shipped_result_set_verifies(archive, published):
    (campaign,) = published(archive.name)
    outcome = verify_campaign(campaign)

    assert outcome.ok, outcome.problems[0]
    assert archive.name == f"{campaign.name}.tar.xz"
    planned = len(expand(open_folder(campaign).spec))
    finished = f"{outcome.experiments} of {planned} experiments are finished"
    notes = [note for note in outcome.notes if not re.search("instants were rounded to 10{3,4} ns", note)]
    assert len(notes) < len(outcome.notes), "it is condensed"
    if open_folder(campaign).spec.stress is not None:
        assert not notes
        assert 0 < outcome.experiments <= planned, "a stress campaign ends where something breaks"
    elif notes:
        assert notes == [f"{campaign}: {finished}."]
        assert finished in (archive.parent / "README.md").read_text(), "the page says which set is not whole"
    else:
        assert outcome.experiments == planned


@pytest.mark.parametrize("line", re.findall(r"^harness .*", PAGE + TWO_GPUS, flags=re.MULTILINE))
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


def test_the_table_of_hostile_neighbours_is_what_the_campaign_measured(published):
    measured = figures(published("h200-hostile-*"), 2)
    rows = rows_of_table(PAGE, "## Beside hostile neighbours")
    for name, *shown in rows:
        for mode, (rate, lost, p99) in {"time-slicing": shown[:3], "mps": shown[3:]}.items():
            cell = "resnet50", "1", f"{mode} alone" if name == "alone" else f"{mode} beside-{name}"
            if rate == "died":
                continue
            assert_told(measured[*cell, "throughput"], 1, rate)
            assert_told(measured[*cell, "latency_p99_exact"], 1e3, p99)
            alone = measured["resnet50", "1", f"{mode} alone", "throughput"][0]
            share = 100 * (1 - measured[*cell, "throughput"][0] / alone)
            assert lost == (DASH if name == "alone" else f"{share:.0f} %")
    (campaign,) = published("h200-hostile-*")
    manifests = [json.loads(path.read_text()) for path in sorted(campaign.glob("*beside-crash*/manifest.json"))]
    fates = [(each["experiment"]["sharing"], found["code"]) for each in manifests for found in each["findings"]]
    told = [fate for fate in fates if fate[1].startswith("victim")]
    assert sorted(told) == 2 * [("mps", "victim-died")] + 2 * [("time-slicing", "victim-survived")]
    assert len(rows) == 7


def test_the_table_of_offline_is_what_the_campaign_measured(published):
    measured = figures(published("h100-offline-*"))
    rows = rows_of_table(TWO_GPUS, "## LoadGen's Offline on one of them")
    for name, *rates, ratio, energy, active in rows:
        kinds = [f"{name.lower()}-{kind}" for kind in ("bytes", "device")]
        for kind, rate in zip(kinds, rates, strict=True):
            assert_told(measured[kind, "1", "exclusive", "throughput"], 256, rate)
        one, other = (measured[kind, "1", "exclusive", "throughput"][0] for kind in kinds)
        assert ratio == f"{one / other:.3f}"
        assert energy == f"{measured[kinds[0], '1', 'exclusive', 'energy'][0] * 1000 / 256:.1f}"
        assert active == f"{measured[kinds[0], '1', 'exclusive', 'gpu_sm_active'][0]:.1f}"
    assert [row[0] for row in rows] == ["fp16", "FP8"]


def test_the_table_of_neighbours_on_the_other_gpu_is_what_the_campaign_measured(published):
    measured = figures(published("two-gpus-neighbour-*"), (4, 5))
    (campaign,) = published("two-gpus-neighbour-*")
    rates = defaultdict(dict)
    for run in json.loads((campaign / "summary.json").read_text())["experiments"]:
        *_, mode, condition, repeat = run["experiment"].split("_")
        rates[mode, condition][repeat] = run["figures"]["throughput"]
    rows = rows_of_table(TWO_GPUS, "## Does the other GPU's neighbour matter?")
    for name, *shown in rows:
        for mode, (rate, change) in {"exclusive": shown[:2], "mps": shown[2:]}.items():
            condition = name if name == "alone" else f"beside-{name}"
            assert_told(measured["resnet50", "1", f"{mode} {condition}", "throughput"], 1, rate)
            alone = rates[mode, "alone"]
            ratio = t_interval([math.log(each / alone[repeat]) for repeat, each in rates[mode, condition].items()])
            low, mean, high = (
                f"{100 * math.expm1(ratio.mean + part * ratio.half_width):+.1f}".replace("-", "\N{MINUS SIGN}")
                for part in (-1, 0, 1)
            )
            assert change == (DASH if name == "alone" else f"{mean} ({low} to {high})")
    assert len(rows) == 6
    manifests = [json.loads(path.read_text()) for path in sorted(campaign.glob("*beside-crash*/manifest.json"))]
    assert [found["code"] for each in manifests for found in each["findings"]] == 9 * ["victim-survived"]


def test_the_table_of_activity_on_an_h100_is_what_the_campaign_measured(published):
    measured, workload = figures(published("h100-activity-*"), (2, 3)), ""
    (campaign,) = published("h100-activity-*")
    rows = rows_of_table(TWO_GPUS, "## How full one of them is")
    for name, replicas, sharing, runs, *shown in rows:
        workload = name.lower() or workload
        for (measure, scale), text in zip(SHARES_COLUMNS[:-1], shown, strict=True):
            assert_told(measured[workload, replicas, sharing.lower(), measure], scale, text)
        assert int(runs) == len(list(campaign.glob(f"{workload}_r{replicas}_{sharing.lower()}_rep*")))
    assert len(rows) == 14


def whole(figure, unit):
    """``122 ± 12`` as ``122 ms (110 to 134)``."""
    mean, half = map(int, figure.split(" ± "))
    return f"{mean} {unit} ({mean - half} to {mean + half})"


def test_the_page_of_servers_repeats_rows_of_the_sets_table():
    rows = rows_of_table(PAGE, "## Servers of a language model")[-6:]
    measured = [row[1:4] + row[6:] for row in rows]
    shown = rows_of_table((ROOT / "docs/servers.md").read_text(), "## transformers serve, as it was measured")

    assert shown == measured
    modes = zip(rows[::2], rows[1::2], strict=True)  # time-slicing and MPS of the same number
    expected = [
        [one[1], *(whole(each[column], unit) for column, unit in ((5, "ms"), (7, "J")) for each in (one, other))]
        for one, other in modes
    ]
    assert rows_of_table((ROOT / "README.md").read_text(), "Servers of a language model") == expected


def test_the_readmes_table_is_what_the_campaigns_measured(published):
    eager, busy, shares = (figures(published(name)) for name in ("h200-sharing-*", "h200-busy-*", SHARES))

    def ratio(measured, workload, measure, mode="mps", replicas="8"):
        one, other = (measured[workload, replicas, each, measure][0] for each in (mode, "time-slicing"))
        return one / other

    def percent(share):
        return f"{100 * (share - 1):+.0f} %".replace("-", "\N{MINUS SIGN}")

    def both(measured, workload, digits, **mode):
        rate, energy = (ratio(measured, workload, measure, **mode) for measure in ("throughput", "energy"))
        return f"throughput {TIMES} {rate:.{digits}f}, energy {percent(energy)}"

    expected = [
        [
            name,
            both(eager, key, 1),
            both(busy, key, 2),
            both(shares, key, 2, mode="mps 2-over-n") if key != "whisper" else DASH,
            ", ".join(
                f"{mode.replace('mps', 'MPS')} {shares[key, '8', mode, 'gpu_sm_active'][0]:.0f} %"
                for mode in ("time-slicing", "mps")
            ),
            f"throughput {percent(ratio(busy, key, 'throughput', replicas='1'))}",
        ]
        for name in ("ResNet50", "DistilBERT", "Whisper")
        for key in [name.lower()]
    ]
    assert rows_of_table((ROOT / "README.md").read_text(), "Eight replicas on one H200") == expected


@pytest.mark.parametrize("path", sorted((ROOT / "examples" / "h200").glob("*.yaml")), ids=lambda path: path.name)
def test_every_campaign_file_beside_them_can_be_run(path):
    source = read_source(str(path))

    assert expand(source.spec)
    assert path.name in path.read_text().partition("name:")[0], "its first lines say how it is run"
