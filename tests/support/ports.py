"""Ports for servers that must be told theirs before they start."""

import contextlib

from harness.replica.engine.readiness import HOST
from harness.replica.engine.servers import claimed_port

_CLAIMS = contextlib.ExitStack()


def free_port(address: str = HOST) -> int:
    """A port of ``address`` that nothing listens on, that nothing is given unasked, and that is claimed until this process ends."""
    return _CLAIMS.enter_context(claimed_port(address))
