# ruff: noqa: INP001 - Ansible loads this folder by its own rules, without a package
"""Runs the module of this name, and tells how far the machine's clock is from the one here, and which addresses networks hold.

The clock here may be read only around the machine's own answer: by the task after it, every other machine has answered too.
"""

from __future__ import annotations

import ipaddress
import time
from typing import Any

from ansible.plugins.action import ActionBase


def apart_s(asked_s: float, told_s: float, answered_s: float) -> float:
    """Seconds that the two clocks differ at least: the machine read its own between the question and the answer."""
    return max(asked_s - told_s, told_s - answered_s, 0.0)


def inside(network: str, addresses: list[str]) -> dict[str, Any]:
    """Those of the addresses that belong to the network, and from where to where it reaches."""
    whole = ipaddress.ip_network(network)
    belong = [address for address in addresses if ipaddress.ip_address(address) in whole]
    return {"addresses": belong, "first": str(whole[0]), "last": str(whole[-1])}


class ActionModule(ActionBase):  # type: ignore[misc]  # Ansible has no types
    """The module; where it reads the machine, its `clock_apart_s` as well, and `probe.inside`: by name of O(networks), addresses."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """What the module answers."""
        super().run(tmp, task_vars)
        arguments = dict(self._task.args)
        networks = arguments.pop("networks", {})
        asked_s = time.time()
        result: dict[str, Any] = self._execute_module(module_args=arguments, task_vars=task_vars)
        node = result.get("ansible_facts", {}).get("node")
        if node is not None:
            node["clock_apart_s"] = apart_s(asked_s, node["time_s"], time.time())
            result["probe"]["inside"] = {name: inside(text, node["addresses"]) for name, text in networks.items()}
        return result
