#!/usr/bin/python
"""Waits until workloads are whole and nodes advertise what they should; otherwise says why they do not."""

from __future__ import annotations

import json
import time
from typing import Any

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: kube_wait
short_description: Waits for workloads and for what nodes advertise, and explains what does not come
description:
  - C(kubectl rollout status) and C(kubectl wait) end with a time-out and nothing else. This looks at the pods behind
    the workload instead and ends with what each of them says, and with the end of their logs.
  - A Job that has failed is not waited for any longer.
  - It changes nothing. In check mode it waits for nothing.
options:
  namespace: {description: Where the workloads are., type: str, required: true}
  workloads: {description: Workloads as kind/name (DaemonSet Deployment StatefulSet Job)., type: list, elements: str,
              default: []}
  allocatable:
    description: By node, how many of each extended resource it must have allocatable; exactly that and no other
                 resource of the same domains.
    type: dict
    default: {}
  devices:
    description: By node, how many devices O(driver) must list in ResourceSlices.
    type: dict
    default: {}
  driver: {description: DRA driver whose devices are counted., type: str, default: gpu.nvidia.com}
  selector: {description: Labels of the pods that explain a failure., type: str, default: ""}
  timeout_s: {description: Seconds until all of it has to be so., type: int, default: 300}
  interval_s: {description: Seconds between two looks., type: float, default: 2.0}
  log_lines: {description: Lines of a pod's log in the explanation., type: int, default: 15}
  kubeconfig: {description: Whose credentials., type: path, default: /etc/kubernetes/admin.conf}
  kubectl: {description: The binary., type: path, default: /usr/bin/kubectl}
author: [the project]
"""

EXAMPLES = r"""
- name: Wait until the GPUs are advertised
  kube_wait:
    namespace: gpu-system
    workloads: [DaemonSet/device-plugin]
    allocatable: {controlplane: {nvidia.com/gpu: 10}}
    selector: app.kubernetes.io/name=device-plugin
"""

RETURN = r"""
waited_s: {description: How long it took., type: float, returned: always}
"""


def rollout(item: dict[str, Any]) -> str:
    """Why a DaemonSet, Deployment or StatefulSet is not whole; empty when it is."""
    status = item.get("status", {})
    if status.get("observedGeneration", 0) < item["metadata"].get("generation", 1):
        return "its controller has not looked at it yet"
    if item["kind"] == "DaemonSet":
        wanted = status.get("desiredNumberScheduled", 0)
        updated, ready = status.get("updatedNumberScheduled", 0), status.get("numberAvailable", 0)
    else:
        wanted = item["spec"].get("replicas", 1)
        updated, ready = status.get("updatedReplicas", 0), status.get("availableReplicas", 0)
        if (there := status.get("replicas", 0)) > updated:
            return f"{there - updated} pods of the last version are still there"
    if updated < wanted or ready < wanted:
        return f"{updated} of {wanted} pods are of the present version, {ready} are available"
    return ""


def conditions(item: dict[str, Any]) -> dict[str, str]:
    """Condition -> its message, of those that are True."""
    given = item.get("status", {}).get("conditions", [])
    return {one["type"]: one.get("message", "") for one in given if one["status"] == "True"}


def unfinished(item: dict[str, Any]) -> str:
    """Why a workload is not as it should be; empty when it is."""
    if item["kind"] != "Job":
        return rollout(item)
    holds = conditions(item)
    if "Complete" in holds:
        return ""
    return f"it failed: {holds['Failed'] or 'no reason given'}" if "Failed" in holds else "it has not completed"


def shortfall(item: dict[str, Any], wanted: dict[str, int]) -> str:
    """How a node's allocatable differs from what it should be; empty when it does not."""
    domains = {name.partition("/")[0] for name in wanted}
    given = item.get("status", {}).get("allocatable", {})
    found = {name: int(count) for name, count in given.items() if "/" in name and name.partition("/")[0] in domains}
    if {name: count for name, count in found.items() if count} == {
        one: int(count) for one, count in wanted.items() if int(count)
    }:
        return ""
    found = {name: count for name, count in found.items() if count or name in wanted}
    return f"it advertises {shown(found) or 'none of them'} and should advertise {shown(wanted)}"


def listed(slices: list[dict[str, Any]], driver: str, node: str) -> int:
    """How many devices a driver lists for a node, in the newest generation of each of its pools."""
    specs = [one["spec"] for one in slices]
    specs = [one for one in specs if one["driver"] == driver and one.get("nodeName") == node]
    newest: dict[str, int] = {}
    for one in specs:
        pool = one["pool"]
        newest[pool["name"]] = max(newest.get(pool["name"], 0), pool["generation"])
    return sum(
        len(one.get("devices") or ()) for one in specs if one["pool"]["generation"] == newest[one["pool"]["name"]]
    )


def shown(counts: dict[str, int]) -> str:
    """Counts in words."""
    return ", ".join(f"{name}: {count}" for name, count in sorted(counts.items()))


def pod_state(item: dict[str, Any]) -> str:
    """One line on what a pod does, with the reason of the first container that does not run."""
    status = item.get("status", {})
    words = [f"pod {item['metadata']['name']}", status.get("phase", "unknown")]
    for one in [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]:
        for kind in ("waiting", "terminated"):
            state = one.get("state", {}).get(kind)
            if state and state.get("reason") != "Completed":
                detail = state.get("message") or f"exit code {state.get('exitCode', 'none')}"
                return " ".join([*words, f"{one['name']}: {state.get('reason', kind)}: {detail}"])
    for one in status.get("conditions", []):
        if one["status"] != "True" and one.get("message"):
            return " ".join([*words, f"{one['type']}: {one['message']}"])
    return " ".join(words)


class Waiter:
    """What is waited for, asked of one cluster."""

    def __init__(self, module: AnsibleModule) -> None:
        self.module = module
        self.asked: dict[str, Any] = module.params

    def kubectl(self, *words: str) -> tuple[int, str, str]:
        """Runs kubectl: exit status, stdout, stderr."""
        command = [self.asked["kubectl"], "--kubeconfig", self.asked["kubeconfig"], "--request-timeout", "15s", *words]
        code, out, err = self.module.run_command(command)
        return int(code), str(out), str(err)

    def get(self, *words: str) -> tuple[dict[str, Any], str]:
        """An object, or why there is none."""
        code, out, err = self.kubectl("get", *words, "-o", "json")
        if code != 0:
            return {}, (err or out).strip().splitlines()[-1] if (err or out).strip() else f"kubectl ended with {code}"
        return dict(json.loads(out)), ""

    def obstacles(self) -> tuple[list[str], bool]:
        """What is not yet so, and whether waiting is in vain."""
        found, final = [], False
        for name in self.asked["workloads"]:
            item, missing = self.get(name, "--namespace", self.asked["namespace"])
            reason = missing or unfinished(item)
            found += [f"{name}: {reason}"] if reason else []
            final = final or reason.startswith("it failed")
        for name, wanted in self.asked["allocatable"].items():
            item, missing = self.get(f"node/{name}")
            reason = missing or shortfall(item, wanted)
            found += [f"node {name}: {reason}"] if reason else []
        if self.asked["devices"]:
            given, missing = self.get("resourceslices")
            found += [f"ResourceSlices: {missing}"] if missing else self.unlisted(given["items"])
        return found, final

    def unlisted(self, slices: list[dict[str, Any]]) -> list[str]:
        """The nodes for which the driver lists another number of devices."""
        driver = self.asked["driver"]
        counts = {node: listed(slices, driver, node) for node in self.asked["devices"]}
        return [
            f"node {node}: {driver} lists {counts[node]} devices and should list {wanted}"
            for node, wanted in self.asked["devices"].items()
            if counts[node] != int(wanted)
        ]

    def explanation(self) -> list[str]:
        """What the pods behind it say: state and end of the log of each that is not ready, else of one."""
        if not self.asked["selector"]:
            return []
        given, missing = self.get("pods", "--namespace", self.asked["namespace"], "--selector", self.asked["selector"])
        pods = given.get("items", [])
        if not pods:
            return [
                missing or f"there is no pod {self.asked['selector']} in {self.asked['namespace']}: no node fits it"
            ]
        pods = [pod for pod in pods if "Ready" not in conditions(pod)] or pods
        said = []
        for pod in pods[:3]:
            tail = ("--all-containers", "--prefix", "--tail", str(self.asked["log_lines"]))
            _, out, err = self.kubectl("logs", pod["metadata"]["name"], "--namespace", self.asked["namespace"], *tail)
            said += [pod_state(pod), *(out or err).strip().splitlines()[-self.asked["log_lines"] :]]
        return said

    def wait(self) -> float:
        """Seconds until all of it was so; ends the module where it does not come."""
        began_s = time.monotonic()
        while True:
            found, final = self.obstacles()
            waited_s = time.monotonic() - began_s
            if not found:
                return waited_s
            if final or waited_s > self.asked["timeout_s"]:
                self.module.fail_json(
                    msg="\n".join([f"after {waited_s:.0f} s: {'; '.join(found)}", *self.explanation()])
                )
            time.sleep(self.asked["interval_s"])


def main() -> None:
    """Runs the module."""
    module = AnsibleModule(
        argument_spec={
            "namespace": {"type": "str", "required": True},
            "workloads": {"type": "list", "elements": "str", "default": []},
            "allocatable": {"type": "dict", "default": {}},
            "devices": {"type": "dict", "default": {}},
            "driver": {"type": "str", "default": "gpu.nvidia.com"},
            "selector": {"type": "str", "default": ""},
            "timeout_s": {"type": "int", "default": 300},
            "interval_s": {"type": "float", "default": 2.0},
            "log_lines": {"type": "int", "default": 15},
            "kubeconfig": {"type": "path", "default": "/etc/kubernetes/admin.conf"},
            "kubectl": {"type": "path", "default": "/usr/bin/kubectl"},
        },
        supports_check_mode=True,
    )
    module.run_command_environ_update = {"LC_ALL": "C", "LANG": "C"}
    waited_s = 0.0 if module.check_mode else Waiter(module).wait()
    module.exit_json(changed=False, waited_s=round(waited_s, 1))


if __name__ == "__main__":
    main()
