"""Repeats judged block by block, on figures of known truth."""

import numpy as np
import pytest

from harness.analysis.campaign import Cell, ConfigurationKey, shared
from harness.analysis.contrasts.until_known import State, judge, questions, share_of_look
from harness.analysis.statistics import student, t_interval
from harness.spec import ConditionSpec, MpsSpec, Sharing, UntilKnown
from tests.benchmarks.until_known import HARD, false_answers
from tests.support.experiments import campaign

BOTH = [Sharing.TIME_SLICING, Sharing.MPS]
WANTED = UntilKnown(compare=["throughput"], max=10)


def cells(**changes):
    return campaign(**{"sharing": BOTH, "replicas": [1]} | changes).cells()


def runs(matrix, figures, metric="throughput"):
    """Runs of each cell, by its sharing mode."""
    return {
        cell.experiment_id(repeat): {} if figure is None else {metric: figure}
        for cell in matrix
        for repeat, figure in enumerate(figures[cell.sharing.value], start=1)
    }


def judged(first, second, wanted=WANTED):
    matrix = cells()
    return judge(wanted, matrix, runs(matrix, {"time-slicing": first, "mps": second}))


@pytest.mark.parametrize(
    ("first", "second", "state"),
    [
        ([100, 101, 99], [150, 151, 149], State.DIFFERENT),
        ([100, 100.1, 99.9], [100.2, 100, 100.1], State.EQUAL),
        ([100, 140, 70, 120, 90], [100, 60, 130, 90, 120], State.HOPELESS),
        ([100, 101, 99, 100, 102], [None, 150, None, None, 150], State.NOT_MEASURED),
    ],
)
def test_what_the_runs_say(first, second, state):
    progress = judged(first, second)

    assert [verdict.state for verdict in progress.verdicts] == [state]
    assert progress.following == []
    assert str(state) in progress.verdicts[0].sentence


def test_before_the_first_look_and_while_something_is_open_another_block_follows():
    two = judged([100, 101], [150, 151])
    wide = judged([100, 103, 97], [104, 107, 100])

    assert (two.blocks, [each.sharing for each in two.following]) == (2, BOTH)
    assert two.verdicts[0].sentence.endswith("throughput is open; the first look is after 3 repeats.")
    assert (wide.blocks, len(wide.following), wide.verdicts[0].state) == (3, 2, State.OPEN)


def test_what_is_decided_stays_decided_whatever_later_runs_say():
    early = judged([100, 101, 99], [150, 151, 149])
    later = judged([100, 101, 99, 300], [150, 151, 149, 10])

    assert later.verdicts == early.verdicts


def test_max_ends_what_is_still_open():
    first, second = [100, 103, 97], [104, 107, 100]

    (verdict,) = judged(first, second, UntilKnown(compare=["throughput"], max=3)).verdicts

    assert verdict.state is State.MAX


def test_after_the_last_block_nothing_is_given_up_for_want_of_more():
    first, second = [100, 140, 70, 120, 90], [100, 60, 130, 90, 120]

    (verdict,) = judged(first, second, UntilKnown(compare=["throughput"], max=5)).verdicts

    assert verdict.state is State.MAX


def test_each_cell_is_held_against_the_first_mode_and_the_first_condition():
    matrix = cells(replicas=[1, 2], conditions=[ConditionSpec(name="alone"), ConditionSpec(name="beside")])
    asked = questions(matrix, ["throughput"])
    names = [(q.cell.experiment_id(1), q.reference.experiment_id(1)) for q in asked if q.cell.replicas == 1]

    assert names == [
        ("tiny_r1_time-slicing_beside_rep1", "tiny_r1_time-slicing_alone_rep1"),
        ("tiny_r1_mps_alone_rep1", "tiny_r1_time-slicing_alone_rep1"),
        ("tiny_r1_mps_beside_rep1", "tiny_r1_time-slicing_beside_rep1"),
        ("tiny_r1_mps_beside_rep1", "tiny_r1_mps_alone_rep1"),
    ]


def test_a_cell_without_counterpart_is_asked_for_a_narrow_interval():
    matrix = cells(sharing=[Sharing.MPS])
    wide, narrow = (judge(WANTED, matrix, runs(matrix, {"mps": each})) for each in ([90, 100, 110], [99.9, 100, 100.1]))

    assert [each.verdicts[0].state for each in (wide, narrow)] == [State.OPEN, State.KNOWN]


def test_the_looks_share_the_error():
    assert sum(share_of_look(UntilKnown(), look) for look in range(3, 31)) == pytest.approx(1)
    assert student(4, 0.1) > student(4)
    assert t_interval([1, 2, 3], 0.1).half_width == pytest.approx(student(2, 0.1) / 3**0.5)


def test_each_limit_of_mps_is_asked_for_itself():
    matrix = cells(mps=MpsSpec(share=["all", "2/N", "1/N"]))

    assert [(one.cell.mode, one.reference.mode) for one in questions(matrix, ["throughput"])] == [
        ("mps", "time-slicing"),
        ("mps (2/N)", "time-slicing"),
        ("mps (2/N)", "mps"),
        ("mps (1/N)", "time-slicing"),
        ("mps (1/N)", "mps"),
    ]


def test_false_answers_are_rare_where_they_are_easiest():
    false, without = false_answers(np.random.default_rng(7), "[time-slicing, mps]", next(iter(HARD)), 25)

    assert false <= 0.08  # two of 25; the benchmark holds the 5%
    assert without < 0.5


def test_cells_of_one_campaign_share_their_looks_and_those_of_several_do_not():
    one, later, other = (
        Cell(ConfigurationKey("tiny", "mps", 1), [], None, shares=shares)
        for shares in ({"x": 0.5}, {"x": 0.2}, {"y": 0.1})
    )

    assert [shared(), shared(one), shared(one, later), shared(one, later, other)] == pytest.approx([1, 0.5, 0.2, 0.02])
