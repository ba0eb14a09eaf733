# ruff: noqa: INP001 - Ansible loads this folder by its own rules, without a package
"""Runs the module of this name, tells how far the machine's clock is from the one here and which addresses networks hold, and judges the answer.

The clock here may be read only around the machine's own answer: by the task after it, every other machine has answered too.
"""

from __future__ import annotations

import ipaddress
import time
from typing import Any

from ansible.plugins.action import ActionBase

JUDGED = ("that", "fail_msg")


def apart_s(asked_s: float, told_s: float, answered_s: float) -> float:
    """Seconds that the two clocks differ at least: the machine read its own between the question and the answer."""
    return max(asked_s - told_s, told_s - answered_s, 0.0)


def inside(network: str, addresses: list[str]) -> dict[str, Any]:
    """Those of the addresses that belong to the network, and from where to where it reaches."""
    whole = ipaddress.ip_network(network)
    belong = [address for address in addresses if ipaddress.ip_address(address) in whole]
    return {"addresses": belong, "first": str(whole[0]), "last": str(whole[-1])}


class ActionModule(ActionBase):  # type: ignore[misc]  # Ansible has no types
    """The module; where it reads the machine, its `clock_apart_s` as well, and `probe.inside`: by name of O(networks), addresses.

    It fails with O(fail_msg) where one of the conditions O(that) does not hold; in both, `probe` is the answer. A check of a virgin
    machine judges nothing.
    """

    @classmethod
    def finalize_task_arg(cls, name: str, value: Any, templar: Any, context: Any) -> Any:
        """What speaks of the answer is resolved when it is there."""
        return value if name in JUDGED else super().finalize_task_arg(name, value, templar, context)

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """What the module answers."""
        super().run(tmp, task_vars)
        arguments = dict(self._task.args)
        networks = arguments.pop("networks", {})
        that, fail_msg = (arguments.pop(name, None) for name in JUDGED)
        asked_s = time.time()
        result: dict[str, Any] = self._execute_module(module_args=arguments, task_vars=task_vars)
        node = result.get("ansible_facts", {}).get("node")
        if node is not None:
            node["clock_apart_s"] = apart_s(asked_s, node["time_s"], time.time())
            result["probe"]["inside"] = {name: inside(text, node["addresses"]) for name, text in networks.items()}
        if that and "probe" in result and not self._task.check_mode:
            facts = {**(task_vars or {}).get("ansible_facts", {}), **result.get("ansible_facts", {})}
            result |= self.judge(
                that, fail_msg, {**(task_vars or {}), "ansible_facts": facts, "probe": result["probe"]}
            )
        return result

    def judge(self, that: list[str], fail_msg: str, known: dict[str, Any]) -> dict[str, Any]:
        """Nothing where every condition holds; else the first that does not, and why."""
        templar = self._templar.copy_with_new_env(available_variables=known)
        for condition in that:
            if not templar.evaluate_conditional(condition):
                return {"failed": True, "assertion": condition, "msg": templar.template(fail_msg)}
        return {}
