#!/usr/bin/python
"""Empties a node of its pods before its packages change, and lets pods come to it again afterwards."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from ..module_utils.documented import documented
from ..module_utils.kubectl import kubectl
from ..module_utils.waiter import conditions

DOCUMENTATION = r"""
{"module": "node_drain", "author": ["the project"], "short_description": "Cordons and drains a node as its pods and their disruption budgets allow, and undoes its own cordon only",
 "description": [
  "Pods of DaemonSets and of the control plane's manifests stay, and so does what has ended.",
  "What would never leave is named before anything is touched. Those are pods that nothing makes again, pods with an emptyDir where that may not be lost, and pods that a disruption budget keeps. A budget that is short because pods are still starting is waited for.",
  "A cordon of this module has a mark, by which a later run, also one after a kill, knows it. One without the mark is another user's and stays.",
  "A node that is not empty in time is schedulable again. It is released once its kubelet of O(version) says that it is ready.",
  "Returns evicted: the pods that were to leave, as namespace/name."],
 "options": {
  "node": {"type": "str", "required": true, "description": "Name of the node."},
  "state": {"type": "str", "choices": ["judged", "drained", "released"], "default": "drained", "description": "judged changes nothing and fails where the node cannot be drained."},
  "emptydir": {"type": "bool", "default": true, "description": "Whether what pods keep in an emptyDir may be lost."},
  "bare_pods": {"type": "bool", "default": false, "description": "Whether pods that nothing makes again may be deleted."},
  "version": {"type": "str", "default": "", "description": "Upstream version that its kubelet has to run at before it is released; empty for any."},
  "timeout_s": {"type": "int", "default": 300, "description": "Seconds until the node has to be empty or ready."}}}
