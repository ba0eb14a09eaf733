"""Recorder of a program that is only there to be found (a runtime, a monitor, a library tool)."""

import sys
from pathlib import Path

from recorded import record


def main() -> None:
    name = Path(sys.argv[0]).name
    record(name, sys.argv[1:])
    if "--version" in sys.argv:
        print(f"{name} version 1.28")
