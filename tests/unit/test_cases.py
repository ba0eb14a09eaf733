"""One test over many cases hides none of them."""

import pytest

from tests.support.cases import every


def test_every_case_is_looked_at_and_each_that_does_not_hold_is_named():
    seen = []

    @every([("a", 1), ("b", 2), ("c", 3), ("d", 4)], lambda letter, number: f"case {letter}{number}")
    def check(letter, number):
        seen.append(letter)
        assert number != 2, "two is wrong"
        if number == 3:
            raise KeyError(letter)

    with pytest.raises(AssertionError) as failed:
        check()

    told = str(failed.value)
    assert seen == ["a", "b", "c", "d"]
    assert told.startswith("2 of 4 do not hold:\ncase b2: AssertionError: two is wrong")
    assert told.endswith("\ncase c3: KeyError: 'c'")


def test_no_case_at_all_is_a_fault():
    with pytest.raises(AssertionError, match="cannot fail"):
        every([])
