"""Options that several commands have, and what a number on the command line may be."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from harness import errors
from harness.cli import output


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


def _use_json(value: bool) -> bool:
    if value:
        output.use_json(True)
    return value


def _use_verbose(value: bool) -> bool:
    output.use_verbose(value)
    return value


Verbose = Annotated[
    bool, Option("-v", "--verbose", callback=_use_verbose, help="Say every step, not each experiment alone.")
]
Json = Annotated[bool, Option("--json", callback=_use_json, help="One JSON document on stdout.")]
Results = Annotated[Path, Option("--results", help="Folder that holds the campaigns' folders.")]
Force = Annotated[bool, Option("--force", help="Run although preflight found errors.")]
NoWait = Annotated[
    bool,
    Option("--no-wait", help="End at once (15) where another harness measures on the same GPU; default: after 60 s."),
]
Set = Annotated[
    list[str] | None,
    Option(
        "--set", metavar="KEY=VALUE", help="Set a field of the campaign file, e.g. timing.record_s=20; may be repeated."
    ),
]
Budget = Annotated[
    str | None,
    Option(
        "--budget",
        metavar="TIME",
        help="Time that the campaign may take, e.g. 5m, where it ends when the answer is known.",
    ),
]
WorkloadName = Annotated[
    str | None,
    Option(
        "--workload",
        metavar="NAME",
        help="Another workload: built-in, your own as module:factory, or those of a campaign FILE.yaml.",
    ),
]
AddedModes = Annotated[
    list[str] | None,
    Option("--mode", metavar="MODE", help="A sharing mode besides those of the file, e.g. mig; may be repeated."),
]
OnCluster = Annotated[
    Path | None,
    Option(
        "--kubernetes",
        metavar="FILE",
        help="Run on a cluster: its kubeconfig, or a campaign file with a section `kubernetes`.",
    ),
]
Report = Annotated[bool, Option("--report/--no-report", help="Write the report at the end.")]
CampaignPath = Annotated[Path, Argument(metavar="RESULTS/CAMPAIGN", help="Folder of one campaign.")]
FailOn = Annotated[
    list[errors.FailOn] | None,
    Option(
        "--fail-on",
        help="Exit with a code: slo (11: an objective is not met), regression (13: worse than the baseline), "
        "degraded (14), invalid (4). May be repeated; the lowest code is taken.",
    ),
]
Baseline = Annotated[
    Path | None,
    Option(
        "--baseline",
        metavar="RESULTS/CAMPAIGN",
        help="What --fail-on regression compares with: a campaign, or a published set.",
    ),
]
Within = Annotated[
    float | None,
    Option(
        "--within",
        callback=positive,
        help="Percent that a figure may be worse before --fail-on regression fails. Default: 10.",
    ),
]
