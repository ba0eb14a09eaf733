# ruff: noqa: INP001 - Ansible loads this folder by its own rules, without a package
"""Waits until workloads are whole and nodes are as they should be; otherwise says why they are not.

C(kubectl rollout status) and C(kubectl wait) end with a time-out and nothing else. This looks at the pods behind the workload.
"""

from __future__ import annotations

import json
import time
from typing import Any

from .kubectl import kubectl

DRIVER = "gpu.nvidia.com"
INTERVAL_S = 2.0
LOG_LINES = 15


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


def listed(slices: list[dict[str, Any]], node: str) -> int:
    """How many devices the DRA driver lists for a node, in the newest generation of each of its pools."""
    specs = [one["spec"] for one in slices]
    specs = [one for one in specs if one["driver"] == DRIVER and one.get("nodeName") == node]
    pools = sorted((one["pool"]["name"], one["pool"]["generation"]) for one in specs)
    newest = dict(pools)
    current = [one for one in specs if one["pool"]["generation"] == newest[one["pool"]["name"]]]
    return sum(len(one.get("devices") or ()) for one in current)


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


def selector_of(item: dict[str, Any]) -> str:
    """The labels of a workload's pods; empty for one that is not there."""
    labels = item.get("spec", {}).get("selector", {}).get("matchLabels", {})
    return ",".join(f"{name}={value}" for name, value in sorted(labels.items()))


class Waiter:
    """What is waited for, asked of one cluster."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.asked: dict[str, Any] = module.params
        self.replicas: dict[str, int] = {}
        # Of each workload: why it is not whole, its namespace, and the labels of its pods.
        self.workloads: list[tuple[str, str, str]] = []

    def get(self, *words: str) -> tuple[dict[str, Any], str]:
        """An object, or why there is none."""
        code, out, err = kubectl(self.module, "--request-timeout", "15s", "get", *words, "-o", "json")
        said = (err or out).strip().splitlines() or [f"kubectl ended with {code}"]
        return (dict(json.loads(out)), "") if code == 0 else ({}, said[-1])

    def obstacles(self) -> tuple[list[str], bool]:
        """What is not yet so, and whether waiting is in vain."""
        found: list[tuple[str, str]] = []
        self.workloads = []
        for workload in self.asked["workloads"]:
            namespace, _, name = workload.partition("/")
            item, missing = self.get(name, "--namespace", namespace)
            self.replicas[workload] = item.get("spec", {}).get("replicas", 1)
            reason = missing or unfinished(item)
            found.append((name, reason))
            self.workloads.append((reason, namespace, selector_of(item)))
        final = any(reason.startswith("it failed") for _, reason in found)
        for name, wanted in self.asked["allocatable"].items():
            item, missing = self.get(f"node/{name}")
            found.append((f"node {name}", missing or shortfall(item, wanted)))
        for name, condition in self.asked["conditions"].items():
            given, missing = self.get(name)
            items = given.get("items", [given])
            found.append((name, missing or ("" if items else "there is none")))
            lacking = [item["metadata"]["name"] for item in items if given and condition not in conditions(item)]
            found.append((name, f"{', '.join(lacking)} not {condition}" if lacking else ""))
        if self.asked["devices"]:
            given, missing = self.get("resourceslices")
            found.append(("ResourceSlices", missing))
            for node, wanted in self.asked["devices"].items() if given else ():
                if (count := listed(given["items"], node)) != int(wanted):
                    found.append((f"node {node}", f"{DRIVER} lists {count} devices and should list {wanted}"))
        return [f"{name}: {reason}" for name, reason in found if reason], final

    def explanation(self) -> list[str]:
        """What the pods of the workloads that are not whole say; where all are, those of all."""
        given = [workload for workload in self.workloads if workload[0]] or self.workloads
        return [line for _, namespace, selector in given if selector for line in self.said(namespace, selector)]

    def said(self, namespace: str, selector: str) -> list[str]:
        """State and end of the log of each pod that is not ready, else of one."""
        place = ("--namespace", namespace)
        given, missing = self.get("pods", *place, "--selector", selector)
        pods = given.get("items", [])
        if not pods:
            return [missing or f"there is no pod {selector} in {namespace}: no node fits it"]
        said = []
        for pod in ([pod for pod in pods if "Ready" not in conditions(pod)] or pods)[:3]:
            tail = ("--all-containers", "--prefix", "--tail", str(LOG_LINES))
            name = pod["metadata"]["name"]
            _, out, err = kubectl(self.module, "--request-timeout", "15s", "logs", name, *place, *tail)
            said += [pod_state(pod), *(out or err).strip().splitlines()[-LOG_LINES:]]
        return said

    def wait(self) -> None:
        """Returns once all of it is so; ends the module where it does not come."""
        began_s = time.monotonic()
        while True:
            found, final = self.obstacles()
            waited_s = time.monotonic() - began_s
            if not found:
                return
            if final or waited_s > self.asked["timeout_s"]:
                self.module.fail_json(
                    msg="\n".join([f"after {waited_s:.0f} s: {'; '.join(found)}", *self.explanation()])
                )
            time.sleep(INTERVAL_S)
