"""The command about scenarios: their results in one place."""

from pathlib import Path
from typing import Annotated, Any

import typer

from harness.cli import output
from harness.cli.options import Json


def register(app: typer.Typer) -> None:
    """Add the command to the tree."""
    app.command(rich_help_panel="Results")(scenarios)


def scenarios(
    path: Annotated[
        Path, typer.Argument(metavar="RESULTS/CAMPAIGN", help="Folder of a campaign, or of an experiment.")
    ],
    *,
    json: Json = False,
) -> None:
    """Show what LoadGen and the load generator measured: rates, percentiles, limits, validity. MLPerf-like."""
    from harness.results.published import opened
    from harness.traffic.scenario_result import NOTE, read_scenarios

    with opened(path) as folder:
        found = read_scenarios(folder, say=output.note)
    if json:
        output.document({"note": NOTE, "scenarios": found})
        return
    output.sentence(NOTE)
    headers = (
        "scenario",
        "rate",
        "answered/s",
        "samples/s",
        "p50 ms",
        "p90 ms",
        "p99 ms",
        "limit",
        "valid",
    )
    output.table(headers, [row for each in found for row in ([each["experiment"]], _row(each))])
    for each in found:
        for reason in each["validity"]["reasons"]:
            output.sentence(f"{each['experiment']}: {reason}")


def _row(each: dict[str, Any]) -> list[str]:
    results = each["results"]
    latency = results["latency_ms"]
    met = {True: "met", False: "broken", None: "-"}[results.get("limit_met")]
    return [
        f"  {each['scenario']}",
        _number(results.get("intended_per_s")),
        _number(results["achieved_per_s"]),
        _number(results["throughput_samples_per_s"]),
        *(_number(latency.get(name)) for name in ("p50", "p90", "p99")),
        met,
        "yes" if each["validity"]["valid"] else "no",
    ]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
