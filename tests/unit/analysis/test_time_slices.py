"""Turns on a GPU, as they follow from when each process was on it."""

import numpy as np
import pytest

from harness.analysis.questions.time_slices import rows, sentence, time_slices, turns

MS = 1_000_000
US = 1_000


def round_robin(processes, *, slice_ns=2 * MS, switch_ns=150 * US, rounds=50):
    """Begin and end of every turn of each process."""
    period = slice_ns + switch_ns
    return [
        np.array([[period * turn, period * turn + slice_ns] for turn in range(index, processes * rounds, processes)])
        for index in range(processes)
    ]


@pytest.mark.parametrize("processes", [2, 3, 8])
def test_length_of_a_turn_and_time_of_a_switch_are_what_was_planted(processes):
    found = turns(round_robin(processes))

    assert set(found.slice_s) == {0.002}
    assert set(found.switch_s) == {150e-6}
    assert found.switching_share == pytest.approx(150 / 2150, rel=0.05)
    assert found.together_share == 0


def test_turns_that_the_common_time_cuts_off_say_nothing_of_a_turns_length():
    first, second = round_robin(2)
    second[0, 0] += MS  # it began to watch in the middle of its turn
    second[-1, 1] -= MS

    found = turns([first, second])

    assert set(found.slice_s) == {0.002}


def test_processes_that_run_side_by_side_take_no_turns():
    found = turns([np.array([[0, 1000 * MS]]), np.array([[MS, 1001 * MS]])])

    assert (found.switch_s, found.slice_s, found.switching_share, found.together_share) == ([], [], 0, 1)
    assert sentence(time_slices([found]), 2) == "The 2 processes ran at the same time: none waited for a time slice."


def test_where_no_whole_turn_was_seen_nobody_is_said_to_run_side_by_side():
    found = turns([np.array([[0, MS], [3 * MS, 4 * MS]]), np.array([[MS, 2 * MS]])])  # one turn, cut off at both ends

    assert (found.slice_s, found.together_share) == ([], 0)
    assert sentence(time_slices([found]), 2) == (
        "No whole time slice of the 2 processes was seen: record longer with --seconds."
    )


def test_an_interruption_without_another_process_is_no_switch():
    alone = np.array([[0, 10 * MS], [11 * MS, 20 * MS], [21 * MS, 30 * MS]])
    found = turns([alone, np.array([[0, 30 * MS]])])

    assert found.switch_s == []


def test_processes_that_never_met_are_not_judged():
    assert turns([np.array([[0, MS]]), np.array([[2 * MS, 3 * MS]])]) is None


def test_repeats_give_an_interval_and_the_answer_names_both_figures():
    repeats = [turns(round_robin(2, switch_ns=length * US, rounds=40)) for length in (140, 150, 160)]
    found = time_slices([one for one in repeats if one is not None])

    assert found.switch_s.mean == pytest.approx(150e-6)
    assert found.switch_s.half_width == pytest.approx(24.8e-6, rel=0.01)  # 4.303 x 10 us / sqrt(3)
    assert sentence(found, 2) == (
        "Each of the 2 processes gets time slices of 2.00 ± 0 ms. A context switch takes 150 ± 25 µs: 6.9% of the GPU's time."
    )
    assert rows(found)[0] == ("time slice", "2.00 ± 0 ms", "2.00 ms to 2.00 ms")
    assert (found.slice_s.mean, found.slice_s.low, found.slice_s.high, found.slice_s.n) == (0.002, 0.002, 0.002, 3)
