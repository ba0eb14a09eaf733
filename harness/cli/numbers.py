"""Numbers of the command line: what a float may be besides what it must not."""

from __future__ import annotations

import math

import typer


def positive(value: float | None) -> float | None:
    """The value of an option that is finite and above 0, or none. Raises typer.BadParameter."""
    if value is None or (math.isfinite(value) and value > 0):
        return value
    raise typer.BadParameter(f"{value:g} is not a finite number above 0.")


def not_negative(value: float | None) -> float | None:
    """The value of an option that is finite and at least 0, or none. Raises typer.BadParameter."""
    if value is None or (math.isfinite(value) and value >= 0):
        return value
    raise typer.BadParameter(f"{value:g} is not a finite number of 0 or more.")
