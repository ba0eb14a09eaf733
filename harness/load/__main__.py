"""``python -m harness.load PLAN``: one load generator."""

from __future__ import annotations

import sys

from harness.load.generator import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
