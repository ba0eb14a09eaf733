"""What the harness adds to what a cluster takes: bringing up replicas, asking the API server while they work, ending them.

    KUBEBUILDER_ASSETS=... python -m tests.benchmarks.cluster_overhead
    KUBEBUILDER_ASSETS=... python -m tests.benchmarks.cluster_overhead --replicas 8,100 --rounds 1

The cluster's part is played, so that its instants are known: from the object's arrival to the status that says every
replica is available, and from the deletion's arrival to the last pod's end. All else is the harness's. The API server is
the real one where its binaries are, else the shipped fake.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.backends.kubernetes.api import KubernetesApi
from harness.results import layout
from harness.spec import KubernetesSpec
from tests.integration.cluster.api_server import MISSING, api_server
from tests.support.cluster_driver import ClusterDriver
from tests.support.cluster_trial import Trial
from tests.support.experiments import experiment
from tests.support.fake_cluster import FakeCluster

WORK_S = 20.0
"""For which replicas work, and the API server's requests are counted."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replicas", default="1,3,8")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    counts = [int(word) for word in arguments.replicas.split(",")]
    with tempfile.TemporaryDirectory() as name, _server(Path(name)) as (kind, kubeconfig):
        spec = KubernetesSpec(kubeconfig=str(kubeconfig), runtime_class=None, image="registry.example/workload:1")
        with ClusterDriver(KubernetesApi(spec), Path(name) / "node", slices=max(counts)) as driver:
            backend = Trial(spec)
            sent = _count_requests(but_of=driver.api)
            _one(backend, driver, Path(name) / "warm-up", 1, sent)
            print(f"API server: {kind}. Seconds, worst of {arguments.rounds} rounds: harness / whole")
            for replicas in counts:
                rounds = [
                    _one(backend, driver, Path(name) / f"{replicas}-{turn}", replicas, sent)
                    for turn in range(arguments.rounds)
                ]
                up, down = max(one[:2] for one in rounds), max(one[2:4] for one in rounds)
                fetched, asked = max(one[4] for one in rounds), max(one[5] for one in rounds)
                print(
                    f"{replicas} replicas: up {up[0]:.2f} / {up[1]:.2f}, down {down[0]:.2f} / {down[1]:.2f} "
                    f"({fetched / 1e6:.1f} MB fetched), {asked / WORK_S:.2f} requests a second while they work"
                )


def _count_requests(but_of: KubernetesApi) -> list[str]:
    """What the harness asks of the API server from now on, one entry each; streams count once."""
    sent: list[str] = []
    for name in ("_send", "stream", "download"):
        _count_calls(name, sent, but_of)
    return sent


def _count_calls(name: str, sent: list[str], but_of: KubernetesApi) -> None:
    original = getattr(KubernetesApi, name)

    def counted(self: KubernetesApi, *arguments: Any, **named: Any) -> Any:
        if self is not but_of:
            sent.append(name)
        return original(self, *arguments, **named)

    setattr(KubernetesApi, name, counted)


@contextlib.contextmanager
def _server(folder: Path) -> Iterator[tuple[str, Path]]:
    if MISSING:
        with FakeCluster() as fake:
            yield "the shipped fake", fake.write_kubeconfig(folder / "kubeconfig")
    else:
        warnings.filterwarnings("ignore", "Unverified HTTPS request")  # it signs for itself
        with api_server(folder) as cluster:
            yield "kube-apiserver", cluster.kubeconfig


def _one(
    backend: Trial, driver: ClusterDriver, folder: Path, replicas: int, sent: list[str]
) -> tuple[float, float, float, float, int, int]:
    """The harness's seconds and all seconds, for up and for down, the bytes fetched, and the requests while they worked."""
    folder.mkdir(parents=True)
    of = experiment(replicas=replicas, workload={"inference_sleep_s": 0.05}, timing={"ready_timeout_s": 1200})
    driver.marks.clear()
    begun_s = time.time()
    deployment = backend.deploy(of, folder, abort=threading.Event(), on_death=lambda _death: None)
    up_s = time.time() - begun_s
    cluster_up_s = driver.marks["complete"] - driver.marks["seen"]
    before = len(sent)
    time.sleep(WORK_S)
    asked = len(sent) - before
    begun_s = time.time()
    problems = deployment.stop(timeout_s=60)
    down_s = time.time() - begun_s
    assert not problems, problems
    cluster_down_s = driver.marks["ended"] - driver.marks["deletion"]
    fetched = sum(
        (layout.replica_folder(folder, index) / layout.RAW_LATENCIES).stat().st_size for index in range(replicas)
    )
    return up_s - cluster_up_s, up_s, down_s - cluster_down_s, down_s, fetched, asked


if __name__ == "__main__":
    main()
