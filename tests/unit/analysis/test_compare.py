from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.analysis.campaign import analyse
from harness.analysis.contrasts.comparison import By, CellKey, Comparison, gather, gathered
from harness.analysis.contrasts.contrast import Contrast
from harness.analysis.narrative import answers
from harness.analysis.report import report_of
from harness.analysis.statistics import Outcome
from harness.analysis.summary import headline
from harness.campaign.publish import publish
from harness.errors import ResultsPathError, UnlikeResultsError, UsageError
from harness.results.manifest import Status
from harness.spec import ConditionSpec, MpsSpec, Sharing
from tests.unit.results.synthetic import MPS_CAPACITY, Shape, rates, write_campaign, write_experiment

SHAPE = Shape(record_s=4, noise=0.005)
MODES = [Sharing.EXCLUSIVE, Sharing.TIME_SLICING, Sharing.MPS]


@pytest.fixture(scope="module")
def modes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three modes of one workload: MPS serves more from two replicas on, and nothing tells the modes apart at one."""
    return write_campaign(
        tmp_path_factory.mktemp("results") / "modes", replicas=[1, 3], repeats=3, shape=SHAPE, sharing=MODES
    )


@pytest.fixture(scope="module")
def slicing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape = replace(SHAPE, seed=1)
    return write_campaign(tmp_path_factory.mktemp("results") / "slicing", replicas=[1, 3], repeats=3, shape=shape)


@pytest.fixture(scope="module")
def by_mode(modes: Path) -> Comparison:
    return gather([modes])


def test_sides_that_ran_one_after_another_are_said(tmp_path: Path) -> None:
    modes = MODES[1:]
    for name, interleaved in (("listed", False), ("interleaved", True)):
        folder = write_campaign(tmp_path / name, replicas=[1], repeats=2, shape=SHAPE, sharing=modes, finished=0)
        runs = [(mode, repeat) for mode in modes for repeat in (1, 2)]
        for order, (mode, repeat) in enumerate(sorted(runs, key=lambda run: run[1]) if interleaved else runs):
            write_experiment(folder, "resnet50", 1, repeat, replace(SHAPE, sharing=mode), order)
        told = [sentence for sentence in gather([folder]).unlike if "ran before those of another" in sentence]
        assert len(told) == (not interleaved)
        assert all("difference: resnet50 with 1." in sentence for sentence in told)


def held(comparison: Comparison, metric: str, replicas: int, b: str) -> Contrast:
    (contrast,) = [
        test.contrast
        for test in comparison.tests
        if (test.contrast.metric, test.key.replicas, test.b) == (metric, replicas, b)
    ]
    return contrast


def test_modes_of_one_campaign_are_its_sides(by_mode: Comparison) -> None:
    assert by_mode.by is By.SHARING
    assert by_mode.sides == ["exclusive", "time-slicing", "mps"]
    assert {test.a for test in by_mode.tests if test.key.replicas == 1} == {"exclusive"}
    assert held(by_mode, "throughput", 1, "mps").outcome is Outcome.NOT_SIGNIFICANT
    gain = held(by_mode, "throughput", 3, "mps")
    assert gain.baseline.sharing == "time-slicing"
    truth = sum(rates("resnet50", 3, replace(SHAPE, sharing=Sharing.MPS))) / sum(rates("resnet50", 3, SHAPE))
    assert 1 < truth < MPS_CAPACITY
    assert gain.ratio.mean == pytest.approx(truth, rel=0.02)
    assert gain.ratio.low < gain.ratio.mean < gain.ratio.high
    assert gain.outcome is Outcome.HIGHER


def test_two_campaigns_are_sides_unless_told_otherwise(modes: Path, slicing: Path) -> None:
    pool = gather([slicing, modes])
    assert pool.sides == ["slicing", "modes"]
    assert {test.b for test in pool.tests} == {"modes, time-slicing"}
    assert (CellKey("resnet50", 3), "modes, mps") in pool.lonely
    together = gather([slicing, modes], "sharing")
    assert together.sides == ["exclusive", "time-slicing", "mps"]
    (shared,) = [arm for arm in together.arms if arm.side == "time-slicing"]
    assert shared.cells[CellKey("resnet50", 1)].estimates["throughput"].n == 6


def test_the_same_measured_again_does_not_differ(slicing: Path, tmp_path: Path) -> None:
    again = write_campaign(tmp_path / "again", replicas=[1], repeats=3, shape=replace(SHAPE, seed=5))
    comparison = gather([slicing, again])
    assert {test.contrast.outcome for test in comparison.tests} == {Outcome.NOT_SIGNIFICANT}
    assert comparison.lonely == [(CellKey("resnet50", 3), "slicing")]
    assert not comparison.unlike


def test_one_repeat_has_a_ratio_without_interval_and_no_verdict(slicing: Path, tmp_path: Path) -> None:
    once = write_campaign(tmp_path / "once", replicas=[1], repeats=1, shape=replace(SHAPE, scale=2.0))
    for test in gather([slicing, once]).tests:
        assert test.contrast.ratio.half_width is None
        assert test.contrast.outcome is Outcome.INCONCLUSIVE
        assert "single run" in test.contrast.sentence


@pytest.mark.parametrize(
    ("by", "sides", "pairs"),
    [
        (
            "workload",
            ["resnet50", "whisper"],
            {("resnet50, time-slicing", "whisper, time-slicing"), ("resnet50, mps", "whisper, mps")},
        ),
        ("share", ["mps", "mps (1/N)"], {("mps", "mps (1/N)")}),
    ],
)
def test_any_two_things_are_compared(tmp_path: Path, by: str, sides: list[str], pairs: set[tuple[str, str]]) -> None:
    several = {"workloads": ["resnet50", "whisper"]} if by == "workload" else {"mps": MpsSpec(share=["all", "1/N"])}
    folder = write_campaign(tmp_path / by, replicas=[2], repeats=3, shape=SHAPE, sharing=MODES[1:], **several)
    comparison = gather([folder], by)
    assert comparison.sides == sides
    assert {(test.a, test.b) for test in comparison.tests} == pairs
    assert {test.contrast.family for test in comparison.tests} == {
        8 if by == "workload" else 5
    }  # of each pair; a p99 of whisper takes longer


def test_limits_that_nobody_measured_are_no_sides(slicing: Path) -> None:
    with pytest.raises(UsageError, match="no run of these campaigns has one"):
        gather([slicing], "share")


def test_conditions_are_sides_and_other_modes_are_not_mixed_in(tmp_path: Path) -> None:
    conditions = [ConditionSpec(name="alone"), ConditionSpec(name="beside")]
    folder = write_campaign(tmp_path / "c", replicas=[1], repeats=2, shape=SHAPE, conditions=conditions)
    pool = gather([folder])
    assert pool.by is By.CONDITION
    assert pool.sides == ["alone", "beside"]
    assert {(test.a, test.b) for test in pool.tests} == {("alone", "beside")}
    assert [arm.side for arm in gather([folder], "sharing").arms] == ["time-slicing", "time-slicing"]


@pytest.mark.usefixtures("undrawn")
def test_mps_is_a_side_for_each_of_its_limits_and_every_table_names_them(tmp_path: Path) -> None:
    modes = (Sharing.TIME_SLICING, Sharing.MPS)
    mps = MpsSpec(share=["all", "1/N"], pinned_memory_gb=[None, 10])
    folder = write_campaign(tmp_path / "swept", replicas=[3], repeats=2, shape=SHAPE, sharing=modes, mps=mps)
    sides = ["time-slicing", "mps", "mps (10 GB)", "mps (1/N)", "mps (1/N, 10 GB)"]

    pool = gather([folder])
    assert pool.sides == [arm.label for arm in pool.arms] == sides
    assert {(test.a, test.b) for test in pool.tests} == {("time-slicing", side) for side in sides[1:]}

    analysis = analyse(folder)
    report_of(analysis)
    report = (folder / "report.md").read_text()
    (mode, *_), *rows = [
        [cell.strip() for cell in line.split("|")[2:-1]]
        for line in report.splitlines()
        if line.startswith(("| Replicas", "| 3 |"))
    ]
    assert [mode, *sides] == list(dict.fromkeys([mode, *(row[0] for row in rows)]))
    assert "limits of a replica: no limit; 10 GB of GPU memory; 1/N of the multiprocessors; 1/N" in report
    assert {row["mps_limits"] for row in headline(analysis)} == {"", "10 GB", "1/N", "1/N, 10 GB"}


def test_a_replica_that_served_nothing_is_told(slicing: Path) -> None:
    analysis = analyse(slicing)
    last = analysis.cells[-1]
    last.experiments[0].replica_throughput[:] = [95.0, 95.0, 0.0]
    assert "3 replicas, of which 1 served nothing, serve" in " ".join(answers(analysis))


def test_a_campaign_and_its_archive_are_one(slicing: Path, tmp_path: Path) -> None:
    archive = publish(slicing, tmp_path / "published.tar.xz")
    with (
        pytest.raises(UsageError, match=r"published.* hold the same recording, of resnet50_r1_"),
        gathered([slicing, archive]),
    ):
        pass


def test_unlike_machines_are_refused_unless_told(slicing: Path, tmp_path: Path) -> None:
    other = write_campaign(
        tmp_path / "other", replicas=[1], repeats=2, shape=replace(SHAPE, driver="590.1", gpu=True, seed=2)
    )
    with pytest.raises(UnlikeResultsError, match=r"GPU driver: 580.95.05 against 590.1\.") as refused:
        gather([slicing, other])
    assert "--unlike" in refused.value.advice
    assert refused.value.exit_code == 2
    assert "GPU driver: 580.95.05 against 590.1." in gather([slicing, other], unlike=True).unlike


def test_what_differs_stands_in_the_order_of_the_campaigns(slicing: Path, tmp_path: Path) -> None:
    other = write_campaign(tmp_path / "other", replicas=[1], repeats=1, shape=replace(SHAPE, driver="1.0", seed=2))
    for folders, told in (([slicing, other], "580.95.05 against 1.0"), ([other, slicing], "1.0 against 580.95.05")):
        assert f"GPU driver: {told}." in gather(folders, unlike=True).unlike


def test_a_campaign_that_changed_machines_between_its_modes_is_refused_too(tmp_path: Path) -> None:
    folder = write_campaign(tmp_path / "c", replicas=[1], repeats=1, shape=SHAPE)
    write_experiment(folder, "resnet50", 1, 2, replace(SHAPE, driver="590.1", sharing=Sharing.MPS))
    with pytest.raises(UnlikeResultsError, match="GPU driver"):
        gather([folder])


def test_what_cannot_be_compared_is_said(slicing: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="given twice"):
        gather([slicing, slicing])
    with pytest.raises(UsageError, match="not a way to compare"):
        gather([slicing], "colour")
    invalid = tmp_path / "invalid"
    write_experiment(invalid, "resnet50", 1, 1, replace(SHAPE, status=Status.INVALID))
    with pytest.raises(ResultsPathError, match="no experiment there can be used"):
        gather([invalid])
