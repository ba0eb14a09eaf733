"""The command ``harness``: parse, call, print. Heavy imports live inside the commands."""

from __future__ import annotations

import errno
import functools
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

from harness.cli import output
from harness.cli.app import app
from harness.errors import BackendError, HarnessError, UsageError
from harness.extras import advice_on

if TYPE_CHECKING:
    from typer._click import Command

READER_LEFT = 128 + 13
"""The exit code where whoever read the answer closed the pipe: that of a program which SIGPIPE ended."""


def main() -> None:
    """Run the command line and exit with the documented code (see harness/errors.py)."""
    os.umask(os.umask(0o022) | 0o022)  # Results are nobody else's to write.
    output.use_json(False)
    output.open_closed_streams()
    output.take_every_sign()
    try:
        _command()(prog_name="harness")
    except HarnessError as error:
        _end(error)
    except RuntimeError as error:
        _end_without_threads(error)
        raise
    except OSError as error:
        _end_without_threads(error)
        if isinstance(error.filename, str) and error.strerror:
            from harness.results.files import storage_error

            _end(storage_error(error, Path(error.filename), "read or write"))
        try:
            output.result()  # a help text may have met a full disk: then this line does, too, and says so
        except HarnessError as full:
            _end(full)
        raise
    except ModuleNotFoundError as error:
        advice = advice_on(error.name or "")
        if not advice:
            raise
        _end(UsageError(f"This needs {error.name}, which is not installed.", advice=advice))
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):
            sys.exit(READER_LEFT)  # typer's own is 1, an internal error
        raise


@functools.cache
def _command() -> Command:
    return typer.main.get_command(app)


def _end_without_threads(error: RuntimeError | OSError) -> None:
    """End with a sentence where the kernel gives no further thread or process."""
    of_process = isinstance(error, OSError) and error.errno == errno.EAGAIN and error.filename is None
    if not of_process and "can't start new thread" not in str(error):
        return
    from harness.cgroup import Cgroup

    most = Cgroup().limits().pids
    allowed = "" if most is None else f": the cgroup allows {most} (pids.max)"
    advice = "Raise that limit (docker --pids-limit, TasksMax of the unit, ulimit -u). A campaign goes on with: harness resume"
    _end(BackendError(f"No more threads or processes can be started{allowed}.", advice=advice))


def _end(error: HarnessError) -> NoReturn:
    output.error(error)
    sys.exit(error.exit_code)
