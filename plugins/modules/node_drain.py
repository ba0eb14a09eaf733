#!/usr/bin/python
"""Empties a node of its pods before its packages change, and lets pods come to it again afterwards."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: node_drain
short_description: Cordons and drains a node as its pods and their disruption budgets allow, and undoes its own cordon only
description:
  - Pods of DaemonSets and of the control plane's manifests stay, and so does what has ended.
  - What would never leave is named before anything is touched. Those are pods that nothing makes again, pods with an emptyDir
    where that may not be lost, and pods that a disruption budget keeps. A budget that is short because pods are
    still starting is waited for.
  - A cordon of this module has a mark, by which a later run, also one after a kill, knows it. One without the mark is
    another user's and stays.
  - A node that is not empty in time is schedulable again. It is released once its kubelet of O(version) says that it is ready.
options:
  node: {description: Name of the node., type: str, required: true}
  state:
    description: judged changes nothing and fails where the node cannot be drained.
    type: str
    choices: [judged, drained, released]
    default: drained
  emptydir: {description: Whether what pods keep in an emptyDir may be lost., type: bool, default: true}
  bare_pods: {description: Whether pods that nothing makes again may be deleted., type: bool, default: false}
  version: {description: Upstream version that its kubelet has to run at before it is released; empty for any., type: str, default: ""}
  timeout_s: {description: Seconds until the node has to be empty or ready., type: int, default: 300}
  kubeconfig: {description: Whose credentials., type: path, default: /etc/kubernetes/admin.conf}
  kubectl: {description: The binary., type: path, default: /usr/bin/kubectl}
author: [the project]
"""

EXAMPLES = r"""
- name: Empty the node
  node_drain:
    node: gpu-node-2
"""

RETURN = r"""
evicted: {description: Pods that were to leave as namespace/name., type: list, elements: str, returned: always}
"""

MARK = "gpu-sharing-harness/cordoned-by-upgrade"
MIRROR = "kubernetes.io/config.mirror"
RETRY_S = 2.0


def name_of(item: dict[str, Any]) -> str:
    """namespace/name."""
    return f"{item['metadata']['namespace']}/{item['metadata']['name']}"


def is_true(item: dict[str, Any], condition: str) -> bool:
    """Whether an object's condition holds."""
    given = item.get("status", {}).get("conditions", [])
    return any(one["type"] == condition and one["status"] == "True" for one in given)


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
    if is_true(pod, "Ready"):
        return True
    status = budget.get("status", {})
    healthy, wanted = status.get("currentHealthy", 0), status.get("desiredHealthy", 0)
    free = budget["spec"].get("unhealthyPodEvictionPolicy") == "AlwaysAllow" or healthy >= wanted > 0
    return not free