"""

MARK = "gpu-sharing-harness/cordoned-by-upgrade"
MIRROR = "kubernetes.io/config.mirror"
RETRY_S = 2.0


def name_of(item: dict[str, Any]) -> str:
    """namespace/name."""
    return f"{item['metadata']['namespace']}/{item['metadata']['name']}"


def controller(pod: dict[str, Any]) -> str:
    """Kind of what makes the pod again; empty for nobody."""
    owners = pod["metadata"].get("ownerReferences", [])
    return next((str(one["kind"]) for one in owners if one.get("controller")), "")


def leaves(pod: dict[str, Any]) -> bool:
    """Whether a drain takes it off the node."""
    static = MIRROR in pod["metadata"].get("annotations", {})
    ended = pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
    return not (static or ended or controller(pod) == "DaemonSet")


def selects(selector: dict[str, Any] | None, labels: dict[str, str]) -> bool:
    """Whether a label selector fits; none at all fits nothing, an empty one everything."""
    if selector is None:
        return False
    fits: dict[str, Callable[[str, list[str]], bool]] = {
        "In": lambda name, values: labels.get(name) in values,
        "NotIn": lambda name, values: labels.get(name) not in values,
        "Exists": lambda name, _: name in labels,
        "DoesNotExist": lambda name, _: name not in labels,
    }
    expressions = selector.get("matchExpressions", [])
    return selector.get("matchLabels", {}).items() <= labels.items() and all(
        fits[one["operator"]](one["key"], one.get("values", [])) for one in expressions
    )


def counts(pod: dict[str, Any], budget: dict[str, Any]) -> bool:
    """Whether evicting the pod takes one of the disruptions that its budget allows; one that does not run takes none."""
    if pod.get("status", {}).get("phase") == "Pending" or "deletionTimestamp" in pod["metadata"]:
        return False
    if "Ready" in conditions(pod):
        return True
    status = budget.get("status", {})
    healthy, wanted = status.get("currentHealthy", 0), status.get("desiredHealthy", 0)
    free = budget["spec"].get("unhealthyPodEvictionPolicy") == "AlwaysAllow" or healthy >= wanted > 0
    return not free


class Drain:
    """One node, its pods, and the budgets of the cluster."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.asked: dict[str, Any] = module.params
        self.name: str = self.asked["node"]
        self.deadline_s = time.monotonic() + self.asked["timeout_s"]

    def fail(self, reason: str) -> None:
        """Ends the module."""
        self.module.fail_json(msg=reason, evicted=[])

    def late(self) -> bool:
        """Whether the time is over; if not, a moment passes."""
        if time.monotonic() > self.deadline_s:
            return True
        time.sleep(RETRY_S)
        return False

    def ask(self, *words: str) -> list[dict[str, Any]]:
        """The objects; an API server that restarts is waited for."""
        while True:
            code, out, err = kubectl(self.module, "--request-timeout", "20s", "get", *words, "--output", "json")
            if code == 0:
                return list(json.loads(out)["items"])
            if self.late():
                self.fail(f"the API server does not answer: {(err or out).strip()}")

    def nodes(self) -> dict[str, dict[str, Any]]:
        """Every node by its name."""
        return {item["metadata"]["name"]: item for item in self.ask("nodes")}

    def pods(self) -> list[dict[str, Any]]:
        """The pods that have to leave."""
        here = self.ask("pods", "--all-namespaces", f"--field-selector=spec.nodeName={self.name}")
        return [pod for pod in here if leaves(pod)]

    def lasting(self, pods: list[dict[str, Any]]) -> list[str]:
        """What no waiting changes."""
        found = []
        for pod in pods:
            if not controller(pod) and not self.asked["bare_pods"]:
                found.append(f"{name_of(pod)}: nothing makes this pod again")
            kept = [volume["name"] for volume in pod["spec"].get("volumes", []) if "emptyDir" in volume]
            if kept and not self.asked["emptydir"]:
                found.append(f"{name_of(pod)}: its emptyDir {', '.join(kept)} would be lost")
        return found

    def budgets(self, pods: list[dict[str, Any]]) -> tuple[list[str], bool]:
        """What disruption budgets keep here, and whether all of them may give way when pods have started.

        A pod that left a node which alone takes pods comes back to nowhere: then a budget has to allow all of its pods at once.
        """
        nodes = self.nodes()
        others = [name for name in nodes if name != self.name and "Ready" in conditions(nodes[name])]
        others = [name for name in others if not nodes[name]["spec"].get("unschedulable")]
        found, passing, kept_by = [], True, dict[str, list[str]]()
        for budget in self.ask("poddisruptionbudgets", "--all-namespaces"):
            place, selector = budget["metadata"]["namespace"], budget["spec"].get("selector")
            near = [pod for pod in pods if pod["metadata"]["namespace"] == place]
            chosen = [pod for pod in near if selects(selector, pod["metadata"].get("labels", {}))]
            for pod in chosen:
                kept_by.setdefault(name_of(pod), []).append(name_of(budget))
            needed = sum(counts(pod, budget) for pod in chosen)
            needed = min(needed, 1) if others else needed
            status = budget.get("status", {})
            allowed = status.get("disruptionsAllowed", 0)
            if allowed < needed:
                names = ", ".join(map(name_of, chosen))
                found.append(f"{names}: the disruption budget {name_of(budget)} allows {allowed} to end, not {needed}")
                passing &= status.get("currentHealthy", 0) < status.get("expectedPods", 0)
        several = {name: ", ".join(budgets) for name, budgets in kept_by.items() if len(budgets) > 1}
        found += [
            f"{name}: several disruption budgets choose it ({budgets}), which no eviction gets past"
            for name, budgets in several.items()
        ]
        return found, passing and not several

    def judge(self) -> list[dict[str, Any]]:
        """The pods that have to leave; ends the module with every reason where they cannot."""
        while True:
            pods = self.pods()
            lasting = self.lasting(pods)
            kept, passing = self.budgets(pods)
            if not lasting and not kept:
                return pods
            if lasting or not passing or self.module.check_mode or self.late():
                listed = "\n".join(f"{number}. {reason}" for number, reason in enumerate(lasting + kept, 1))
                self.fail(
                    f"Nothing was changed. {self.name} cannot be drained:\n{listed}\nEnd what is named, or change its budget; or"
                    " allow it (upgrade_drain_bare_pods, upgrade_drain_emptydir). Then run again."
                )

    def patch(self, *, cordoned: bool) -> None:
        """Cordon and mark in one write, so that no kill comes between the two."""
        mark = {"annotations": {MARK: "true" if cordoned else None}}
        change = json.dumps({"metadata": mark, "spec": {"unschedulable": cordoned or None}})
        code, out, err = kubectl(self.module, "patch", "node", self.name, "--type", "merge", "--patch", change)
        if code != 0:
            self.fail(f"{self.name} could not be changed: {(err or out).strip()}")

    def drain(self) -> tuple[bool, list[str]]:
        """Whether anything changed, and the pods that left."""
        pods, asked = self.judge(), self.asked
        cordoned = self.nodes()[self.name]["spec"].get("unschedulable", False)
        names = [name_of(pod) for pod in pods]
        if self.module.check_mode or (cordoned and not pods):
            return not cordoned or bool(pods), names
        if not cordoned:
            self.patch(cordoned=True)
        words = ["drain", self.name, "--ignore-daemonsets", f"--timeout={asked['timeout_s']}s"]
        words += ["--delete-emptydir-data"] * asked["emptydir"] + ["--force"] * asked["bare_pods"]
        code, out, err = kubectl(self.module, *words)
        if code != 0:
            left = ", ".join(f"{name_of(pod)}{ending(pod)}" for pod in self.pods())
            if not cordoned:
                self.patch(cordoned=False)
            again = "" if cordoned else "The node is schedulable again, and the evicted pods start again. "
            self.fail(
                f"{self.name} was not empty within {asked['timeout_s']} s: {left or 'no pod is left'}. kubectl said:"
                f" {(err or out).strip()[-2000:]}\nNo package was changed. {again}End what is named, or raise upgrade_drain_timeout_s."
                " Then run again."
            )
        return True, names

    def release(self) -> bool:
        """Takes this module's cordon away; whether there was one."""
        marked = MARK in self.nodes().get(self.name, {"metadata": {}})["metadata"].get("annotations", {})
        if marked and not self.module.check_mode:
            self.await_kubelet()
            self.patch(cordoned=False)
        return marked

    def await_kubelet(self) -> None:
        """Ends the module where the new kubelet does not take the node up in time: pods would come to one that is about to restart."""
        wanted = self.asked["version"]
        while True:
            node = self.nodes()[self.name]
            runs = node.get("status", {}).get("nodeInfo", {}).get("kubeletVersion", "")
            if "Ready" in conditions(node) and runs.startswith(f"v{wanted}" if wanted else ""):
                return
            if self.late():
                self.fail(
                    f"{self.name} stays cordoned: within {self.asked['timeout_s']} s its kubelet was not ready at"
                    f" {wanted or 'any version'} (it says {runs or 'none'}). `journalctl --unit kubelet` there says why. Fix that and run again."
                )


def ending(pod: dict[str, Any]) -> str:
    """That a pod is on its way, and how long that may take."""
    about = pod["metadata"]
    seconds = about.get("deletionGracePeriodSeconds", 30)
    return f" (it is ending, for which it has {seconds} s)" if "deletionTimestamp" in about else ""


def main() -> None:
    """Runs the module."""
    module = documented(DOCUMENTATION)
    drain, state = Drain(module), module.params["state"]
    if state == "released":
        module.exit_json(changed=drain.release(), evicted=[])
    # A machine that never joined has nothing to lose.
    if module.params["node"] not in drain.nodes():
        module.exit_json(changed=False, evicted=[])
    changed, evicted = drain.drain() if state == "drained" else (False, [name_of(pod) for pod in drain.judge()])
    module.exit_json(changed=changed, evicted=evicted)


if __name__ == "__main__":
    main()
