"""A cluster on paper that a real Prometheus watches: real replicas, recorded pages of exporters, our configuration.

It asks everybody for the certificate and the login that a node's has. Of the configuration only this is changed: where the API
server is (or files in its place, for a Prometheus without ``kubernetes_sd_configs``), and paths of files inside a pod.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.integration.metrics.prometheus_server import wait_until_ready
from tests.support import exporter_pages as pages
from tests.support import monitoring_access
from tests.support.certificates import self_signed
from tests.support.http_double import Answering, Double
from tests.support.kubernetes_discovery import ApiServer, Object, node_targets, pod_targets, selected
from tests.support.monitoring import prometheus_files
from tests.support.ports import free_port
from tests.support.replicas import running_replicas

INTERVAL_S = 1
TOKEN = "only-for-the-kubelet"
ASSETS = os.environ.get("PROMETHEUS_ASSETS", "")
DEBIAN = shutil.which("prometheus")
WITH_KUBERNETES = shutil.which("prometheus", path=ASSETS) if ASSETS else None
# Newer than Debian's server: it does not know the word, and would refuse the whole file.
UNKNOWN_TO_DEBIAN = "track_timestamps_staleness"

Page = Callable[[float], str]


class Exporter(Double):
    """Serves pages by path, made anew at every scrape; with a certificate it also wants the token."""

    def __init__(self, served: dict[str, Page], certificate: Path | None = None) -> None:
        super().__init__(_Handler, certificate=certificate)
        self.served, self.secret = served, certificate is not None


class _Handler(Answering):
    server: Exporter

    def reply(self) -> None:
        page = self.server.served.get(self.path)
        if page is None:
            self.answer(404)
        elif self.server.secret and self.headers["Authorization"] != f"Bearer {TOKEN}":
            self.answer(401)
        else:
            self.answer(200, page(time.time()))


def pod_object(
    name: str, namespace: str, port: int, *, labels: dict[str, str], port_name: str = "metrics", **more: Any
) -> Object:
    """A running pod with one container and one port, as the API server gives it."""
    container = {
        "name": more.pop("container", name),
        "ports": [{"name": port_name, "containerPort": port, "protocol": "TCP"}],
    }
    metadata = {"name": name, "namespace": namespace, "uid": f"uid-{name}", "labels": labels, **more}
    status = {"phase": "Running", "podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}], "hostIP": "192.0.2.10"}
    return {"metadata": metadata, "spec": {"nodeName": pages.NODE, "containers": [container]}, "status": status}


def node_object(port: int) -> Object:
    """The node; its kubelet listens on this port."""
    status = {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}, {"type": "Hostname", "address": pages.NODE}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
    }
    return {"metadata": {"name": pages.NODE, "uid": "uid-node"}, "status": status}


@dataclass
class Watched:
    """The cluster and the Prometheus that watches it.

    Attributes:
        url: of Prometheus.
        access: who may ask it, as the Secret says.
        kept: where a node keeps the login.
        gpus: indices as labels have them.
        pods: names of the replicas, sorted.
        log: what Prometheus says.
    """

    url: str
    access: dict[str, str]
    kept: Path
    gpus: list[str]
    pods: list[str]
    log: Path
    objects: list[Object] = field(default_factory=list)

    def get(self, path: str, **query: Any) -> Any:
        """The ``data`` of an answer of Prometheus' API."""
        address = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(query, doseq=True)}"
        question = urllib.request.Request(address, headers=monitoring_access.headers(self.access))
        trusted = monitoring_access.trusting(self.access)
        with urllib.request.urlopen(question, timeout=30, context=trusted) as answer:
            return json.load(answer)["data"]

    def now(self, expression: str) -> list[dict[str, Any]]:
        """Series of an instant query."""
        return list(self.get("query", query=expression)["result"])

    def wait_for(self, expression: str, wanted: Callable[[list[dict[str, Any]]], bool], timeout_s: float = 60) -> None:
        """Until the answer is as wanted."""
        deadline_s = time.monotonic() + timeout_s
        while not wanted(found := self.now(expression)):
            assert time.monotonic() < deadline_s, f"{expression}: {found}, see {self.log}"
            time.sleep(0.25)


@contextlib.contextmanager
def watched_cluster(folder: Path, *, gpus: int, replicas: int, api: bool = False) -> Iterator[Watched]:
    """Run it all; yields when every target is up and rates have a whole window. Ends with the block."""
    (folder / "replicas").mkdir(parents=True)
    with (
        contextlib.ExitStack() as stack,
        running_replicas("tests.support.tiny_workload:steady", replicas, folder / "replicas") as running,
    ):
        ports = [urllib.parse.urlsplit(replica.metrics_url).port or 0 for replica in running]
        objects, nodes = _objects(stack, folder, gpus=gpus, ports=ports)
        prometheus_port = free_port()
        objects.append(pod_object("prometheus-0", "monitoring", prometheus_port, labels=_app("prometheus")))
        source = stack.enter_context(ApiServer(objects, nodes)).url if api else ""
        kubectl, kept = monitoring_access.Kubectl("127.0.0.1", prometheus_port), folder / "kept"
        url = monitoring_access.give(kept, kubectl, "prometheus")["url"]
        access = kubectl.values("prometheus-access")
        for name in ("web", "access"):
            monitoring_access.mount(kubectl.values(f"prometheus-{name}"), folder / name)
        config = _configuration(folder, objects, nodes, source)
        names = sorted(one["metadata"]["name"] for one in objects if one["metadata"]["namespace"] == "inference")
        devices, log = [str(index) for index in range(gpus)], folder / "prometheus.log"
        cluster = Watched(url, access, kept, devices, names, log, objects)
        stack.enter_context(_prometheus(folder, config, cluster, str(WITH_KUBERNETES if api else DEBIAN)))
        jobs = 6 + replicas
        cluster.wait_for("count(up == 1)", lambda found: bool(found) and float(found[0]["value"][1]) == jobs)
        time.sleep(4 * INTERVAL_S + 1)
        yield cluster


