"""The command ``harness``: parse, call, print. Heavy imports live inside the commands."""

from __future__ import annotations

import os
import sys

import typer

from harness.cli import output
from harness.cli.app import app
from harness.errors import HarnessError


def main() -> None:
    """Run the command line and exit with the documented code (see harness/errors.py)."""
    os.umask(os.umask(0o022) | 0o022)  # Results are nobody else's to write.
    try:
        typer.main.get_command(app)(prog_name="harness")
    except HarnessError as error:
        output.error(error)
        sys.exit(error.exit_code)
