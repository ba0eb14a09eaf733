"""The command ``harness``: parse, call, print. Heavy imports live inside the commands."""

from __future__ import annotations

import sys

import click
import typer

from harness.cli import output
from harness.cli.app import app
from harness.errors import HarnessError


def main() -> None:
    """Run the command line and exit with the documented code (see harness/errors.py)."""
    command = typer.main.get_command(app)
    try:
        code = command.main(standalone_mode=False)
    except HarnessError as error:
        output.error(error)
        sys.exit(error.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        output.note("stopped.")
        sys.exit(130)
    except BrokenPipeError:
        # The reader of our output (head, less) has gone; nothing is left to say to it.
        sys.stderr.close()
        sys.exit(141)
    sys.exit(code if isinstance(code, int) else 0)