def _app(name: str) -> dict[str, str]:
    return {"app.kubernetes.io/name": name}


def _objects(
    stack: contextlib.ExitStack, folder: Path, *, gpus: int, ports: Sequence[int]
) -> tuple[list[Object], list[Object]]:
    """Pods and nodes, with a server behind every port."""
    replicas, known = [], []
    for index, port in enumerate(ports):
        model = ("resnet50", "distilbert", "whisper")[index % 3]
        name = f"{model}-6b5f7c9d4-{index:05d}"
        notes = {"prometheus.io/scrape": "true", "prometheus.io/port": str(port), "prometheus.io/path": "/metrics"}
        labels = {**_app(model), "gpu-sharing-harness/experiment": "e1", "pod-template-hash": "6b5f7c9d4"}
        made = pod_object(
            name, "inference", port, labels=labels, container="workload", annotations=notes, port_name="http"
        )
        replicas.append(made)
        known.append(pages.Pod("inference", name, "workload"))
    known.append(pages.Pod("kube-system", "coredns-7d8", "coredns"))

    def serve(served: dict[str, Page], certificate: Path | None = None) -> int:
        return stack.enter_context(Exporter(served, certificate)).port

    node = serve({"/metrics": pages.node_exporter})
    dcgm = serve({"/metrics": lambda now_s: pages.dcgm_exporter(now_s, gpus)})
    state = serve({"/metrics": lambda now_s: pages.kube_state_metrics(now_s, known, gpus=gpus)})
    kubelet = serve(
        {
            "/metrics": lambda now_s: pages.kubelet(now_s, pods=len(known)),
            "/metrics/cadvisor": lambda now_s: pages.cadvisor(now_s, known),
        },
        self_signed(folder),
    )
    telemetry = {"name": "telemetry", "containerPort": 1, "protocol": "TCP"}
    state_pod = pod_object("kube-state-metrics-1", "monitoring", state, labels=_app("kube-state-metrics"))
    state_pod["spec"]["containers"][0]["ports"].append(telemetry)
    # Neither a finished pod nor one that does not ask for it is a target.
    gone = pod_object(
        "resnet50-gone", "inference-old", 1, labels=_app("resnet50"), annotations={"prometheus.io/scrape": "true"}
    )
    gone["status"]["phase"] = "Succeeded"
    silent = pod_object("coredns-7d8", "kube-system", 1, labels={"k8s-app": "kube-dns"})
    exporters = [
        pod_object("node-exporter-1", "monitoring", node, labels=_app("node-exporter")),
        pod_object("dcgm-exporter-1", "gpu-system", dcgm, labels=_app("dcgm-exporter")),
        state_pod,
    ]
    return [*replicas, *exporters, gone, silent], [node_object(kubelet)]


def _configuration(folder: Path, pods: list[Object], nodes: list[Object], api: str) -> Path:
    """Our configuration with its files, for this machine."""
    files = prometheus_files(prometheus_scrape_interval_s=INTERVAL_S, prometheus_scrape_timeout_s=INTERVAL_S)
    (folder / "rules").mkdir()
    for name in ("recording.yml", "alerts.yml"):
        (folder / "rules" / name).write_text(files[name])
    (folder / "token").write_text(TOKEN)
    config = yaml.safe_load(files["prometheus.yml"])
    config["rule_files"] = [str(folder / "rules/*.yml")]
    for job in config["scrape_configs"]:
        if "authorization" in job:
            job["authorization"]["credentials_file"] = str(folder / "token")
        if "basic_auth" in job:
            job["basic_auth"]["password_file"] = str(folder / "access/password")
            job["tls_config"]["ca_file"] = str(folder / "access/ca.crt")
        elif "ca_file" in job.get("tls_config", {}):
            job["tls_config"]["ca_file"] = str(folder / "self-signed.pem")
        if api:
            job["kubernetes_sd_configs"] = [one | {"api_server": api} for one in job["kubernetes_sd_configs"]]
            continue
        job.pop(UNKNOWN_TO_DEBIAN, None)
        (discovery,) = job.pop("kubernetes_sd_configs")
        found = pod_targets(selected(pods, discovery)) if discovery["role"] == "pod" else node_targets(nodes)
        # Not in files: each takes one of the machine's 128 inotify instances, and without one has no target.
        job["static_configs"] = found
    path = folder / "prometheus.yml"
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    return path


@contextlib.contextmanager
def _prometheus(folder: Path, config: Path, cluster: Watched, binary: str) -> Iterator[None]:
    command = [binary, f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}"]
    command += [f"--web.config.file={folder / 'web/web.yml'}"]
    with cluster.log.open("wb") as output:
        process = subprocess.Popen(
            [*command, f"--web.listen-address={urllib.parse.urlsplit(cluster.url).netloc}"],
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        named, trusted = monitoring_access.headers(cluster.access), monitoring_access.trusting(cluster.access)
        wait_until_ready(cluster.url, process, cluster.log, headers=named, context=trusted)
        yield
    finally:
        process.terminate()
        process.wait(30)
