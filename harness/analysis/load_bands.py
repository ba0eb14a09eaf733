"""Names for how loaded a machine is.

The bands of the field notes behind this project leave gaps (empty < 10 %, modest 40-60 %, high 70-90 %,
critical > 90 %); here each band begins where the one below it ends.
"""

from __future__ import annotations

from enum import StrEnum


class LoadState(StrEnum):
    """How loaded, from pressure or utilisation in percent."""

    EMPTY = "empty"
    """Below 10 %."""
    MODEST = "modest"
    """10 % to below 70 %."""
    HIGH = "high"
    """70 % to 90 %."""
    CRITICAL = "critical"
    """Above 90 %."""


def load_state(percent: float) -> LoadState:
    """The band of a pressure or utilisation, in percent."""
    if percent < 10:
        return LoadState.EMPTY
    if percent < 70:
        return LoadState.MODEST
    return LoadState.HIGH if percent <= 90 else LoadState.CRITICAL
