"""Do a cluster and its node measure the same? Throughput and p50 of one workload, in a pod and beside it at once.

    python -m tests.benchmarks.cluster_agreement --kubeconfig ~/.kube/harness.conf --pairs 3

Runs as root where the cluster's node is: this machine. Each pair is two campaigns over one replica of a tiny ResNet50 on the CPU,
on either backend; the local one is at work for as long as the pod records, and both are compared over the pod's recording, request
by request. Where processors are too few a pod and a process get them by weight: before the pod records, the local replica is put
into a control group of its own beside the pod's, with the same weight, and both onto one processor. One line for each pair, and the bar over their means.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import psutil

import harness
from harness.backends.kubernetes import objects
from harness.backends.kubernetes.api import KubernetesApi
from harness.campaign.events import Event, Notice, StepBegins
from harness.spec import KubernetesSpec
from tests.benchmarks.beside_pod import BesidePod, NoGroupError, replica_of
from tests.support.generated_load import ROOT

BAR = 0.02
STEP_S = 5.0
STABILISE_S = 60.0
"""The replica beside the pod begins to start when the pod does, and has to serve by then."""
LONGER_S = 30.0
"""By which the local replica works longer: the pod may serve this much later."""


class Figures(NamedTuple):
    """Of one replica.

    Attributes:
        throughput: requests a second.
        p50_s: median latency.
        p5_s: of a request that hardly anybody interrupted.
        processors: that it had, in processors; NaN: nobody says.
        weight: of its control group, and of the other's.
    """

    throughput: float
    p50_s: float
    p5_s: float
    processors: float
    weight: int


def main() -> int:
    """Measure, print, and say whether the bar was met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kubeconfig", required=True)
    parser.add_argument("--set", type=json.loads, default={}, metavar="JSON", help="More fields of `kubernetes`.")
    parser.add_argument("--reserve-cpu", default="1", help="What the pod reserves; empty: nothing.")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument(
        "--batch",
        type=int,
        default=128,
        help="Long enough a request to be interrupted often: else the median is of the few that are not.",
    )
    parser.add_argument("--record-s", type=float, default=60.0)
    parser.add_argument("--cgroups", type=Path, default=Path("/sys/fs/cgroup"), help="Of the node, as seen from here.")
    parser.add_argument("--cpu", type=int, default=0, help="On which both compute.")
    options = parser.parse_args()
    reserve = {"reserve": {"cpu": options.reserve_cpu}} if options.reserve_cpu else {}
    place = {"kubeconfig": options.kubeconfig, "gpus_per_replica": 0, "runtime_class": None, **reserve, **options.set}
    found = []
    for number in range(options.pairs):
        with tempfile.TemporaryDirectory() as folder:
            cluster, local = pair(place, options.batch, options.record_s, Path(folder), options.cgroups, options.cpu)
        found.append((cluster.throughput / local.throughput - 1, cluster.p50_s / local.p50_s - 1))
        throughput, p50 = found[-1]
        print(
            f"pair {number + 1}: throughput {cluster.throughput:.2f}/s in the pod and {local.throughput:.2f}/s beside it, "
            f"{throughput:+.1%}; p50 {1e3 * cluster.p50_s:.1f} and {1e3 * local.p50_s:.1f} ms, {p50:+.1%}; p5 "
            f"{1e3 * cluster.p5_s:.1f} and {1e3 * local.p5_s:.1f} ms; processors "
            f"{cluster.processors:.3f} and {local.processors:.3f}, weight {cluster.weight} of either; load {os.getloadavg()[0]:.1f}",
            flush=True,
        )
    means = [statistics.fmean(each) for each in zip(*found, strict=True)]
    met = all(abs(each) <= BAR for each in means)
    print(
        f"mean of {options.pairs}: throughput {means[0]:+.1%}, p50 {means[1]:+.1%} on {len(os.sched_getaffinity(0))} CPUs; "
        f"bar {BAR:.0%}: {'met' if met else 'MISSED'}"
    )
    return 0 if met else 1


