"""The options by which a pipeline says what it takes for a failure."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness import errors
from harness.cli.numbers import positive

FailOn = Annotated[
    list[errors.FailOn] | None,
    typer.Option(
        "--fail-on",
        help="Exit with a code: slo (11: an objective is not met), regression (13: worse than the baseline), "
        "degraded (14), invalid (4). May be repeated; the lowest code is taken.",
    ),
]
Baseline = Annotated[
    Path | None,
    typer.Option(
        "--baseline",
        metavar="RESULTS/CAMPAIGN",
        help="What --fail-on regression compares with: a campaign, or a published set.",
    ),
]
Within = Annotated[
    float | None,
    typer.Option(
        "--within",
        callback=positive,
        help="Percent that a figure may be worse before --fail-on regression fails. Default: 10.",
    ),
]
