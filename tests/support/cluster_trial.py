"""The Kubernetes backend without a Prometheus: replicas are scraped on their own ports, and there is no canary.

``python -m tests.support.cluster_trial FOLDER WORD`` runs a campaign so, and is killed as soon as an experiment with this
word in its name has a row.
"""

import os
import signal
import sys
from pathlib import Path

from harness.backends.kubernetes.backend import KubernetesBackend
from harness.backends.kubernetes.deployment import RecordingMaker
from harness.campaign.events import Event, RowsRecorded
from harness.campaign.folder import open_folder
from harness.campaign.runner import CampaignRunner
from harness.metrics.recorder import Recorder, ReplicaTarget
from harness.sharing.mode import unheard
from harness.spec import KubernetesSpec
from tests.support.cluster_driver import own_address
from tests.support.fake_metrics import FakeGpus


class Trial(KubernetesBackend):
    """Without the preflight and the canary, which ask a Prometheus."""

    def __init__(self, spec: KubernetesSpec, campaign_id: str = "c0ffee", record: RecordingMaker | None = None) -> None:
        super().__init__(spec, campaign_id, record=record or scrape)

    def check(self, experiments):
        del experiments
        return []

    def rehearse(self, experiment, folder, *, abort, send=None, notice=unheard):
        del experiment, folder, abort, send, notice
        return []

    def close(self):
        return []


class Switching(Trial):
    """Puts back what the campaign changed."""

    close = KubernetesBackend.close


def scrape(_api, _spec, replicas, _folder, request) -> Recorder:
    """The embedded recorder on the pods' own ports."""
    targets = [
        ReplicaTarget(one.index, os.getpid(), f"http://{own_address()}:{one.port}/metrics", one.neighbour)
        for one in replicas
    ]
    return Recorder(targets, request)


if __name__ == "__main__":
    folder, word = sys.argv[1:]
    campaign = open_folder(Path(folder))

    def kill(event: Event) -> None:
        if isinstance(event, RowsRecorded) and word in event.experiment_id:
            os.kill(os.getpid(), signal.SIGKILL)

    CampaignRunner(campaign, Trial(campaign.spec.kubernetes), gpus=FakeGpus, listener=kill).run()
