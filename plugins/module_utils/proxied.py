# ruff: noqa: INP001 - Ansible loads this folder by its own rules, without a package
"""The proxy that a module fetches through: told as a secret option, never on a command line, which everybody could read."""

from __future__ import annotations

import os
from typing import Any

OPTION: dict[str, Any] = {"proxy": {"type": "dict", "default": {}, "no_log": True}}


def use_proxy(module: Any) -> None:
    """Gives the proxy to whatever this process and its children fetch with."""
    os.environ.update({name: str(value) for name, value in module.params["proxy"].items()})
