"""The Kubernetes backend without a Prometheus: replicas are scraped on their own ports, and there is no canary."""

import os

from harness.backends.kubernetes.backend import KubernetesBackend
from harness.config import KubernetesSpec
from harness.metrics.recorder import Recorder
from harness.metrics.sources import ReplicaTarget
from tests.support.cluster_driver import own_address


class Trial(KubernetesBackend):
    """Without the preflight and the canary, which ask a Prometheus."""

    def __init__(self, spec: KubernetesSpec, campaign_id: str = "c0ffee") -> None:
        super().__init__(spec, campaign_id, record=scrape)

    def check(self, experiments):
        del experiments
        return []

    def rehearse(self, experiment, folder, *, abort):
        del experiment, folder, abort
        return []

    def close(self):
        return []


def scrape(_api, _spec, replicas, _folder, request) -> Recorder:
    """The embedded recorder on the pods' own ports."""
    targets = [ReplicaTarget(one.index, os.getpid(), f"http://{own_address()}:{one.port}/metrics") for one in replicas]
    return Recorder(
        targets,
        metrics=request.metrics,
        step_s=request.timing.step_s,
        window_s=request.timing.window_s,
        sink=request.sink,
        clock=request.clock,
        wake=request.wake,
        on_tick=request.on_tick,
    )
