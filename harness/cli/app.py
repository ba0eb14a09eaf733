"""The tree of commands."""

from __future__ import annotations

import typer

from harness import __version__
from harness.cli import campaign, node, output, results, scenarios

EXIT_CODES = """Exit codes: 0 done · 1 a defect of ours · 2 wrong command, campaign file or path · 3 preflight
refused · 4 finished with INVALID experiments · 5 files are not what the manifest says · 6 in use by another
harness, or changed since it began · 7 results folder cannot be written · 8 replicas failed · 9 a metric could
not be read · 10 the node failed · 11 an objective is not met (--fail-on slo) · 130 interrupted (resume goes on)."""

app = typer.Typer(
    name="harness",
    help="From a bare GPU machine to a measured answer: what does sharing a GPU cost?",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(*, asked: bool) -> None:
    if asked:
        output.result(f"harness {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    *,
    version: bool = typer.Option(
        False, "--version", callback=lambda value: _version(asked=value), is_eager=True, help="Print the version."
    ),
) -> None:
    """From a bare GPU machine to a measured answer: what does sharing a GPU cost?"""


campaign.register(app)
results.register(app)
scenarios.register(app)
node.register(app)
