"""``python -m harness.traffic PLAN``: one load generator."""

from __future__ import annotations

import sys

from harness.traffic.generator import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
