"""Plays the part of the kubelet, the controllers, the device plugin and the DRA driver: what they would write into the API."""

from __future__ import annotations

import json
import threading
from typing import Any, Self

import yaml

from tests.integration.cluster.api_server import Cluster

NODE = "controlplane"
PLUGIN, DRIVER, NAMESPACE = "device-plugin", "dra-driver", "gpu-system"
_NOW = "2026-01-01T00:00:00Z"


class GpuNode:
    """One node with GPUs; while it is entered, DaemonSets get pods, Jobs end, and slices are advertised.

    gpus: how many. broken: the plugin's pod waits with this message and nothing is advertised any more.
    faulty: kernels fail.
    """

    def __init__(self, cluster: Cluster, *, gpus: int = 1) -> None:
        self.cluster, self.gpus, self.broken, self.faulty = cluster, gpus, "", False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.errors: list[str] = []

    def __enter__(self) -> Self:
        self.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
        ready = {"type": "Ready", "status": "True", "reason": "Kubelet"}
        self._status(f"node/{NODE}", "", {"conditions": [ready]})
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def create(self, item: dict[str, Any]) -> None:
        """Create an object."""
        self.cluster.kubectl("create", "-f", "-", given=json.dumps(item))

    def advertised(self) -> str:
        """What the node advertises now."""
        return str(self.cluster.get("node", NODE)["status"].get("allocatable", {}).get("nvidia.com/gpu", "nothing"))

    def _run(self) -> None:
        while not self._stop.wait(0.5):
            try:
                self._step()
            except (AssertionError, KeyError, ValueError) as error:
                self.errors.append(repr(error))

    def _step(self) -> None:
        sets = self.cluster.get("daemonsets", "--namespace", NAMESPACE)["items"]
        self._answer_for({one["metadata"]["name"] for one in sets if "deletionTimestamp" not in one["metadata"]})
        for item in sets:
            if "deletionTimestamp" in item["metadata"]:
                self._patch(f"daemonset/{item['metadata']['name']}", {"metadata": {"finalizers": None}})
            else:
                self._schedule(item)
        for item in self.cluster.get("jobs", "--namespace", NAMESPACE)["items"]:
            if not item["status"].get("conditions"):
                self._end(item["metadata"]["name"])

    def _answer_for(self, daemon_sets: set[str]) -> None:
        """What the kubelet does for plugins that are there no more, and the DRA driver while it is."""
        listed = self.cluster.get("resourceslices")["items"]
        if PLUGIN not in daemon_sets and self.advertised() not in {"0", "nothing"}:
            self._status(f"node/{NODE}", "", {"allocatable": {"nvidia.com/gpu": "0"}})
        if DRIVER not in daemon_sets:
            for one in listed:
                self.cluster.kubectl("delete", "resourceslice", one["metadata"]["name"])
        elif not listed:
            devices = [{"name": f"gpu-{index}"} for index in range(self.gpus)]
            pool = {"name": NODE, "generation": 1, "resourceSliceCount": 1}
            spec = {"driver": "gpu.nvidia.com", "nodeName": NODE, "pool": pool, "devices": devices}
            head = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice"}
            self.create({**head, "metadata": {"generateName": f"{NODE}-gpu-"}, "spec": spec})

    def _schedule(self, item: dict[str, Any]) -> None:
        """One pod per DaemonSet on the one node that has the label; the plugin's tells the kubelet its slices."""
        labels = self.cluster.get("node", NODE)["metadata"].get("labels", {})
        fits = int(labels.items() >= item["spec"]["template"]["spec"]["nodeSelector"].items())
        name, generation = item["metadata"]["name"], item["metadata"]["generation"]
        waits = bool(self.broken) and name == PLUGIN
        status = {"desiredNumberScheduled": fits, "currentNumberScheduled": fits, "numberMisscheduled": 0}
        up = 0 if waits else fits
        status |= {"updatedNumberScheduled": fits, "numberReady": up, "numberAvailable": up}
        self._status(f"daemonset/{name}", NAMESPACE, {"observedGeneration": generation, **status})
        if name == PLUGIN:
            self._pod(item)
            self._status(f"node/{NODE}", "", self._capacity(0 if waits else fits))

    def _capacity(self, pods: int) -> dict[str, Any]:
        text = self.cluster.get("configmap", PLUGIN, "--namespace", NAMESPACE)["data"]["config.yaml"]
        sharing = yaml.safe_load(text).get("sharing", {})
        replicas = [one["replicas"] for kind in sharing.values() for one in kind["resources"]] or [1]
        count = {"nvidia.com/gpu": str(self.gpus * replicas[0] * pods)}
        return {"capacity": count, "allocatable": count}

    def _pod(self, item: dict[str, Any]) -> None:
        if not self.broken:
            return
        labels = item["spec"]["template"]["metadata"]["labels"]
        metadata = {"name": "device-plugin-x", "namespace": NAMESPACE, "labels": labels}
        spec = {"nodeName": NODE, "containers": [{"name": PLUGIN, "image": "registry.example/plugin:1"}]}
        if self.cluster.kubectl("get", "pod/device-plugin-x", "-n", NAMESPACE, check=False).returncode:
            self.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        state = {"waiting": {"reason": "ImagePullBackOff", "message": self.broken}}
        container = {"name": PLUGIN, "state": state, "ready": False, "image": "", "imageID": "", "restartCount": 0}
        self._status("pod/device-plugin-x", NAMESPACE, {"phase": "Pending", "containerStatuses": [container]})

    def _end(self, name: str) -> None:
        kinds = ("FailureTarget", "Failed") if self.faulty else ("SuccessCriteriaMet", "Complete")
        message = "Job has reached the specified backoff limit" if self.faulty else ""
        ended = [{"type": kind, "status": "True", "lastTransitionTime": _NOW, "message": message} for kind in kinds]
        count = {"failed": 3} if self.faulty else {"succeeded": 1, "completionTime": _NOW}
        self._status(f"job/{name}", NAMESPACE, {"conditions": ended, "startTime": _NOW, **count})

    def _status(self, name: str, namespace: str, status: dict[str, Any]) -> None:
        self._patch(name, {"status": status}, "--subresource=status", namespace=namespace)

    def _patch(self, name: str, change: dict[str, Any], *options: str, namespace: str = NAMESPACE) -> None:
        place = ["--namespace", namespace] if namespace else []
        self.cluster.kubectl("patch", name, *place, *options, "--type=merge", "--patch", json.dumps(change))
