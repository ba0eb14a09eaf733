"""Commands about results that others read: publish."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.cli import output

Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]


def register(app: typer.Typer) -> None:
    """Add the commands to the tree."""
    app.command(rich_help_panel="Results")(publish)


def publish(
    path: Annotated[Path, typer.Argument(metavar="RESULTS/CAMPAIGN", help="Folder of a campaign.")],
    *,
    out: Annotated[
        Path | None, typer.Option("--out", help="The archive, NAME.tar.xz; default: beside the folder, named like it.")
    ] = None,
    author: Annotated[
        list[str] | None, typer.Option("--author", help='Who made it: "NAME" or "NAME <ORCID>"; may be repeated.')
    ] = None,
    licence: Annotated[
        str | None, typer.Option("--license", help="Its terms: an SPDX identifier as CC-BY-4.0, or a URL.")
    ] = None,
    citation: Annotated[
        Path | None,
        typer.Option("--citation", help="Authors, license, title, doi or url from a file in the form of CITATION.cff."),
    ] = None,
    json: Json = False,
) -> None:
    """Verify a campaign and make one archive of it, described as RO-Crate and Croissant, which every command reads."""
    from harness.campaign.publish import publish as make_archive
    from harness.results.citation import citation as cited

    if json:
        output.use_json()
    said = cited(citation, author or (), licence)
    made = make_archive(path, out, citation=said)
    missing = [name for name, value in (("author", said.authors), ("license", said.licence)) if not value]
    if missing:
        output.note(f"note: {' and '.join(missing)} not stated in it: add --{' --'.join(missing)}, or --citation FILE.")
    if json:
        output.document({"archive": str(made), "bytes": made.stat().st_size})
    else:
        output.result(f"{made}: {made.stat().st_size / 1e6:.1f} MB, verified. Read it with: harness report {made}")