def pair(
    place: dict[str, Any], batch: int, record_s: float, folder: Path, cgroups: Path, cpu: int
) -> tuple[Figures, Figures]:
    """What the pod and the process beside it did in the pod's recording."""
    beside: list[subprocess.Popen[bytes]] = []
    weights: list[int] = []
    phases = {"step_s": STEP_S, "stabilise_s": STABILISE_S, "record_s": record_s, "cooldown_s": 0}
    longer = phases | {"stabilise_s": 0, "record_s": phases["stabilise_s"] + record_s + LONGER_S}

    def follow(event: Event) -> None:
        if isinstance(event, Notice):
            print(event.message, file=sys.stderr)
        if isinstance(event, StepBegins) and event.step == "deploy":
            for process in beside:  # of an attempt that failed
                process.terminate()
            text = json.dumps(campaign("local", batch, longer))
            command = [
                sys.executable,
                "-c",
                "import harness, json, sys; harness.run(json.loads(sys.argv[1]), results=sys.argv[2])",
            ]
            beside.append(subprocess.Popen([*command, text, str(folder / f"local-{len(beside)}")], cwd=ROOT))
        if isinstance(event, StepBegins) and event.step == "stabilise":
            try:
                group = groups.enter_context(BesidePod(cgroups, uid_of_pod(KubernetesSpec(**place))))
                group.take(replica_of(psutil.Process(beside[-1].pid)), cpu=cpu)
            except (NoGroupError, OSError) as error:
                raise SystemExit(f"The weights could not be made equal: {error}") from error
            weights.append(group.weight)

    groups = ExitStack()
    try:
        in_pod = harness.run(
            campaign("kubernetes", batch, phases) | {"kubernetes": place}, results=folder, on_event=follow
        )
        if not in_pod.experiments:
            raise SystemExit("The pod came to no recording; the lines above say why.")
        beside[-1].wait()
    finally:
        for process in beside:
            process.terminate()
        groups.close()
    here = harness.load(next((folder / f"local-{len(beside) - 1}").iterdir()))
    window = recorded(in_pod.experiments[0].latencies())
    return figures(in_pod.experiments[0], window, weights[-1]), figures(here.experiments[0], window, weights[-1])


def uid_of_pod(spec: KubernetesSpec) -> str:
    """Of the one replica that serves."""
    label = "app.kubernetes.io/part-of=gpu-sharing-harness,app.kubernetes.io/name=resnet50"
    pods = KubernetesApi(spec).list(objects.pods_path(spec.namespace), labels=label)
    [uid] = [one["metadata"]["uid"] for one in pods if "deletionTimestamp" not in one["metadata"]]
    return str(uid)


def campaign(backend: str, batch: int, phases: dict[str, float]) -> dict[str, Any]:
    """The same of either backend."""
    workload = {
        "name": "resnet50",
        "device": "cpu",
        "threads": 1,
        "batch_size": batch,
        "options": {"model_size": "tiny"},
    }
    metrics = ["cpu_usage", "latency_p50", "throughput", "total_count"]
    return {
        "name": f"agreement-{backend}",
        "backend": backend,
        "workloads": [workload],
        "replicas": [1],
        "timing": phases,
        "metrics": metrics,
    }


def recorded(requests: pd.DataFrame) -> tuple[pd.Timestamp, pd.Timestamp]:
    """The first and the last end of a request that counts."""
    ends = ends_of(requests[requests["recorded"]])
    return ends.min(), ends.max()


def ends_of(requests: pd.DataFrame) -> pd.Series:
    """When each was answered."""
    return requests["start"] + pd.to_timedelta(requests["latency_s"], unit="s")


def figures(experiment: Any, window: tuple[pd.Timestamp, pd.Timestamp], weight: int) -> Figures:
    """Of the requests that were answered in this time. Raises SystemExit where the replica was not at work for all of it."""
    begin, end = window
    requests = experiment.latencies()
    ends = ends_of(requests)
    if ends.min() > begin or ends.max() < end:
        raise SystemExit(
            f"{experiment.name} served from {ends.min()} to {ends.max()}, and the pod recorded from {begin} to {end}."
        )
    within = requests[(ends > begin) & (ends <= end)]
    samples = experiment.samples()
    usage = samples[(samples["metric"] == "cpu_usage") & (samples["series"] == "all")]
    usage = usage[(usage["timestamp"] > begin) & (usage["timestamp"] <= end)]
    latency, seconds = within["latency_s"], (end - begin).total_seconds()
    return Figures(len(within) / seconds, latency.median(), latency.quantile(0.05), usage["value"].mean(), weight)


if __name__ == "__main__":
    raise SystemExit(main())
