"""Plays the controllers for the objects of monitoring, and a Prometheus and a Grafana at their Services' addresses.

The cluster gives Services addresses of loopback, for no kube-proxy is here. The two are those that stand in on the booted machine.
"""

from __future__ import annotations

import base64
import importlib
import json
import sys
import threading
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

from tests.integration.cluster.api_server import Cluster

RECORDERS = Path(__file__).parents[2] / "node/mirror/recorders"

NAMESPACES = ("monitoring", "gpu-system")
SERVICES = ("prometheus", "grafana")
GPU_NODE = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "controlplane", "labels": {"nvidia.com/gpu.present": "true"}},
}


class Monitored:
    """While it is entered, what is applied is rolled out at once, and the services answer.

    down: jobs whose target does not answer.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.down = cluster, set[str]()
        self.jobs = [
            "prometheus",
            "node-exporter",
            "kube-state-metrics",
            "kubelet",
            "kubelet-cadvisor",
            "dcgm-exporter",
        ]
        self.errors: list[str] = []
        self._stop = threading.Event()
        self._running: dict[str, tuple[dict[str, str], ThreadingHTTPServer]] = {}
        self._thread = threading.Thread(target=self._roll_out, daemon=True)

    def __enter__(self) -> Self:
        self.cluster.kubectl("create", "-f", "-", given=json.dumps(GPU_NODE))
        sys.path.insert(0, str(RECORDERS))
        self._recorder = importlib.import_module("monitored")
        sys.path.remove(str(RECORDERS))
        self._recorder._secret, self._recorder._targets = self.secret, self.targets
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        for _, server in self._running.values():
            server.shutdown()
            server.server_close()

    def secret(self, name: str) -> dict[str, str]:
        """The values of a Secret; none where there is none."""
        found = self.cluster.get("secrets", "--namespace", "monitoring", "--field-selector", f"metadata.name={name}")
        data = found["items"][0].get("data", {}) if found["items"] else {}
        return {key: base64.b64decode(value).decode() for key, value in data.items()}

    def targets(self) -> list[dict[str, Any]]:
        """As Prometheus' API gives them."""
        return [
            {
                "labels": {"job": job},
                "scrapeUrl": f"http://192.0.2.1/{job}",
                "health": "down" if job in self.down else "up",
                "lastError": "connection refused" if job in self.down else "",
            }
            for job in self.jobs
        ]

    def _roll_out(self) -> None:
        while not self._stop.wait(0.5):
            try:
                for namespace in NAMESPACES:
                    self._step(namespace)
            except (AssertionError, KeyError) as error:  # a namespace that is not there yet
                self.errors.append(str(error))

    def _step(self, namespace: str) -> None:
        for item in self.cluster.get("deployments,daemonsets", "--namespace", namespace)["items"]:
            generation = item["metadata"]["generation"]
            if item["status"].get("observedGeneration") == generation:
                continue
            count = item["spec"].get("replicas", 1)
            status = {"replicas": count, "updatedReplicas": count, "readyReplicas": count, "availableReplicas": count}
            if item["kind"] == "DaemonSet":
                status = {"currentNumberScheduled": 1, "desiredNumberScheduled": 1, "numberMisscheduled": 0}
                status |= {"numberReady": 1, "updatedNumberScheduled": 1, "numberAvailable": 1}
            patch = json.dumps({"status": {"observedGeneration": generation, **status}})
            where = [f"{item['kind'].lower()}/{item['metadata']['name']}", "--namespace", namespace]
            self.cluster.kubectl("patch", *where, "--subresource=status", "--type=merge", "--patch", patch)
        for name in SERVICES if namespace == "monitoring" else ():
            self._serve(name)

    def _serve(self, name: str) -> None:
        """With what its pod would mount, from when there is such a pod."""
        web = self.secret(f"{name}-web")
        known, server = self._running.get(name, ({}, None))
        there = self.cluster.kubectl("get", f"deployment/{name}", "--namespace", "monitoring", check=False)
        if not web or web == known or there.returncode != 0:
            return
        if server is not None:
            server.shutdown()
            server.server_close()
        spec = self.cluster.get("service", name, "--namespace", "monitoring")["spec"]
        self._running[name] = web, self._recorder.listening(spec["clusterIP"], spec["ports"][0]["port"], name, web)
