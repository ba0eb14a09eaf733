"""Sharing modes at the same load, on streams of known content."""

import csv
import io

import numpy as np
import pytest

from harness.analysis import summary
from harness.analysis.campaign import analyse
from harness.analysis.contrasts.comparison import By, gather
from harness.analysis.questions.matched_load import PER_GPU, PER_USER, load_sweeps
from harness.analysis.report import report_of
from harness.spec import CampaignSpec
from tests.unit.results.streams import TOKENS, write_streams

RECORD_S = 10.0
SPEED = {"exclusive": 1.0, "time-slicing": 0.5, "mps": 0.8}
"""Of a GPU."""


def spec(**changes) -> CampaignSpec:
    values = {
        "name": "loads",
        "workloads": [{"name": "llm", "server": {"command": ["serve", "{port}"], "protocol": "openai-chat"}}],
        "sharing": ["exclusive", "time-slicing", "mps"],
        "replicas": [1, 2],
        "repeats": 3,
        "sweep": {"concurrency": [4, 16], "per": "gpu"},
        "timing": {"step_s": 1, "record_s": RECORD_S, "stabilise_s": 1, "cooldown_s": 0},
    }
    return CampaignSpec.model_validate(values | changes)


def answers(experiment, _replica):
    """A GPU makes 4 times as many tokens at 16 requests as at 4, until they crowd: 3 times; one replica is as fast under any mode."""
    speed = 1.0 if experiment.replicas == 1 else SPEED[experiment.sharing.value]
    speed *= 1 + 0.001 * experiment.repeat * (-1) ** len(experiment.sharing.value)
    requests = {4.0: 200, 16.0: 600}[experiment.load.value] * speed / experiment.replicas
    tpot_ms = {4.0: 10.0, 16.0: 13.0}[experiment.load.value] / speed
    return np.full(round(requests), 50.0), np.full(round(requests), tpot_ms)


@pytest.fixture(scope="module")
def analysis(tmp_path_factory):
    return analyse(write_streams(tmp_path_factory.mktemp("r") / "loads", spec(), answers))


@pytest.fixture
def sweep(analysis):
    (sweep,) = load_sweeps(analysis)
    return sweep


def at(sweep, mode, replicas, load):
    places = {(cell.mode, cell.replicas, cell.load.value): cell for cell in sweep.cells}
    return places[mode, replicas, load]


def test_both_axes_are_of_the_request_table(sweep):
    cell = at(sweep, "exclusive", 1, 16)
    # Of the answers that began before the recording a part of the tokens came before it, and none lies across its end.
    assert cell.estimates[PER_GPU].mean == pytest.approx(600 * TOKENS / RECORD_S, rel=0.02)
    assert cell.estimates[PER_USER].mean == pytest.approx(1000 / 13, rel=0.01)
    assert cell.estimates[PER_GPU].half_width > 0


def test_modes_are_held_against_one_replica_alone_at_the_same_load(sweep):
    for mode in ("time-slicing", "mps"):
        for load in (4.0, 16.0):
            contrast = sweep.against_baseline(at(sweep, mode, 2, load))
            assert (contrast.baseline.sharing, contrast.baseline.replicas) == ("exclusive", 1)
            assert contrast.baseline.load == contrast.candidate.load
            assert contrast.ratio.mean == pytest.approx(SPEED[mode], rel=0.02)
            assert contrast.significant
    assert sweep.against_baseline(at(sweep, "exclusive", 1, 4.0)) is None


def test_a_front_has_what_no_other_of_the_mode_beats(sweep):
    def front(mode):
        return [(cell.replicas, cell.load.value) for cell in sweep.front(mode)]

    assert front("exclusive") == [(1, 4), (1, 16)]
    assert front("mps") == front("time-slicing") == [(1, 4), (1, 16)], "two replicas serve less, and each slower"
    (panel,) = sweep.picture().panels
    lines = [series for series in panel.series if not series.runs]
    assert [series.name for series in lines] == [
        "exclusive, 1 replica",
        *(f"{mode}, {replicas}" for mode in ("time-slicing", "mps") for replicas in ("1 replica", "2 replicas")),
    ]
    assert {len(series.x) for series in lines} == {2}
    assert all(low <= y <= high for s in lines for low, y, high in zip(s.low, s.y, s.high, strict=True))


def test_the_table_has_a_row_for_every_configuration(sweep):
    table = sweep.table()
    assert len(table.rows) == 2 * (1 + 2 + 2)
    assert table.caption == "llm: load in resident requests per GPU"
    shared = [row for row in table.records() if (row["replicas"], row["sharing"], row["load"]) == ("2", "mps", "4")]
    assert [(row["baseline"], row["front"], row["answer"]) for row in shared] == [("exclusive, 1", "", "20.4% lower")]


@pytest.mark.usefixtures("undrawn")
def test_the_load_is_a_column_of_the_summary_and_a_section_of_the_report(analysis, tmp_path):
    lines = list(csv.DictReader(io.StringIO(summary.table(analysis).csv())))
    assert {(line["workload"], line["load"], line["load_unit"]) for line in lines} == {
        ("llm-c4-per-gpu", "4.0", "resident requests per GPU"),
        ("llm-c16-per-gpu", "16.0", "resident requests per GPU"),
    }
    page = report_of(analysis, tmp_path)
    assert '<section id="loads">' in page.read_text()
    assert (tmp_path / "plots" / "pareto-llm.png").exists() or (tmp_path / "plots" / "pareto-llm.svg").exists()


def test_without_a_sweep_there_is_no_such_section(tmp_path):
    plain = spec(sweep=None, sharing=["time-slicing"], replicas=[1], repeats=1)
    folder = write_streams(tmp_path / "plain", plain, lambda *_: (np.full(100, 50.0), np.full(100, 10.0)))
    assert load_sweeps(analyse(folder)) == []


def test_two_engines_are_compared_at_each_load(tmp_path):
    engine = {"command": ["serve", "{port}"], "protocol": "openai-chat"}
    workloads = [{"name": name, "server": engine} for name in ("one-engine", "other-engine")]
    two = spec(workloads=workloads, sharing=["mps"], replicas=[1])

    def half_as_fast(experiment, replica):
        ttft_ms, tpot_ms = answers(experiment, replica)
        slow = experiment.workload.family == "other-engine"
        return (ttft_ms[::2], 2 * tpot_ms[::2]) if slow else (ttft_ms, tpot_ms)

    comparison = gather([write_streams(tmp_path / "two", two, half_as_fast)], unlike=True)

    assert comparison.by is By.WORKLOAD, "with one mode there is nothing else to compare"
    assert comparison.sides == ["one-engine", "other-engine"]
    tpot = {test.key.workload: test.contrast for test in comparison.tests if test.contrast.metric == "tpot_p50_exact"}
    assert list(tpot) == ["4 resident requests per GPU", "16 resident requests per GPU"]
    for contrast in tpot.values():
        assert contrast.ratio.low > 1
        assert contrast.ratio.mean == pytest.approx(2, rel=0.01)
        assert contrast.significant
