"""Recordings of pods that end when enough is known: judged by the same requests, and as, a local campaign's."""

import math
import time

import pytest

from harness.backends.kubernetes import collect
from harness.backends.kubernetes.api import KubernetesApi
from harness.campaign.planners import StopRule
from harness.campaign.verify import verify_campaign
from harness.results.manifest import read_manifest
from harness.results.requests import read
from harness.spec import StopWhenKnown
from tests.support.cluster_trial import Trial
from tests.support.experiments import FAST, experiment
from tests.support.fake_backend import recording_request
from tests.support.processes import DRAINED_S

PLANNED_S = 900.0
"""Reached by nobody: beside others on a busy machine it takes long until anything is known."""
WANTED = {"min_s": 1, "relative_half_width": 0.9, "metrics": ["throughput", "latency_p50_exact"]}
TIMING = FAST | {"step_s": 0.25, "record_s": PLANNED_S, "stop_when_known": WANTED}


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    monkeypatch.setattr(collect, "PACE_S", 0.1)


class Asked(StopRule):
    """Remembers after which rows it was asked."""

    def __call__(self, rows):
        self.rows = [*getattr(self, "rows", []), rows]
        return super().__call__(rows)


def test_it_is_judged_as_on_this_machine_by_the_very_requests_that_are_fetched_at_the_end(deploy, server, monkeypatch):
    deployment, folder = deploy(experiment(replicas=2, timing=TIMING), by=Trial(server.spec()))
    fetched = []
    monkeypatch.setattr(KubernetesApi, "download", _counted(KubernetesApi.download, fetched))
    step_s = TIMING["step_s"]
    start_s = math.ceil(time.time() / step_s + 4) * step_s
    judge = Asked(experiment(replicas=2, timing=TIMING), StopWhenKnown(**WANTED), folder, start_s=start_s)
    notices = []
    timing = experiment(timing=TIMING).timing
    request = recording_request(["throughput"], timing, notice=notices.append, enough=judge)
    summary = deployment.recording(request).record(start_s, round(PLANNED_S / step_s) + 1)

    assert judge.known
    assert not summary.stopped
    assert 5 < summary.rows < PLANNED_S / step_s
    assert notices == []
    rounds = len(judge.rows)
    assert len(fetched) <= 2 * (rounds + 1), "each replica once a look"
    assert list(deployment.stop(timeout_s=DRAINED_S)) == []
    again = StopRule(experiment(replicas=2, timing=TIMING), StopWhenKnown(**WANTED), folder, start_s=start_s)
    for rows in judge.rows:
        again(rows)
    ended = {"rows": summary.rows, "planned_rows": round(PLANNED_S / step_s) + 1}
    assert again.record(**ended) == judge.record(**ended)


def _counted(download, fetched):
    def counting(api, path, target, **how):
        fetched.append(path)
        return download(api, path, target, **how)

    return counting


def test_a_campaigns_recording_ends_early_and_is_complete(server, driver, run_campaign):
    folder, _ = run_campaign(Trial(server.spec()), replicas=[2], timing=TIMING, metrics=["throughput", "total_count"])

    (done,) = folder.path.glob("tiny_r2_*")
    manifest = read_manifest(done)
    assert manifest.stopping["known"]
    assert manifest.stopping["recorded_s"] == pytest.approx((manifest.rows - 1) * TIMING["step_s"])
    assert f"Recorded {manifest.stopping['recorded_s']:g} of at most {PLANNED_S:g} s" in manifest.stopping["why"]
    assert verify_campaign(folder.path).ok
    assert read(done).replicas == (0, 1)
    assert driver.left() == []
