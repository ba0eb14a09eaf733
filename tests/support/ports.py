"""Ports for servers that must be told theirs before they start."""

import random
import socket

UNUSED = range(10_000, 30_000)
"""Below what Linux hands to outgoing connections (32768 and up), which would take a port before its server starts,
and below Kubernetes' node ports."""


def free_port(address: str = "127.0.0.1") -> int:
    """A port of ``address`` that nothing listens on, and that nothing is given unasked."""
    while True:
        port = random.choice(UNUSED)
        try:
            with socket.create_server((address, port)):
                return port
        except OSError:
            continue
