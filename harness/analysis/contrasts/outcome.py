"""What an interval says: of a candidate against its baseline, against a tolerance, or against a limit."""

from __future__ import annotations

from enum import StrEnum

from harness.analysis.statistics import Estimate


class Outcome(StrEnum):
    """Of one metric of two configurations, or of several together."""

    HIGHER = "higher"
    LOWER = "lower"
    NOT_SIGNIFICANT = "no significant difference"
    UNKNOWN = "cannot tell"
    """There is no interval."""
    AGREES = "agrees"
    """The whole interval lies within the tolerance."""
    DIFFERS = "differs"
    """It lies outside altogether."""
    PASS = "pass"  # noqa: S105 - a verdict, not a secret
    """It keeps the limit altogether."""
    FAIL = "fail"
    """It is beyond the limit altogether."""
    NOT_DECIDABLE = "not decidable"


def within(ratio: Estimate, tolerance: float) -> Outcome:
    """Whether a ratio is that of equals: its whole interval from 1 / (1 + tolerance) to 1 + tolerance."""
    if ratio.low is None or ratio.high is None:
        return Outcome.NOT_DECIDABLE
    lowest, highest = 1 / (1 + tolerance), 1 + tolerance
    if lowest <= ratio.low and ratio.high <= highest:
        return Outcome.AGREES
    return Outcome.DIFFERS if ratio.high < lowest or ratio.low > highest else Outcome.NOT_DECIDABLE


def keeps(estimate: Estimate, limit: float) -> Outcome:
    """Whether something that is the worse the more of it there is stays below a limit, with its whole interval."""
    if estimate.low is None or estimate.high is None or estimate.low <= limit <= estimate.high:
        return Outcome.NOT_DECIDABLE
    return Outcome.PASS if estimate.high < limit else Outcome.FAIL
