"""Plays the controllers for the objects of monitoring, and a Prometheus and a Grafana behind their services."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from tests.integration.cluster.api_server import Cluster
from tests.support.cluster_driver import own_address

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
        self._server = _Server(self)
        self._threads = [
            threading.Thread(target=self._server.serve_forever, daemon=True),
            threading.Thread(target=self._roll_out, daemon=True),
        ]

    def __enter__(self) -> Self:
        self.cluster.kubectl("create", "-f", "-", given=json.dumps(GPU_NODE))
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._server.shutdown()
        self._server.server_close()

    def targets(self) -> dict[str, Any]:
        """As Prometheus' API gives them."""
        active = [
            {
                "labels": {"job": job},
                "scrapeUrl": f"http://192.0.2.1/{job}",
                "health": "down" if job in self.down else "up",
                "lastError": "connection refused" if job in self.down else "",
            }
            for job in self.jobs
        ]
        return {"status": "success", "data": {"activeTargets": active, "droppedTargets": []}}

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
            self._endpoint(name)

    def _endpoint(self, name: str) -> None:
        """What the API server's proxy hands a request for the service to: the address of a pod, and of no other."""
        address, where = own_address(), ["--namespace", "monitoring"]
        if self.cluster.kubectl("get", f"endpoints/{name}", *where, check=False).returncode == 0:
            return
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"{name}-1", "namespace": "monitoring"},
            "spec": {"containers": [{"name": name, "image": "registry.example/played:1"}]},
        }
        self.cluster.kubectl("create", "-f", "-", given=json.dumps(pod))
        status = json.dumps({"status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}})
        self.cluster.kubectl(
            "patch", f"pod/{name}-1", *where, "--subresource=status", "--type=merge", "--patch", status
        )
        target = {"kind": "Pod", "name": f"{name}-1", "namespace": "monitoring"}
        ports = [{"name": "http", "port": self._server.server_address[1], "protocol": "TCP"}]
        endpoints = {
            "apiVersion": "v1",
            "kind": "Endpoints",
            "metadata": {"name": name, "namespace": "monitoring"},
            "subsets": [{"addresses": [{"ip": address, "targetRef": target}], "ports": ports}],
        }
        self.cluster.kubectl("create", "-f", "-", given=json.dumps(endpoints))


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, played: Monitored) -> None:
        super().__init__((own_address(), 0), _Handler)
        self.played = played


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def log_message(self, *_: Any) -> None:
        """Nothing: a test's output is its own."""

    def do_GET(self) -> None:
        known = {"/api/v1/targets?state=active": self.server.played.targets(), "/api/health": {"database": "ok"}}
        content = json.dumps(known.get(self.path, {})).encode()
        self.send_response(200 if self.path in known else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
