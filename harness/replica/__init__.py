"""What runs inside one replica: torch programs that serve requests to themselves and publish what it took.

A replica is one process, ``python -m harness.replica``, configured by its environment alone, so that a
local process and a pod run the same thing. This package imports nothing else of the harness.
"""