class Drain:
    """One node, its pods, and the budgets of the cluster."""

    def __init__(self, module: AnsibleModule) -> None:
        self.module = module
        self.name: str = module.params["node"]
        self.deadline_s = time.monotonic() + module.params["timeout_s"]

    def kubectl(self, *words: str) -> tuple[int, str, str]:
        """Runs kubectl: exit status, stdout, stderr."""
        asked = self.module.params
        code, out, err = self.module.run_command([asked["kubectl"], "--kubeconfig", asked["kubeconfig"], *words])
        return int(code), str(out), str(err)

    def ask(self, *words: str) -> list[dict[str, Any]]:
        """The objects; an API server that restarts is waited for."""
        while True:
            code, out, err = self.kubectl("--request-timeout", "20s", "get", *words, "--output", "json")
            if code == 0:
                return list(json.loads(out)["items"])
            if time.monotonic() > self.deadline_s:
                self.module.fail_json(msg=f"the API server does not answer: {(err or out).strip()}", evicted=[])
            time.sleep(RETRY_S)

    def nodes(self) -> dict[str, dict[str, Any]]:
        """Every node by its name."""
        return {item["metadata"]["name"]: item for item in self.ask("nodes")}

    def pods(self) -> list[dict[str, Any]]:
        """The pods that have to leave."""
        return [
            pod
            for pod in self.ask("pods", "--all-namespaces", f"--field-selector=spec.nodeName={self.name}")
            if leaves(pod)
        ]

    def lasting(self, pods: list[dict[str, Any]]) -> Iterator[str]:
        """What no waiting changes."""
        for pod in pods:
            if not controller(pod) and not self.module.params["bare_pods"]:
                yield f"{name_of(pod)}: nothing makes this pod again"
            kept = [one["name"] for one in pod["spec"].get("volumes", []) if "emptyDir" in one]
            if kept and not self.module.params["emptydir"]:
                yield f"{name_of(pod)}: its emptyDir {', '.join(kept)} would be lost"

    def budgets(self, pods: list[dict[str, Any]]) -> tuple[list[str], bool]:
        """What disruption budgets keep here, and whether all of them may give way when pods have started.

        A pod that left a node which alone takes pods comes back to nowhere: then a budget has to allow all of its pods at once.
        """
        others = [
            name
            for name, node in self.nodes().items()
            if name != self.name and not node["spec"].get("unschedulable") and is_true(node, "Ready")
        ]
        found, passing, kept_by = [], True, dict[str, list[str]]()
        for budget in self.ask("poddisruptionbudgets", "--all-namespaces"):
            place, selector = budget["metadata"]["namespace"], budget["spec"].get("selector")
            chosen = [
                pod
                for pod in pods
                if pod["metadata"]["namespace"] == place and selects(selector, pod["metadata"].get("labels", {}))
            ]
            for pod in chosen:
                kept_by.setdefault(name_of(pod), []).append(name_of(budget))
            needed = sum(counts(pod, budget) for pod in chosen)
            needed = min(needed, 1) if others else needed
            status = budget.get("status", {})
            allowed = status.get("disruptionsAllowed", 0)
            if allowed < needed:
                names = ", ".join(name_of(pod) for pod in chosen)
                found.append(f"{names}: the disruption budget {name_of(budget)} allows {allowed} to end, not {needed}")
                passing &= status.get("currentHealthy", 0) < status.get("expectedPods", 0)
        for name, several in kept_by.items():
            if len(several) > 1:
                found.append(
                    f"{name}: several disruption budgets choose it ({', '.join(several)}), which no eviction gets past"
                )
                passing = False
        return found, passing

    def judge(self) -> list[dict[str, Any]]:
        """The pods that have to leave; ends the module with every reason where they cannot."""
        while True:
            pods = self.pods()
            lasting = list(self.lasting(pods))
            kept, passing = self.budgets(pods)
            if not lasting and not kept:
                return pods
            if lasting or not passing or self.module.check_mode or time.monotonic() > self.deadline_s:
                listed = "\n".join(f"{number}. {one}" for number, one in enumerate(lasting + kept, 1))
                self.module.fail_json(
                    msg=f"Nothing was changed. {self.name} cannot be drained:\n{listed}\nEnd what is named, or change its budget; or"
                    " allow it (upgrade_drain_bare_pods, upgrade_drain_emptydir). Then run again.",
                    evicted=[],
                )
            time.sleep(RETRY_S)

    def patch(self, *, cordoned: bool) -> None:
        """Cordon and mark in one write, so that no kill comes between the two."""
        change = {
            "metadata": {"annotations": {MARK: "true" if cordoned else None}},
            "spec": {"unschedulable": cordoned or None},
        }
        code, out, err = self.kubectl("patch", "node", self.name, "--type", "merge", "--patch", json.dumps(change))
        if code != 0:
            self.module.fail_json(msg=f"{self.name} could not be changed: {(err or out).strip()}", evicted=[])

    def drain(self) -> tuple[bool, list[str]]:
        """Whether anything changed, and the pods that left."""
        pods = self.judge()
        cordoned = self.nodes()[self.name]["spec"].get("unschedulable", False)
        names = [name_of(pod) for pod in pods]
        if self.module.check_mode or (cordoned and not pods):
            return not cordoned or bool(pods), names
        if not cordoned:
            self.patch(cordoned=True)
        asked = self.module.params
        words = ["drain", self.name, "--ignore-daemonsets", f"--timeout={asked['timeout_s']}s"]
        words += ["--delete-emptydir-data"] if asked["emptydir"] else []
        words += ["--force"] if asked["bare_pods"] else []
        code, out, err = self.kubectl(*words)
        if code != 0:
            left = [f"{name_of(pod)}{self.ending(pod)}" for pod in self.pods()]
            if not cordoned:
                self.patch(cordoned=False)
            self.module.fail_json(
                msg=f"{self.name} was not empty within {asked['timeout_s']} s: {', '.join(left) or 'no pod is left'}. kubectl said:"
                f" {(err or out).strip()[-2000:]}\nNo package was changed. "
                + ("" if cordoned else "The node is schedulable again, and the evicted pods start again. ")
                + "End what is named, or raise upgrade_drain_timeout_s. Then run again.",
                evicted=[],
            )
        return True, names

    @staticmethod
    def ending(pod: dict[str, Any]) -> str:
        """That a pod is on its way, and how long that may take."""
        metadata = pod["metadata"]
        return (
            f" (it is ending, for which it has {metadata.get('deletionGracePeriodSeconds', 30)} s)"
            if "deletionTimestamp" in metadata
            else ""
        )

    def release(self) -> bool:
        """Takes this module's cordon away; whether there was one."""
        marked = MARK in self.nodes().get(self.name, {"metadata": {}})["metadata"].get("annotations", {})
        if marked and not self.module.check_mode:
            self.await_kubelet()
            self.patch(cordoned=False)
        return marked

    def await_kubelet(self) -> None:
        """Ends the module where the new kubelet does not take the node up in time: pods would come to one that is about to restart."""
        wanted = self.module.params["version"]
        while True:
            node = self.nodes()[self.name]
            runs = node.get("status", {}).get("nodeInfo", {}).get("kubeletVersion", "")
            if is_true(node, "Ready") and runs.startswith(f"v{wanted}" if wanted else ""):
                return
            if time.monotonic() > self.deadline_s:
                self.module.fail_json(
                    msg=f"{self.name} stays cordoned: within {self.module.params['timeout_s']} s its kubelet was not ready at"
                    f" {wanted or 'any version'} (it says {runs or 'none'}). `journalctl --unit kubelet` there says why. Fix that and run again.",
                    evicted=[],
                )
            time.sleep(RETRY_S)


def main() -> None:
    """Runs the module."""
    module = AnsibleModule(
        argument_spec={
            "node": {"type": "str", "required": True},
            "state": {"type": "str", "choices": ["judged", "drained", "released"], "default": "drained"},
            "emptydir": {"type": "bool", "default": True},
            "bare_pods": {"type": "bool", "default": False},
            "version": {"type": "str", "default": ""},
            "timeout_s": {"type": "int", "default": 300},
            "kubeconfig": {"type": "path", "default": "/etc/kubernetes/admin.conf"},
            "kubectl": {"type": "path", "default": "/usr/bin/kubectl"},
        },
        supports_check_mode=True,
    )
    module.run_command_environ_update = {"LC_ALL": "C", "LANG": "C"}
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
