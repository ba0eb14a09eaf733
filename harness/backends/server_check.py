"""What would keep a server of the user's own from being started or asked; looked at without starting it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from harness.backends.base import Finding, Severity
from harness.config import ServerSpec


def check_server(name: str, server: ServerSpec) -> list[Finding]:
    """Program, file of requests, key.

    Args:
        name: of the workload.
        server: it has.
    """
    return [
        Finding(Severity.ERROR, "server", f"the workload {name} {what}", advice) for what, advice in _faults(server)
    ]


def _faults(server: ServerSpec) -> Iterator[tuple[str, str]]:
    program = server.command[0]
    if shutil.which(program) is None:
        yield (
            f"starts {program}, and there is no such program.",
            "Install it, or give its whole path in server.command.",
        )
    file = server.requests.file
    if file is not None and not Path(file).is_file():
        yield f"asks what is in {file}, and there is no such file.", "Give its path from where the harness is started."
    if server.api_key_env is not None and not os.environ.get(server.api_key_env):
        yield f"takes its key from {server.api_key_env}, which is not set.", f"Do: export {server.api_key_env}=..."
