"""A campaign of many replicas on many nodes: what it asks of the API server, how soon it sees them, what it holds in memory.

    KUBEBUILDER_ASSETS=... python -m tests.benchmarks.cluster_scale [--replicas 8 100] [--nodes 20]
    python -m tests.benchmarks.cluster_scale --memory [--replicas 100]

Nodes are simulated: whatever is scheduled onto them is Ready at once, and one server answers for all replicas. Deployments are
made into pods by the real controllers and scheduler, so these have to be beside the API server. The bars: at most 2 requests a second
while replicas work, however many they are (Prometheus, asked directly, not counted); at most 1 s from when the cluster calls the deployment complete to when the
harness has asked every replica what it is. ``--memory`` exports one hour of replicas from a real Prometheus; the bar is 300 MB in all.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

from harness.backends.kubernetes.api import KubernetesApi
from harness.backends.kubernetes.watch import Watcher
from harness.spec import KubernetesSpec
from harness.spec.server import METRICS_PORT
from tests.benchmarks.cluster_overhead import _count_requests
from tests.benchmarks.export_campaign import backfill, ours
from tests.integration.cluster.api_server import CONTROLLED, api_server, controllers
from tests.integration.metrics.prometheus_server import prometheus
from tests.support.cluster_driver import GPU, own_address
from tests.support.cluster_trial import Trial
from tests.support.experiments import experiment
from tests.support.http_double import Answering, Double
from tests.support.kubelet import Kubelet

WORK_S = 30.0
MOST_REQUESTS_PER_S, MOST_S, MOST_BYTES = 2.0, 1.0, 300e6
PEAK = "import resource; print('peak', resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)"


class _Replica(Answering):
    """Every replica at once: its status, its latencies, its metrics."""

    def reply(self) -> None:
        self.answer(200, {"phase": "serving", "device": "cuda:0", "device_uuid": "GPU-a", "mps_limits": {}})


class Nodes:
    """Kubelets of nodes that run nothing; use it as a context.

    Attributes:
        complete_s: when the cluster called the last deployment complete, seconds since the epoch.
    """

    def __init__(self, api: KubernetesApi, folder: Path, count: int, slices: int) -> None:
        self.api, self.count, self.slices = api, count, slices
        self.complete_s, self.wanted = 0.0, 0
        namespace = f"/namespaces/{api.namespace}"
        self._pods = Watcher(api, f"/api/v1{namespace}/pods", listener=self._play)
        self._owners = Watcher(api, f"/apis/apps/v1{namespace}/deployments", listener=self._look)
        self._path = f"/api/v1{namespace}/pods"
        self._pool = ThreadPoolExecutor(8)
        self.address = own_address()
        self._server = Double(_Replica, self.address, METRICS_PORT)
        self._kubelet = Kubelet(self.address, folder, {})  # no replica has a log

    def __enter__(self) -> Self:
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.api.namespace}}
        self.api.apply(f"/api/v1/namespaces/{self.api.namespace}", namespace)
        self._server.__enter__()
        self._kubelet.__enter__()
        for number in range(self.count):
            self._make(f"node-{number}")
        self._pods.start()
        self._owners.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._pods.stop()
        self._owners.stop()
        self._pool.shutdown()
        self._server.__exit__()
        self._kubelet.__exit__()

    def _make(self, name: str) -> None:
        path, metadata = f"/api/v1/nodes/{name}", {"name": name, "labels": {"kubernetes.io/hostname": name}}
        self.api.apply(path, {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {}})
        room = {"cpu": "16", "memory": "64Gi", "pods": "110", GPU: str(self.slices)}
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "kubelet is posting"}
        status = {
            "conditions": [ready],
            "capacity": room,
            "allocatable": room,
            "addresses": [{"type": "InternalIP", "address": self.address}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self._kubelet.port}},
        }
        self.api.patch(f"{path}/status", {"status": status})
        self.api.patch(path, {"spec": {"taints": None}})

    def _play(self, kind: str, pod: dict[str, Any]) -> None:
        if kind == "DELETED":
            return
        if "deletionTimestamp" in pod["metadata"]:
            self._pool.submit(self.api.delete, f"{self._path}/{pod['metadata']['name']}", grace_s=0)
        elif pod["spec"].get("nodeName") and (pod.get("status") or {}).get("phase") == "Pending":
            self._pool.submit(self._serve, pod)

    def _serve(self, pod: dict[str, Any]) -> None:
        conditions = [{"type": kind, "status": "True"} for kind in ("PodScheduled", "Ready", "ContainersReady")]
        container = {
            "name": "replica",
            "image": "registry.example/workload:1",
            "imageID": "registry.example/workload@sha256:" + 64 * "a",
            "ready": True,
            "restartCount": 0,
            "state": {"running": {"startedAt": "2026-01-31T00:00:00Z"}},
        }
        status = {"phase": "Running", "podIP": self.address, "conditions": conditions, "containerStatuses": [container]}
        self.api.patch(f"{self._path}/{pod['metadata']['name']}/status", {"status": status})

    def _look(self, _kind: str, owner: dict[str, Any]) -> None:
        counted = (owner.get("status") or {}).get("availableReplicas")
        if counted == self.wanted and not self.complete_s:
            self.complete_s = time.time()


def requests_and_seconds(counts: list[int], nodes: int) -> bool:
    """Print the figures of every number of replicas; whether all bars are kept."""
    warnings.filterwarnings("ignore", "Unverified HTTPS request")  # the API server signs for itself
    kept = True
    with tempfile.TemporaryDirectory() as name, api_server(Path(name)) as cluster, controllers(Path(name), cluster):
        spec = KubernetesSpec(
            kubeconfig=str(cluster.kubeconfig), runtime_class=None, image="registry.example/workload:1"
        )
        with Nodes(KubernetesApi(spec), Path(name), nodes, -(-max(counts) // nodes)) as playing:
            sent = _count_requests(but_of=playing.api)
            for replicas in [1, *counts]:
                after_s, asked = _one(playing, Trial(spec), Path(name) / str(replicas), replicas, sent)
                print(f"{replicas} replicas on {nodes} nodes: seen {after_s:.2f} s after it was complete, ", end="")
                print(f"{asked:.2f} requests a second while they worked")
                kept &= replicas == 1 or (after_s <= MOST_S and asked <= MOST_REQUESTS_PER_S)
    return kept


def _one(playing: Nodes, backend: Trial, folder: Path, replicas: int, sent: list[str]) -> tuple[float, float]:
    folder.mkdir()
    playing.wanted, playing.complete_s = replicas, 0.0
    of = experiment(replicas=replicas, timing={"ready_timeout_s": 600})
    deployment = backend.deploy(of, folder, abort=threading.Event(), on_death=lambda death: print("died:", death))
    after_s, before = time.time() - playing.complete_s, len(sent)
    time.sleep(WORK_S)
    asked = (len(sent) - before) / WORK_S
    deployment.stop(timeout_s=60)
    return after_s, asked


def memory(replicas: int) -> bool:
    """Print what a process holds that exports one hour of replicas; whether the bar is kept."""
    plan = [("resnet50", replicas, int(time.time() - 2 * 3600) // 60 * 60)]
    with tempfile.TemporaryDirectory() as name:
        with prometheus(Path(name), database=backfill(Path(name), plan)) as url:
            words = f"{url!r}, {plan!r}, Path({str(Path(name) / 'out')!r})"
            code = f"from pathlib import Path; from {ours.__module__} import ours; ours({words}); {PEAK}"
            done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
        peak = int(done.stdout.split()[-1])
        rows = sum(len(file.read_bytes().splitlines()) for file in (Path(name) / "out").rglob("*.csv"))
    print(f"{replicas} replicas for one hour, {rows} lines of CSV: {peak / 1e6:.0f} MB at most")
    return peak <= MOST_BYTES


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", type=int, nargs="+", default=[8, 100])
    parser.add_argument("--nodes", type=int, default=20)
    parser.add_argument("--memory", action="store_true")
    arguments = parser.parse_args()
    if arguments.memory:
        return not memory(max(arguments.replicas))
    if not CONTROLLED:
        parser.error("kube-controller-manager and kube-scheduler are not in KUBEBUILDER_ASSETS or PATH")
    return not requests_and_seconds(arguments.replicas, arguments.nodes)


if __name__ == "__main__":
    sys.exit(main())
