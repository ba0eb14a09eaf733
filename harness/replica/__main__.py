"""``python -m harness.replica``: one replica, configured by its environment."""

from __future__ import annotations

import os
import sys

from harness.replica.runner import main

if __name__ == "__main__":
    code = main()
    # At once: tearing down a GPU context or a thread pool of the workload's must not outlast the drain.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
