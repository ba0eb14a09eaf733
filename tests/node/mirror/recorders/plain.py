"""Recorder of a program that is only there to be found (a runtime, a monitor, a library tool)."""

import sys
from pathlib import Path

from recorded import record


def main() -> None:
    record(Path(sys.argv[0]).name, sys.argv[1:])
