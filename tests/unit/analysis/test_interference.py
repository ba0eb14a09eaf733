"""Overhead against a baseline: known truth in simulated pairs, and a campaign whose files say what they must."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from harness.analysis.campaign import CampaignAnalysis, Cell, ConfigurationKey, analyse
from harness.analysis.contrasts.comparison import Comparison, gather
from harness.analysis.pages.tables import overhead_table
from harness.analysis.questions.condition_overhead import (
    Interference,
    Overhead,
    in_words,
    interference,
    judge,
)
from harness.analysis.questions.isolation import IsolationChoice, isolated, isolation_choices, overheads
from harness.analysis.report import report_of
from harness.analysis.statistics import Estimate, Outcome, paired
from harness.errors import ReasonCode
from harness.metrics.rows import MetricRow, series_name
from harness.results.layout import attempt_folder, iso, neighbour_folder, replica_folder
from harness.results.manifest import Status, Verdict
from harness.results.requests import LATENCY
from harness.results.writers import ExperimentWriter, finalise
from harness.spec import CampaignSpec, ConditionSpec, LayerSpec, NeighbourSpec, Sharing, WorkloadSpec
from tests.unit.results.synthetic import START_S, Shape, experiment_spec, manifest_for, write_campaign

SHAPE = Shape(record_s=20)
METRICS = ["throughput", "total_count"]
ALONE = ConditionSpec(name="alone")
BESIDE = ConditionSpec(name="beside", neighbours=[NeighbourSpec(workload=WorkloadSpec(name="whisper"), replicas=2)])
HOOKED = ConditionSpec(name="hooked", layer=LayerSpec(environment={"HOOK": "on"}))
DRIFT = {1: 100.0, 2: 60.0, 3: 30.0}
"""Requests per second alone, by repeat: the machine slows down over the day."""
LEFT = {"alone": 1.0, "beside": 0.8, "hooked": 0.99}
"""Share of that under each condition."""
NOISE = {1: 1.002, 2: 1.0, 3: 0.998}
OF_NEIGHBOURS = {"whisper": (20.0, 10.0)}


def simulated(random: np.random.Generator, repeats: int, overhead: float) -> Estimate:
    """Pairs whose second is ``overhead`` slower, on a machine that differs by far more from one repeat to the next."""
    machine = random.lognormal(3, 0.5, size=repeats)
    before, after = (machine * random.lognormal(0, 0.02, size=repeats) for _ in range(2))
    return paired((after * (1 + overhead)).tolist(), before.tolist()).estimate()


@pytest.mark.parametrize("repeats", [3, 5, 10])
def test_the_interval_of_paired_ratios_covers_the_truth_whatever_drifts(repeats):
    random = np.random.default_rng(repeats)
    covered = 0
    for _ in range(2000):
        ratio = simulated(random, repeats, 0.04)
        covered += ratio.low <= 1.04 <= ratio.high
    assert 0.935 <= covered / 2000 <= 0.965


def test_an_overhead_at_its_limit_is_called_a_pass_or_a_fail_in_5_percent_of_all_campaigns():
    random = np.random.default_rng(1)
    outcomes = []
    for _ in range(2000):
        ratio = simulated(random, 4, 0.05)
        percent = Estimate(*(100 * (value - 1) for value in (ratio.mean, ratio.low, ratio.high)), ratio.n, None)
        outcomes.append(judge(percent, 5.0)[0])
    assert outcomes.count(Outcome.PASS) / 2000 < 0.035
    assert outcomes.count(Outcome.FAIL) / 2000 < 0.035


@pytest.mark.parametrize(
    ("mean", "low", "high", "outcome", "why"),
    [
        (1.0, -0.5, 2.5, Outcome.PASS, "the whole interval lies below 5%"),
        (-3.0, -4.0, -2.0, Outcome.PASS, "the whole interval lies below 5%"),
        (9.0, 7.0, 11.0, Outcome.FAIL, "the whole interval lies above 5%"),
        (3.0, -1.5, 7.5, Outcome.INCONCLUSIVE, "the interval includes the limit; try 6 repeats"),
        (5.0, 2.0, 8.0, Outcome.INCONCLUSIVE, "the interval includes the limit; it is too close to the limit"),
    ],
)
def test_only_an_interval_on_one_side_of_the_limit_decides(mean, low, high, outcome, why):
    assert judge(Estimate(mean, low, high, 3, None), 5.0) == (outcome, why)


def test_one_repeat_decides_nothing():
    ratio = paired([99.0], [100.0]).estimate()

    assert (ratio.low, ratio.high) == (None, None)
    assert judge(Estimate(1.0, None, None, 1, None, ratio.note), 5.0) == (
        Outcome.INCONCLUSIVE,
        "one repeat has no interval",
    )
    with pytest.raises(ValueError, match="pairs of positive values"):
        paired([], [])


def write(folder: Path, condition: ConditionSpec, repeat: int) -> None:
    """One finished experiment whose figures are those of the tables above."""
    spec = experiment_spec("resnet50", 1, repeat, SHAPE).model_copy(update={"condition": condition, "metrics": METRICS})
    attempt = attempt_folder(folder, spec.experiment_id, 1)
    own = DRIFT[repeat] * LEFT[condition.name] * (NOISE[repeat] if condition is not ALONE else 1.0)
    rates = {"": (own,), **(OF_NEIGHBOURS if condition.neighbours else {})}
    start_s = START_S + 600 * repeat + 60 * list(LEFT).index(condition.name)
    with ExperimentWriter(
        attempt, workload="resnet50", replicas=1, metrics=METRICS, start_s=start_s, step_s=SHAPE.step_s
    ) as writer:
        for row in range(spec.timing.rows):
            writer.write(rows_at(start_s, row, rates))
    for neighbour, each in rates.items():
        place = neighbour_folder(attempt, neighbour) if neighbour else attempt
        for replica, rate in enumerate(each):
            write_log(replica_folder(place, replica), rate, start_s)
    finalise(
        attempt,
        folder / spec.experiment_id,
        manifest_for(spec, SHAPE, start_s).model_copy(update={"absent_metrics": {}}),
    )


def rows_at(start_s: float, row: int, rates: dict[str, tuple[float, ...]]) -> list[MetricRow]:
    found = []
    for neighbour, each in rates.items():
        named = {**{f"replica-{index}": rate for index, rate in enumerate(each)}, "all": sum(each)}
        for name, rate in named.items():
            series = series_name(name, neighbour)
            found.append(MetricRow("throughput", series, start_s + row, rate))
            found.append(MetricRow("total_count", series, start_s + row, float(round(rate * row))))
    return found


def write_log(folder: Path, rate: float, start_s: float) -> None:
    folder.mkdir(parents=True)
    records = np.zeros(int(rate * 20), dtype=LATENCY)
    records["start_ns"] = round(start_s * 1e9) + (np.arange(len(records)) / rate * 1e9).astype(np.int64) + 1
    records["latency_ns"] = round(1e9 / rate * 0.9)
    records.tofile(folder / "latencies.bin")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results") / "conditions"
    folder.mkdir()
    conditions = [ALONE, BESIDE, HOOKED]
    spec = CampaignSpec(
        name="conditions",
        workloads=[WorkloadSpec(name="resnet50")],
        replicas=[1],
        repeats=3,
        conditions=conditions,
        timing=experiment_spec("resnet50", 1, 1, SHAPE).timing,
    )
    identity = {"format": 1, "campaign_id": "0", "source": "c.yaml", "created_at": iso(START_S)}
    (folder / "campaign.json").write_text(json.dumps({**identity, "spec": spec.model_dump(mode="json")}))
    for repeat in DRIFT:
        for condition in conditions:
            write(folder, condition, repeat)
    return folder


@pytest.fixture(scope="module")
def analysis(folder: Path) -> CampaignAnalysis:
    return analyse(folder)


@pytest.fixture
def found(analysis: CampaignAnalysis) -> Interference:
    outcome = interference(analysis)
    assert outcome is not None
    return outcome


def overhead(found: Interference, condition: str, measure: str) -> Overhead:
    one = found.overheads[ConfigurationKey("resnet50", "time-slicing", 1, condition)][measure]
    assert isinstance(one, Overhead)
    return one


def test_a_neighbour_that_slows_fails_and_a_thin_layer_passes_although_the_machine_drifts(found):
    beside, hooked = overhead(found, "beside", "throughput"), overhead(found, "hooked", "throughput")

    assert beside.percent.mean == pytest.approx(20, abs=0.1)
    assert (beside.outcome, list(beside.kept)) == (Outcome.FAIL, [1, 2, 3])
    assert overhead(found, "beside", "latency_p50_exact").percent.mean == pytest.approx(25, abs=0.1)
    assert hooked.percent.mean == pytest.approx(1, abs=0.1)
    assert hooked.outcome is Outcome.PASS
    assert found.limit_percent == 5


def test_every_condition_has_a_sentence_and_its_gravest_measure_is_its_verdict(found):
    (beside, hooked), sentences = found.sentences(gravest=True), found.sentences()

    assert "limit 5%: Throughput: 20.0%" in beside
    assert (beside.rpartition(": ")[2], hooked.rpartition(": ")[2]) == ("fail.", "pass.")
    assert len(sentences) == 2
    assert sentences[1].count(": pass") == 4


def test_neighbours_have_figures_of_their_own_and_enter_nobody_elses(found, analysis):
    [whisper] = found.neighbours

    assert (whisper.key.condition, whisper.workload, whisper.replicas) == ("beside", "whisper", 2)
    assert whisper.estimates["throughput"].mean == pytest.approx(30)
    assert whisper.estimates["latency_p50_exact"].mean == pytest.approx(0.045)
    assert whisper.estimates["fairness"].mean == pytest.approx(0.5)
    [beside] = [cell for cell in analysis.cells if cell.condition == "beside"]
    assert beside.estimates["throughput"].mean == pytest.approx(0.8 * sum(DRIFT.values()) / 3, rel=0.01)


def test_a_neighbour_without_its_requests_has_no_percentiles(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "conditions")
    for experiment in copy.glob("*_beside_*"):
        (neighbour_folder(experiment, "whisper") / "requests.parquet").unlink()

    outcome = interference(analyse(copy))

    [whisper] = outcome.neighbours
    assert "latency_p50_exact" not in whisper.estimates
    assert whisper.absent["latency_p50_exact"] == "0 of 1 logs of requests are there"
    assert whisper.estimates["throughput"].n == 3


def test_what_the_worst_neighbour_takes_in_the_mean_and_kills_is_one_sentence(analysis):
    (dead,) = [cell for cell in analysis.cells if cell.condition == "hooked"]
    manifest = dead.experiments[0].data.manifest
    verdict = manifest.verdict.model_copy(update={"codes": [ReasonCode.VICTIM_DIED]})
    data = replace(dead.experiments[0].data, manifest=manifest.model_copy(update={"verdict": verdict}))
    killed = replace(dead, experiments=[replace(dead.experiments[0], data=data), *dead.experiments[1:]])
    found = interference(replace(analysis, cells=[killed if cell is dead else cell for cell in analysis.cells]))

    (said,) = found.worst()
    assert "against alone, with its worst neighbour: time-slicing keeps 80.0% of the throughput (" in said
    assert said.endswith("%, beside) and dies under hooked in 1 of 3 runs.")


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        ({}, ""),
        ({"neighbours": [{"workload": {"name": "l2-hog"}}]}, "l2-hog fills the shared cache"),
        (
            {"neighbours": [{"workload": {"name": "pest", "model": "crash"}, "replicas": 3}]},
            "pest, 3 times, crashes",
        ),
        (
            {"neighbours": [{"workload": {"name": "whisper"}}], "layer": {"prefix": ["taskset", "-c", "0"]}},
            "1 replica of whisper beside, started by taskset -c 0",
        ),
        (
            {"layer": {"preload": "/opt/hook.so", "environment": {"A": "1", "B": "2"}}},
            "with /opt/hook.so loaded first, with A, B set",
        ),
    ],
)
def test_a_condition_says_what_it_is(condition, words):
    assert ConditionSpec.model_validate({"name": "any", **condition}).in_words == words


def test_a_campaign_with_conditions_stands_beside_others_whatever_machine_it_ran_on(analysis, tmp_path):
    plain = analyse(write_campaign(tmp_path / "plain", replicas=[1], repeats=1, shape=replace(SHAPE, gpu=False)))
    read = {plain.folder: plain, analysis.folder: analysis}

    pool = gather([*read], read=read.__getitem__)

    assert pool.analyses == [plain]
    assert {arm.rest[-1] for arm in pool.arms} == {""}
    reason, said, conditions, measured = isolated(pool, overheads(pool)).sentences
    assert conditions == "(beside: 2 replicas of whisper beside.)"
    assert reason.startswith("No neighbour was measured under two modes")
    assert "time-slicing keeps 80.0% of the throughput" in said
    assert measured == "Measured apart: conditions, resnet50 with batch 1, fp32, eager, on Synthetic GPU."
    assert gather([analysis.folder], "condition", read=read.__getitem__).beside is None
    assert isolated(gather([analysis.folder], read=read.__getitem__), interference(analysis)).apart == ""
    (unknown,) = isolated(gather([plain.folder], read=read.__getitem__), None).sentences
    assert unknown.startswith("Not measured. Add a campaign with `neighbours`")


def under(cell: Cell, sharing: str, kept: float, *, died: bool = False) -> Cell:
    """The same cell as another mode would have left it: that share of its throughput, or nothing, for the service died."""
    runs = []
    for index, run in enumerate(cell.experiments):
        figures = {**run.figures, "throughput": kept * run.figures["throughput"] * (1 + index / 1000)}
        verdict = Verdict(status=Status.INVALID, codes=[ReasonCode.VICTIM_DIED]) if died else run.data.manifest.verdict
        manifest = run.data.manifest.model_copy(update={"verdict": verdict})
        data = replace(run.data, manifest=manifest)
        runs.append(replace(run, data=data, figures=figures))
    return replace(cell, key=cell.key._replace(sharing=sharing), experiments=runs)


def both(analysis: CampaignAnalysis, beside: float, *, died: bool = False) -> CampaignAnalysis:
    """The campaign under time-slicing, and under MPS with that share left beside the neighbour."""
    left = {"alone": 1.0, "beside": beside / LEFT["beside"], "hooked": 1.0}
    other = [
        under(cell, "mps", left[cell.condition], died=died and cell.condition == "beside") for cell in analysis.cells
    ]
    return replace(analysis, cells=[*analysis.cells, *other])


def chosen(analysis: CampaignAnalysis, pool: Comparison) -> list[IsolationChoice]:
    found = interference(analysis)
    assert found is not None
    return isolation_choices(pool, analysis, found)


def test_the_mode_that_isolates_best_is_named_with_its_figure_and_what_it_costs_elsewhere(analysis, tmp_path):
    shape = replace(SHAPE, gpu=True, noise=0.005, record_s=5)
    modes = [Sharing.TIME_SLICING, Sharing.MPS]
    plain = analyse(write_campaign(tmp_path / "plain", replicas=[1, 3], repeats=3, shape=shape, sharing=modes))
    pool = gather([plain.folder], read=lambda _folder: plain)

    (better,) = chosen(both(analysis, 0.4), pool)
    assert (better.best.mode, better.decided) == ("time-slicing", True)
    assert better.gain.mean == pytest.approx(2, rel=0.01)
    assert "time-slicing keeps 80.0% of the throughput (79.6 to 80.4%, beside); MPS keeps 40.0%" in better.takeaway
    assert re.search(r"Significant: 2\.00 times \(1\.9\d+ to 2\.\d+\)\. But resnet50, 3 replicas", better.takeaway)
    assert re.search(r"resnet50, 3 replicas: throughput \N{MINUS SIGN}[\d.]+%.* vs MPS$", better.costs), better.costs
    (better,) = chosen(both(analysis, 0.95), pool)
    assert (better.best.mode, better.decided, better.costs) == ("mps", True, "")
    (neither,) = chosen(both(analysis, 0.8), pool)
    assert not neither.decided
    assert "No clear winner: 1.00 times" in neither.takeaway


def test_a_mode_in_which_the_service_dies_isolates_worst_whatever_it_keeps_elsewhere(analysis):
    pool = gather([analysis.folder], read=lambda _folder: analysis)

    (better,) = chosen(both(analysis, 0.95, died=True), pool)
    assert (better.best.mode, better.decided) == ("time-slicing", True)
    assert better.gain is None, "what was not measured is not zero"
    assert better.takeaway.endswith("; MPS dies under beside in 3 of 3 runs.")


def test_a_death_decides_and_makes_no_difference_significant(analysis):
    pool = gather([analysis.folder], read=lambda _folder: analysis)
    (even,) = chosen(both(analysis, 0.8), pool)

    decided = replace(even, next=replace(even.next, deaths={"crash": (3, 3)}))

    assert decided.decided
    assert "Not significant: 1.00 times" in decided.takeaway


def test_one_repeat_is_said_and_not_decided(analysis):
    cells = [replace_repeats(cell, 1) for cell in analysis.cells]

    found = interference(replace(analysis, cells=cells))

    assert "19.8% overhead: inconclusive, one repeat has no interval" in found.sentences()[0]
    entry = overhead_table(found).rows[0][5]
    assert (entry.text, entry.reason) == ("19.8% inconclusive", "one repeat has no interval")


def replace_repeats(cell, repeats):
    return replace(cell, experiments=cell.experiments[:repeats])


def test_repeats_that_cannot_be_paired_are_said(analysis):
    cells = [replace(cell, experiments=[]) if cell.condition == "alone" else cell for cell in analysis.cells]

    found = interference(replace(analysis, cells=cells))

    assert all("inconclusive, no repeat can be used under both conditions" in line for line in found.sentences())
    assert in_words("p99 takes at least 100 requests") == "inconclusive, p99 takes at least 100 requests"


@pytest.mark.usefixtures("undrawn")
def test_replicas_without_a_gpu_are_called_those_of_the_cpu_and_their_ids_stay(analysis):
    on_cpu = replace(analysis, cells=[replace(cell, on_cpu=True) for cell in analysis.cells])
    found = interference(on_cpu)
    pool = gather([analysis.folder], read=lambda _folder: on_cpu)

    assert [row.on_cpu for row in analysis.cells] == [False] * 3
    said = [*found.worst(), *found.sentences(), *pool.missing_modes(), *map(str, overhead_table(found).rows)]
    assert not [sentence for sentence in said if "time-slicing" in sentence]
    assert "resnet50, 1 replica, against alone, with its worst neighbour: it keeps 80.0% of the throughput (" in said[0]
    assert pool.missing_modes() == ["Sharing modes need a GPU: these replicas ran on the CPU."]
    assert {cell.key.sharing for cell in on_cpu.cells} == {"time-slicing"}


def test_the_report_says_who_keeps_the_limit(folder):
    page = report_of(analyse(folder)).read_text()
    text = (folder / "report.md").read_text()

    for said in (page, text):
        assert "Overhead against alone" in said
        assert "inconclusive" not in said.partition("Mean of the repeats")[0]
        assert "whisper" in said
    assert 'class="badge INVALID">fail' in page
    assert 'class="badge VALID">pass' in page
    assert "| beside | resnet50 | 1 | time-slicing | 3 | 20.0% (" in text
    document = json.loads((folder / "summary.json").read_text())
    [line] = [x for x in document["overheads"] if x["condition"] == "hooked" and x["measure"] == "throughput"]
    assert line["outcome"] == "pass"
    assert line["percent"]["high"] < 5


def test_a_campaign_without_conditions_has_no_such_section(analysis):
    plain = replace(analysis, spec=analysis.spec.model_copy(update={"conditions": []}))

    assert interference(plain) is None
