"""What the first screen and the takeaways say of made-up comparisons: nothing that was not measured, and against what."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from harness.analysis.contrasts.comparison import CellKey, Comparison, gather
from harness.analysis.contrasts.contrast import Contrast
from harness.analysis.contrasts.until_known import State, _better
from harness.analysis.format import percent
from harness.analysis.questions.decision import (
    BestMode,
    Certainty,
    Decision,
    _certainty,
    decisions,
    in_one_sentence,
)
from harness.analysis.questions.first_screen import first_screen
from harness.analysis.questions.max_replicas import Carried
from harness.analysis.questions.question import ComparisonQuery
from harness.analysis.questions.recommendation import choices
from harness.analysis.questions.sharing_cost import switching, switching_answer
from harness.analysis.statistics import Estimate
from harness.spec import ConditionSpec, Sharing
from tests.unit.results.synthetic import Shape, write_campaign

SHAPE = Shape(record_s=4, noise=0.005)
ALONE, SLICED, MPS = Sharing.EXCLUSIVE, Sharing.TIME_SLICING, Sharing.MPS
Made = Callable[..., Comparison]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    def compared(*modes: Sharing, **changes: object) -> Comparison:
        folder = tmp_path_factory.mktemp("results") / "modes"
        return gather([write_campaign(folder, replicas=[1, 3], shape=SHAPE, sharing=modes, **changes)])  # type: ignore[arg-type]

    return compared


@pytest.fixture(scope="module")
def pool(made: Made) -> Comparison:
    return made(ALONE, SLICED, MPS)


def contrast(pool: Comparison, metric: str, low: float, high: float, p: float, mean: float | None = None) -> Contrast:
    """MPS against time-slicing, with 3 replicas."""
    key = CellKey("resnet50", 3)
    sliced, mps = (next(arm for arm in pool.arms if arm.label == label).cells[key] for label in ("time-slicing", "mps"))
    ratio = Estimate(mean or (low + high) / 2, low, high, 3, None)
    return Contrast(metric, sliced, mps, ratio, p, p)


def decision(workload: str, *effects: Contrast) -> Decision:
    """By these effects."""
    best = tuple(BestMode(it.metric, _certainty([it]), "", it.candidate, (it,)) for it in effects)
    return Decision(workload, "", 3, ("time-slicing", "mps"), best, effects={it.metric: it for it in effects})


def test_of_a_campaign_with_conditions_the_first_one_decides_and_is_named(made: Made) -> None:
    conditions = [ConditionSpec(name="quiet"), ConditionSpec(name="crowded")]
    screen = first_screen(made(SLICED, MPS, conditions=conditions))

    assert {it.condition for it in decisions(screen.comparison)} == {"quiet", "crowded"}
    assert {it.condition for it in screen.decided} == {"quiet"}
    assert {number["condition"] for number in screen.document()["numbers"]} == {"quiet"}  # type: ignore[attr-defined]
    assert [len(number.of_workloads) for number in screen.numbers] == [1] * len(screen.numbers)
    assert "quiet" in screen.sentence
    assert "quiet" in screen.against


def test_what_shares_no_count_is_compared_with_the_count_of_each(made: Made) -> None:
    screen = first_screen(made(ALONE, MPS))
    (made_of,) = screen.decided
    numbers = screen.document()["numbers"]

    assert {(it["replicas"], it["baseline_replicas"]) for it in numbers} <= {(1, 3), (3, 1)}  # type: ignore[attr-defined]
    for words in (screen.against, screen.sentence):
        assert "exclusive with 1 replica" in words
        assert "MPS with 3 replicas" in words
    assert not made_of.headline.startswith("resnet50, 3 replicas")


def test_the_sentence_names_the_baseline_and_spans_no_two_of_them(pool: Comparison) -> None:
    gain = contrast(pool, "throughput", 1.4, 1.6, 0.001)
    alone = next(arm for arm in pool.arms if arm.label == "exclusive").cells[CellKey("resnet50", 1)]
    other = replace(gain, baseline=alone)
    screen = replace(first_screen(pool), decided=[decision("a", gain), decision("b", other)])

    assert in_one_sentence([decision("a", gain)], []).endswith("vs time-slicing.")
    assert in_one_sentence([decision("a", gain), decision("b", gain)], []).count("vs") == 1
    assert in_one_sentence(screen.decided, []).count(" vs ") == 2
    assert screen.against == ""
    (number,) = screen.numbers
    assert number.short == "higher"
    assert [("time-slicing" in it[0], "exclusive" in it[0]) for it in number.of_workloads] == [
        (True, False),
        (False, True),
    ]


@pytest.mark.parametrize(
    ("metric", "low", "high", "p", "certainty"),
    [
        ("throughput", 1.2, 1.4, 0.01, Certainty.BEST),
        ("throughput", 0.8, 0.9, 0.01, Certainty.INCONCLUSIVE),
        ("energy", 0.8, 0.9, 0.01, Certainty.BEST),
        ("energy", 1.2, 1.4, 0.01, Certainty.INCONCLUSIVE),
        ("throughput", 0.97, 1.04, 0.5, Certainty.EQUAL),
        ("throughput", 0.995, 1.09, 0.1, Certainty.KNOWN),
        ("throughput", 0.9, 1.2, 0.5, Certainty.INCONCLUSIVE),
    ],
)
def test_best_is_in_the_right_direction_and_equal_wholly_within(
    pool: Comparison, metric: str, low: float, high: float, p: float, certainty: Certainty
) -> None:
    assert _certainty([contrast(pool, metric, low, high, p)]) is certainty


def test_the_judge_of_repeats_calls_a_ratio_known_that_is_no_equal() -> None:
    spread = (0.985, 1.0, 1.015)
    states = [_better([shift * it for it in spread], list(spread), 1.0, [], 0.05)[0] for shift in (1.0, 1.022, 1.2)]

    assert states == [State.EQUAL, State.KNOWN, State.BEST]


def test_a_choice_is_clear_only_in_its_own_direction(pool: Comparison) -> None:
    choice = next(it for it in choices(pool, ComparisonQuery()) if it.goal.metric == "throughput" and it.clear)
    wrong = replace(choice, gain=contrast(pool, "throughput", 0.8, 0.9, 0.01))

    assert not wrong.clear
    assert wrong.in_words["Best"] == "no clear winner"


def test_what_one_workload_loses_stays_in_the_sentence(pool: Comparison) -> None:
    gain, less = contrast(pool, "throughput", 1.4, 1.6, 0.001), contrast(pool, "energy", 0.7, 0.8, 0.001)
    more = contrast(pool, "energy", 1.1, 1.2, 0.001)

    assert "b: 15% more energy" in in_one_sentence([decision("a", gain, less), decision("b", gain, more)], [])
    assert "but" not in in_one_sentence([decision("a", gain, less), decision("b", gain, less)], [])


def test_a_metric_that_was_not_measured_is_no_tie(pool: Comparison) -> None:
    energy = decision("a", contrast(pool, "energy", 0.7, 0.8, 0.001))
    unmeasured = replace(energy, by_metric=(BestMode("throughput", Certainty.NOT_MEASURED), *energy.by_metric))

    assert "throughput not measured" in unmeasured.sentence
    assert "no clear winner" not in unmeasured.sentence


def test_what_a_mode_is_known_for_is_no_claim_of_this_measurement(pool: Comparison) -> None:
    (said,) = decisions(pool)

    assert said.winner
    assert "Not measured here" in said.sentence
    assert "bandwidth" not in said.sentence


@pytest.mark.parametrize(
    ("carried", "short"),
    [
        (Carried(0, None, [1, 2, 4], None), "undecided"),
        (Carried(0, 1, [], None), "0"),
        (Carried(0, 8, [1], None), "undecided"),
        (Carried(3, None, [8], None), "at least 3"),
        (Carried(3, 8, [], None), "3"),
        (Carried(3, 6, [8], None), "3"),
    ],
)
def test_a_count_that_is_undecided_is_no_count(carried: Carried, short: str) -> None:
    assert carried.in_short == short


def test_savings_are_counted_as_savings(pool: Comparison) -> None:
    costs, _ = switching(pool)
    added = [cost for cost in costs if cost.extra_s.mean > 0]
    saved = [cost for cost in costs if cost.extra_s.mean < 0]
    said = switching_answer(pool, ComparisonQuery()).takeaway

    assert added
    assert saved
    assert f"{sum(it.significant for it in added)} of {len(added)} costs" in said
    assert f"{sum(it.significant for it in saved)} of them significantly" in said


def test_every_arm_that_takes_turns_has_a_line_of_its_own(pool: Comparison) -> None:
    sliced = next(arm for arm in pool.arms if arm.label == "time-slicing")
    again = replace(sliced, label="time-slicing (long)")
    answer = switching_answer(replace(pool, arms=[*pool.arms, again]), ComparisonQuery())

    assert answer.table
    assert [*dict.fromkeys(row["Run as"] for row in answer.table.records())] == ["time-slicing", "time-slicing (long)"]
    assert "time-slicing (long)" in str(answer.pictures)


@pytest.mark.parametrize(("low", "high", "said"), [(1.2, 15.0, "20 to 1,400%"), (0.05, 0.9, "10 to 95%")])
def test_a_wide_interval_without_1_is_shown(low: float, high: float, said: str) -> None:
    assert percent(Estimate((low + high) / 2, low, high, 3, None))[1] == said
