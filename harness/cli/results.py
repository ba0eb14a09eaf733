"""Commands about results: verify, report, export."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.cli import output

Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]


def register(app: typer.Typer) -> None:
    """Add the commands to the tree."""
    for command in (verify, report):
        app.command()(command)


def verify(
    path: Annotated[Path, typer.Argument(help="Folder of a campaign or of one experiment.")], *, json: Json = False
) -> None:
    """Hash, parse and count every result file again, and hold it against its manifest."""
    from harness.errors import VerificationError
    from harness.results.experiment import verify_campaign

    if json:
        output.use_json()
    outcome = verify_campaign(path)
    if json:
        output.document(
            {
                "ok": outcome.ok and outcome.experiments > 0,
                "path": str(path),
                "experiments": outcome.experiments,
                "files": outcome.files,
                "problems": [
                    {
                        "path": str(p.path),
                        "message": p.message,
                        "expected": p.expected,
                        "found": p.found,
                        "advice": p.advice,
                    }
                    for p in outcome.problems
                ],
                "notes": outcome.notes,
            }
        )
    for note in outcome.notes:
        output.note(f"note: {note}")
    if not outcome.experiments:
        raise VerificationError(
            f"{path} holds no finished experiment, so nothing was verified.",
            advice=f"See how far it has come: harness status {path}",
        )
    if not outcome.ok:
        lines = "\n".join(f"  {problem.path}: {problem.message}" for problem in outcome.problems)
        raise VerificationError(
            f"{path} does not hold what its manifests say:\n{lines}", advice=outcome.problems[0].advice
        )
    if not json:
        output.result(f"{path}: {outcome.experiments} experiments, {outcome.files} files, all as their manifests say.")


def report(
    path: Annotated[Path, typer.Argument(metavar="RESULTS/CAMPAIGN", help="Folder of a campaign, finished or not.")],
    *,
    json: Json = False,
) -> None:
    """Analyse a campaign and write report.html, report.md, plots and summaries into its folder."""
    from harness.analysis.report import write_report

    if json:
        output.use_json()
    written = write_report(path)
    if json:
        output.document({"report": str(written)})
    else:
        output.result(f"report: {written}")
