"""What the harness adds to what a cluster takes: bringing up 1, 3 and 8 replicas, and ending them.

    KUBEBUILDER_ASSETS=... python -m tests.benchmarks.cluster_overhead

The cluster's part is played, so that its instants are known: from the object's arrival to the status that says every
replica is available, and from the deletion's arrival to the last pod's end. All else is the harness's. The API server is
the real one where its binaries are, else the shipped fake.
"""

from __future__ import annotations

import contextlib
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

from harness.backends.kubernetes.client import KubernetesApi
from harness.config import KubernetesSpec
from harness.results import layout
from tests.integration.cluster.api_server import MISSING, api_server
from tests.support.cluster_driver import ClusterDriver
from tests.support.cluster_trial import Trial
from tests.support.experiments import experiment
from tests.support.fake_cluster import FakeCluster

REPLICAS = (1, 3, 8)
ROUNDS = 3


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as name, _server(Path(name)) as (kind, kubeconfig):
        spec = KubernetesSpec(kubeconfig=str(kubeconfig), runtime_class=None, image="registry.example/workload:1")
        with ClusterDriver(KubernetesApi(spec), Path(name) / "node") as driver:
            backend = Trial(spec)
            _one(backend, driver, Path(name) / "warm-up", 1)
            print(f"API server: {kind}. Seconds, worst of {ROUNDS} rounds: harness / whole")
            for replicas in REPLICAS:
                rounds = [_one(backend, driver, Path(name) / f"{replicas}-{turn}", replicas) for turn in range(ROUNDS)]
                up, down = max(one[:2] for one in rounds), max(one[2:4] for one in rounds)
                fetched = max(one[4] for one in rounds)
                print(
                    f"{replicas} replicas: up {up[0]:.2f} / {up[1]:.2f}, down {down[0]:.2f} / {down[1]:.2f} ({fetched / 1e6:.1f} MB fetched)"
                )


@contextlib.contextmanager
def _server(folder: Path) -> Iterator[tuple[str, Path]]:
    if MISSING:
        with FakeCluster() as fake:
            yield "the shipped fake", fake.write_kubeconfig(folder / "kubeconfig")
    else:
        warnings.filterwarnings("ignore", "Unverified HTTPS request")  # it signs for itself
        with api_server(folder) as cluster:
            yield "kube-apiserver", cluster.kubeconfig


def _one(backend: Trial, driver: ClusterDriver, folder: Path, replicas: int) -> tuple[float, float, float, float, int]:
    """The harness's seconds and all seconds, for up and for down, and the bytes fetched."""
    folder.mkdir(parents=True)
    of = experiment(replicas=replicas, workload={"inference_sleep_s": 0.05}, timing={"ready_timeout_s": 60})
    driver.marks.clear()
    begun_s = time.time()
    deployment = backend.deploy(of, folder, abort=threading.Event(), on_death=lambda _death: None)
    up_s = time.time() - begun_s
    cluster_up_s = driver.marks["complete"] - driver.marks["seen"]
    begun_s = time.time()
    problems = deployment.stop(timeout_s=10)
    down_s = time.time() - begun_s
    assert not problems, problems
    cluster_down_s = driver.marks["ended"] - driver.marks["deletion"]
    fetched = sum(
        (layout.replica_folder(folder, index) / layout.RAW_LATENCIES).stat().st_size for index in range(replicas)
    )
    return up_s - cluster_up_s, up_s, down_s - cluster_down_s, down_s, fetched


if __name__ == "__main__":
    main()
