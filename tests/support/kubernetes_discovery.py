"""What Prometheus' discovery makes of Kubernetes objects, and a small API server to be discovered by.

Debian's Prometheus is built without ``kubernetes_sd_configs``. There the same targets with the same ``__meta_`` labels
come from files, so that everything after the discovery is the real configuration; where a Prometheus with it is at
hand, it asks the small API server, and its answer is compared with ours.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.support.http_double import Answering, Double

Object = dict[str, Any]
_INVALID = re.compile(r"[^a-zA-Z0-9_]")


def _named(prefix: str, values: Mapping[str, str]) -> dict[str, str]:
    found = {}
    for name, value in values.items():
        safe = _INVALID.sub("_", name)
        found[f"__meta_kubernetes_{prefix}_{safe}"] = value
        found[f"__meta_kubernetes_{prefix}present_{safe}"] = "true"
    return found


def pod_targets(pods: Sequence[Object]) -> list[Object]:
    """Targets of role ``pod``, one per declared port, as ``static_configs`` have them."""
    groups = []
    for pod in pods:
        metadata, spec, status = pod["metadata"], pod["spec"], pod["status"]
        labels = {
            "__meta_kubernetes_namespace": metadata["namespace"],
            "__meta_kubernetes_pod_name": metadata["name"],
            "__meta_kubernetes_pod_node_name": spec["nodeName"],
            "__meta_kubernetes_pod_phase": status["phase"],
            "__meta_kubernetes_pod_ip": status["podIP"],
            **_named("pod_label", metadata.get("labels", {})),
            **_named("pod_annotation", metadata.get("annotations", {})),
        }
        for container in spec["containers"]:
            for port in container["ports"]:
                own = {
                    "__meta_kubernetes_pod_container_name": container["name"],
                    "__meta_kubernetes_pod_container_port_name": port["name"],
                    "__meta_kubernetes_pod_container_port_number": str(port["containerPort"]),
                    "__meta_kubernetes_pod_container_init": "false",
                }
                groups.append({"targets": [f"{status['podIP']}:{port['containerPort']}"], "labels": labels | own})
    return groups


def node_targets(nodes: Sequence[Object]) -> list[Object]:
    """Targets of role ``node``: every kubelet."""
    groups = []
    for node in nodes:
        (address,) = [one["address"] for one in node["status"]["addresses"] if one["type"] == "InternalIP"]
        port = node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"]
        labels = {"__meta_kubernetes_node_name": node["metadata"]["name"]}
        groups.append({"targets": [f"{address}:{port}"], "labels": labels})
    return groups


def selected(objects: Sequence[Object], discovery: Mapping[str, Any]) -> list[Object]:
    """The objects that one entry of ``kubernetes_sd_configs`` asks the API server for."""
    names = discovery.get("namespaces", {}).get("names")
    found = [one for one in objects if names is None or one["metadata"].get("namespace") in names]
    for selector in discovery.get("selectors", ()):
        found = [one for one in found if matches(one, selector["label"])]
    return found


def matches(item: Object, selector: str) -> bool:
    """Whether an object has the labels of ``a=b,c=d``."""
    labels = item["metadata"].get("labels", {})
    terms = (term.partition("=") for term in selector.split(",") if term)
    return all(labels.get(name) == value for name, _, value in terms)


class ApiServer(Double):
    """Lists pods and nodes, and lets whoever watches wait."""

    def __init__(self, pods: Sequence[Object], nodes: Sequence[Object]) -> None:
        super().__init__(_Handler)
        self.objects = {"pods": ("PodList", pods), "nodes": ("NodeList", nodes)}
        self.ending = threading.Event()

    def __exit__(self, *_: object) -> None:
        self.ending.set()
        super().__exit__()


class _Handler(Answering):
    protocol_version = "HTTP/1.0"  # the end of a watch is that of its connection
    server: ApiServer

    def reply(self) -> None:
        address = urlsplit(self.path)
        words, query = address.path.strip("/").split("/"), parse_qs(address.query)
        kind, objects = self.server.objects[words[-1]]
        if "namespaces" in words:
            objects = [one for one in objects if one["metadata"]["namespace"] == words[words.index("namespaces") + 1]]
        found = [one for one in objects if matches(one, query.get("labelSelector", [""])[0])]
        if query.get("watch", ["false"])[0] in ("true", "1"):
            self._watch(kind.removesuffix("List"), found if "sendInitialEvents" in query else [])
            return
        self.answer(200, {"kind": kind, "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": found})

    def _watch(self, kind: str, found: Sequence[Object]) -> None:
        """What is there, and that this was all, for a client that lists by watching; then nothing for ever."""
        about = {"kind": kind, "apiVersion": "v1"}
        events = [{"type": "ADDED", "object": about | one} for one in found]
        notes = {"k8s.io/initial-events-end": "true"}
        end = about | {"metadata": {"resourceVersion": "1", "annotations": notes}, "spec": {}, "status": {}}
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        for event in [*events, {"type": "BOOKMARK", "object": end}]:
            self.wfile.write(json.dumps(event).encode() + b"\n")
        self.wfile.flush()
        self.server.ending.wait(60)
